"""The trace of an iteration: its calls, the steps of its backward pass, its feature maps, and the order of malloc/free.

Its JSON form is one object, versioned, with a table for each kind of row.

Time is counted in *positions*: the forward calls are 0 .. F-1, the steps of backward F .. F+B-1. A feature map is one
block of storage (P4), whatever shows it: an input or output that a function retains, an array that a function hides on
itself (P5), or an output that no function retains and that is freed by itself. A life, from left to right::

    position    0      1      2            F-1    F                 F+B-1
                produced   last_forward_use         backward_uses ...
    resident    [==========]  . . . may be away . . .    [=========]

Source: PoocH sections 4.1 and 4.2 (profiling); SuperNeurons 3.2 (liveness).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from chainer_ooc.errors import TraceFormatError
from chainer_ooc.trace.tables import Form, dump_table, load_table, typed

VERSION = 7
_COMMAND = '"chainer-ooc profile MODEL --save FILE"'
FORM = Form('trace', VERSION, TraceFormatError, f'write one with {_COMMAND}', f'record it again with {_COMMAND}')


@dataclass(frozen=True)
class FeatureMap:
    """One block of storage that a call reads, makes or hides.

    Attributes:
        id: position in `Trace.maps`.
        nbytes: size of the block.
        producer: index of the call that made it, or None if it came from outside (the batch).
        hidden: a function keeps it as an attribute of its own, out of Chainer's sight.
        retained: some function keeps it for backward.
        foreign: at its last forward use the program still held the array itself, so that no swap-out frees it.
        last_forward_use: index of the last call that makes or reads it.
        backward_uses: positions of the steps that read it, ascending.
        shape, dtype: of the array through which it was first seen.
        last_alive: the last position at which a map that no function retains was in near memory: a model's local
            variables may hold it longer than its uses last. -1 if that is not known.
        shown: a Variable of the program still shows it when backward begins, and may be read when parameters have
            changed.
        written: a function that may write to its inputs has read it, so that its producer may not give it again.
        reused: a backward pass of a later iteration has read it, after the uses that are known here.
        held: something else held the array after its last use in backward, such as a function of second order, so that
            it stays in near memory.
        last_held: the last position in forward at which something else, such as a local variable, held the array after
            its last use there, so that it could not leave. -1 if there was none.
    """

    id: int
    nbytes: int
    producer: int | None
    hidden: bool
    retained: bool
    foreign: bool
    last_forward_use: int
    backward_uses: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    last_alive: int = -1
    shown: bool = False
    written: bool = False
    reused: bool = False
    held: bool = False
    last_held: int = -1

    @property
    def leaves_at(self) -> int:
        """The position in forward after which it can leave."""
        return max(self.last_forward_use, self.last_held)


class ArrayForm(NamedTuple):
    """What an array is, its bytes aside. A tuple, since each call of each iteration has some, which are compared.

    Attributes:
        dtype: as NumPy writes it, byte order first: ``'<f4'``.
        shape: its extents.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all its elements."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Call:
    """One forward call of the model.

    Attributes:
        index: its position.
        label: the name of the function's class.
        inputs, outputs, hidden: ids of feature maps, -1 for what has no movable storage (parameters, scalars of
            Python). An id may appear twice, or among inputs and outputs, where views share storage.
        seconds: duration of the forward computation.
        peak_bytes: what the call allocates at its highest, its outputs included, above what was there before.
        arguments, results: forms of the inputs and of the outputs, in order.
        repeatable: it can run again, with the same result and without a side effect (P7).
        other_bytes: what else lives when it starts and was not there before the iteration, beside feature maps: what
            the program, or a function out of Chainer's sight, has allocated in forward.
    """

    index: int
    label: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    hidden: tuple[int, ...]
    seconds: float
    peak_bytes: int
    arguments: tuple[ArrayForm, ...] = ()
    results: tuple[ArrayForm, ...] = ()
    repeatable: bool = False
    other_bytes: int = 0

    @property
    def signature(self) -> tuple[object, ...]:
        """What tells this call from another."""
        return self.label, self.inputs, self.outputs, self.hidden, self.arguments, self.results


@dataclass(frozen=True)
class Step:
    """The backward computation of one call.

    Attributes:
        position: F + its number.
        call: index of the call, or -1 for a function that the forward pass did not see.
        maps: ids of the feature maps that it reads.
        seconds: duration.
        peak_bytes: what it allocates at its highest, above what was there before.
        other_bytes: what else lives when it starts, beside feature maps, parameters and optimizer state: the gradients
            so far, those from before the iteration among them where they still stand. Gradients of parameters that
            the graph does not use stand all the time, and are not among them.
    """

    position: int
    call: int
    maps: tuple[int, ...]
    seconds: float
    peak_bytes: int
    other_bytes: int


