"""What an iteration did, row by row while it runs; `freeze_trace` makes a trace of it.

A feature map gets its id when its storage is first seen, in the order of inputs, outputs, hidden arrays, so that equal
graphs give equal ids. Two graphs are equal if their calls have the same names, ids, dtypes and shapes.

Source: PoocH 4.1 and 4.2.
"""

from __future__ import annotations

import functools
import platform
import threading
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from chainer_ooc.backends.base import Backend, Bandwidth
from chainer_ooc.config import Settings
from chainer_ooc.execute import log
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.recording.places import Places
from chainer_ooc.trace import ArrayForm, Call, FeatureMap, Step, Trace, fingerprint_of
from chainer_ooc.version import __version__

#: A step whose buffers are not known may allocate so many times what its gradients take.
GRADIENTS_AND_SCRATCH = 2

#: Two moments of a device, see `Backend.timestamp`.
Span = tuple[Any, Any]


@dataclass
class MapRow:
    """A feature map as far as it is known."""

    nbytes: int
    producer: int | None
    hidden: bool
    shape: tuple[int, ...]
    dtype: Any
    last_forward_use: int
    last_alive: int | None = None
    retained: bool = False
    foreign: bool = False
    shown: bool = False
    written: bool = False
    reused: bool = False
    held: bool = False
    last_held: int = -1
    backward_uses: list[int] = field(default_factory=list)


def written_with(calls: Sequence[Call], exposed: Set[int]) -> set[int]:
    """The maps that cannot be made again where the program may write to some: these, and what was made from them."""
    made = [each for call in calls if not exposed.isdisjoint(call.inputs) for each in (*call.outputs, *call.hidden)]
    return {*exposed, *made}


def forms(given: Sequence[Any]) -> tuple[ArrayForm, ...]:
    """The forms of arrays or nodes, as far as they have any."""
    return tuple([_form(each.dtype, each.shape) for each in given if each is not None and each.shape is not None])


@functools.lru_cache(maxsize=1024)
def _form(dtype: Any, shape: tuple[int, ...]) -> ArrayForm:
    return ArrayForm(dtype.str, shape)


def versions(settings: Settings, backend: Backend) -> dict[str, str]:
    """The versions of all that decides what an iteration does, and how long that takes; and where parameters lie."""
    import chainer

    return {'chainer': chainer.__version__, 'numpy': np.__version__, 'python': platform.python_version(),
            'chainer_ooc': __version__,
            'onednn': backend.onednn_version(settings.use_ideep), 'parameters': settings.parameters or ''}