@dataclass(frozen=True)
class MemoryEvent:
    """The block of a feature map appeared ('malloc') or went ('free'), before the position's computation or in it."""

    kind: str
    map: int
    nbytes: int
    position: int


_TABLES: dict[str, type[Any]] = {'calls': Call, 'steps': Step, 'maps': FeatureMap, 'events': MemoryEvent}


@dataclass(frozen=True)
class Trace:
    """A recorded iteration.

    Attributes:
        device: 'host', 'cuda'.
        calls, steps, maps: in the order of positions, and of ids.
        events: in the order in which they happened while recording.
        seconds: from the first call to the end of backward, as recorded.
        write_bytes_per_second, read_bytes_per_second: measured bandwidth of far memory; 0 if it could not be measured.
        copy_slowdown: a computation takes 1 + copy_slowdown times as long while copies run; measured too.
        versions: of Chainer, NumPy, Python, chainer_ooc and oneDNN, '' where that was not used.
        machine: what it was recorded on, as `Backend.machine` says; '' if unknown.
        workspace_bytes: scratch that one call had (``ooc_workspace``), or None.
        standing_forward_bytes, standing_backward_bytes: what lived through it beside feature maps: parameters and the
            optimizer's state, in forward the gradients before too, in backward those of other parameters alone.
        version: of this form.
    """

    device: str
    calls: tuple[Call, ...]
    steps: tuple[Step, ...]
    maps: tuple[FeatureMap, ...]
    events: tuple[MemoryEvent, ...]
    seconds: float
    write_bytes_per_second: float
    read_bytes_per_second: float
    copy_slowdown: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    machine: str = ''
    workspace_bytes: int | None = None
    standing_forward_bytes: int = 0
    standing_backward_bytes: int = 0
    version: int = VERSION

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the signatures: equal for equal graphs, whatever the times."""
        return hashlib.sha256('\n'.join(repr(call.signature) for call in self.calls).encode()).hexdigest()

    @cached_property
    def positions(self) -> int:
        """Number of calls and steps."""
        return len(self.calls) + len(self.steps)

    @cached_property
    def backward_start(self) -> int:
        """Position of the first step."""
        return len(self.calls)

    @cached_property
    def computing_bytes(self) -> tuple[int, ...]:
        """What each position's computation has at its highest, beside feature maps and what lives all the time."""
        return (*(call.other_bytes + call.peak_bytes for call in self.calls),
                *(step.other_bytes + step.peak_bytes for step in self.steps))

    def name_of(self, position: int) -> str:
        """How messages call a position: ``'Convolution2DFunction, backward of call 14'``."""
        if position < len(self.calls):
            return f'{self.calls[position].label}, forward of call {position}'
        call = self.steps[position - len(self.calls)].call
        if call < 0:
            return f'a function outside of the recorded graph, backward at position {position}'
        return f'{self.calls[call].label}, backward of call {call}'

    def to_json(self) -> str:
        """Returns the trace as JSON text, one row of a table per line; `from_json` gives an equal value."""
        names = [item.name for item in fields(self) if item.name not in _TABLES and item.name != 'version']
        return FORM.dump({name: getattr(self, name) for name in names},
                         {name: dump_table(kind, getattr(self, name)) for name, kind in _TABLES.items()})

    @staticmethod
    def from_json(text: str) -> Trace:
        """Reads what `to_json` wrote.

        Raises:
            TraceFormatError: the text is no trace, or one of another version.
        """
        return _trace(FORM.parse(text))

    @staticmethod
    def from_object(read: object) -> Trace:
        """Makes a trace of JSON that is parsed already, as part of a larger file.

        Raises:
            TraceFormatError: it is no trace, or one of another version.
        """
        return _trace(FORM.check(read))


def _trace(values: dict[str, Any]) -> Trace:
    with FORM.reading():
        values.update({name: load_table(kind, values[name], _FORMS) for name, kind in _TABLES.items()})
        return typed(Trace(**values))


def _forms(rows: list[Any]) -> tuple[ArrayForm, ...]:
    found = tuple(ArrayForm(dtype, tuple(shape)) for dtype, shape in rows)
    for each in found:
        if not isinstance(each.dtype, str) or any(type(extent) is not int or extent < 0 for extent in each.shape):
            raise TypeError(f'{each} is not the form of an array')
        np.dtype(each.dtype)
    return found


#: How the columns are read that are more than numbers.
_FORMS = {'arguments': _forms, 'results': _forms}