class Recorder:
    """Collects the rows of one iteration.

    Attributes:
        measures: what computations allocate is measured, and where in the program calls are made, and which maps the
            program reads, is noted.
        now: the position whose computation runs or ran last.
        next_position: the position that the next call or step gets.
        spans: of each computation's time, by position; a device may not have come that far.
        exposed: maps that the program has read in forward, and may have written to.
        readers: the threads in which it has read maps in backward.
        near_bytes: what near memory held with each computation, by position.
        is_late: a pass has ended, and in such a training passes after it may lose what they read.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.near_bytes: list[int] = []
        self.calls: list[Call] = []
        self.steps: list[Step] = []
        self.maps: list[MapRow] = []
        self.exposed: set[int] = set()
        self.readers: set[int] = set()
        self.now, self.next_position = -1, 0
        self._parts: set[tuple[int, Hashable]] = set()
        self.measures = self.is_late = False
        self._places = Places()

    def new_map(self, array: Any, nbytes: int, producer: int | None, hidden: bool) -> int:
        """Adds a feature map and returns its id."""
        self.maps.append(MapRow(nbytes, producer, hidden, array.shape, array.dtype, self.next_position))
        return len(self.maps) - 1

    def add_part(self, map_id: int, layout: Hashable) -> bool:
        """Adds a part of a map's block; whether it is a new one."""
        known = len(self._parts)
        self._parts.add((map_id, layout))
        return len(self._parts) > known

    def note_read(self, map_id: int, in_backward: bool) -> None:
        """Notes that the program reads a map, an earlier iteration's if -1, and may write to it."""
        if in_backward:
            self.readers.add(threading.get_ident())
        elif map_id >= 0 and not self.maps[map_id].hidden:  # F.dropout itself looks at the mask that it hides
            self.exposed.add(map_id)

    def gone(self, map_id: int) -> None:
        """Notes that the block of a map went."""
        self.maps[map_id].last_alive = self.now

    def call(self, label: str, ids: tuple[list[int], list[int], list[int]], given: Sequence[Any], span: Span,
             peak_bytes: int, repeatable: bool = False, other_bytes: int = 0, known: Call | None = None) -> Call:
        """Adds a forward call, see `Call`; the `known` row itself if this is the same call.

        `ids` are those of inputs, outputs and hidden arrays; `given` are inputs and outputs, arrays or nodes, for their
        shapes and dtypes.
        """
        inputs, outputs, hidden = map(tuple, ids)
        arguments, results = forms(given[:len(inputs)]), forms(given[len(inputs):])
        if known is not None and known.signature == (label, inputs, outputs, hidden, arguments, results):
            row = known
        else:
            path, line = self._places.here() if self.measures else ('', '')
            row = Call(len(self.calls), label, inputs, outputs, hidden, 0.0, peak_bytes, arguments, results,
                       repeatable, other_bytes, path, line)
        for map_id in {*row.inputs, *row.outputs, *row.hidden} - {-1}:
            self.maps[map_id].last_forward_use = row.index
        self.known_call(row, span)
        return row

    def known_call(self, call: Call, span: Span) -> None:
        """Adds a call as it was recorded."""
        self.calls.append(call)
        self.next_position += 1
        self.spans.append(span)

    def known_step(self, step: Step, span: Span) -> None:
        """Adds a step as it was recorded."""
        self.steps.append(step)
        self.next_position += 1
        self.spans.append(span)

    def forget_others(self) -> None:
        """Forgets what lived before the calls so far: parameters, which got their arrays between them, were in it."""
        self.calls = [replace(each, other_bytes=0) for each in self.calls]

    def step(self, call: int, maps: Sequence[int], span: Span, peak_bytes: int, other_bytes: int,
             label: str = '') -> Step:
        """Adds a backward step, which reads `maps`."""
        row = Step(self.next_position, call, tuple(maps), 0.0, peak_bytes, other_bytes, label)
        for map_id in set(row.maps):
            self.maps[map_id].backward_uses.append(row.position)
            self.maps[map_id].reused |= self.is_late
        self.known_step(row, span)
        return row

    def likely_bytes(self, call: int, function: Any) -> int:
        """What an unknown step of a function may allocate; `call` is -1 for one of an earlier iteration's."""
        gradients_bytes = sum([each.nbytes for each in forms(function.inputs)])
        return max(GRADIENTS_AND_SCRATCH * gradients_bytes, self.calls[call].peak_bytes if call >= 0 else 0)

    def fingerprint(self) -> str:
        """As the trace would have it."""
        return fingerprint_of(self.calls, self.steps)

    def maps_bytes(self) -> int:
        """Bytes of all feature maps together."""
        return sum(each.nbytes for each in self.maps)

    def moments(self) -> tuple[tuple[Span, int], ...]:
        """For each position, when its computation ran, and what near memory held with it."""
        return tuple(zip(self.spans, self.near_bytes, strict=False))

    def seconds(self, backend: Backend) -> list[float]:
        """Durations of the computations, by position; waits until the device has come to the last one."""
        return backend.computing_seconds(self.spans)

    def trace(self, backend: Backend, seconds: float, bandwidth: Bandwidth) -> Trace:
        """Freezes the rows, with the times that the device has measured."""
        durations = self.seconds(backend)
        calls = tuple(replace(each, seconds=taken) for each, taken in zip(self.calls, durations, strict=False))
        steps = tuple(replace(each, seconds=durations[each.position]) for each in self.steps)
        written = written_with(calls, self.exposed)
        maps = tuple(
            FeatureMap(
                id=map_id, nbytes=row.nbytes, producer=row.producer, hidden=row.hidden, retained=row.retained,
                foreign=row.foreign, last_forward_use=row.last_forward_use, backward_uses=tuple(row.backward_uses),
                shape=tuple(row.shape), dtype=str(row.dtype),
                last_alive=self.next_position - 1 if row.last_alive is None else row.last_alive,
                shown=row.shown, written=row.written or map_id in written, reused=row.reused, held=row.held,
                last_held=row.last_held)
            for map_id, row in enumerate(self.maps))
        return Trace(
            device=backend.name, calls=calls, steps=steps, maps=maps, seconds=seconds,
            write_bytes_per_second=bandwidth.write_bytes_per_second,
            read_bytes_per_second=bandwidth.read_bytes_per_second, copy_slowdown=bandwidth.slowdown)


def freeze_trace(recorder: Recorder, memory: Residency, parameters: Parameters, others_bytes: int,
                 settings: Settings) -> Trace:
    """Makes the trace of an iteration that has ended, with the machine and what stood on it.

    `others_bytes` is what gradients of others than its own `parameters` took while it ran backward.
    """
    beside = parameters.beside()
    trace = recorder.trace(memory.backend, memory.tally.seconds, _bandwidth(memory.backend))
    return replace(
        trace, machine=memory.backend.machine(), workspace_bytes=settings.workspace_bytes,
        versions=versions(settings, memory.backend),
        standing_forward_bytes=beside.total_bytes, standing_backward_bytes=beside.steady_bytes + others_bytes)


def _bandwidth(backend: Backend) -> Bandwidth:
    try:
        return backend.bandwidth()
    except (MemoryError, OSError) as error:
        log.logger.warning('the bandwidth of far memory could not be measured: %s', str(error))
        return Bandwidth(0.0, 0.0, 0.0)
