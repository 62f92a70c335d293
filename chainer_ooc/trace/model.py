"""The trace of an iteration: its calls, the steps of its backward pass, and its feature maps.

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
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from chainer_ooc.errors import TraceFormatError
from chainer_ooc.quantities import counted
from chainer_ooc.trace.invariants import MOST_SLOWDOWN, check_bandwidth, check_bytes, check_rows, check_seconds
from chainer_ooc.trace.rows import ArrayForm, Call, FeatureMap, Step
from chainer_ooc.trace.tables import Damage, Form, dump_table, load_table, make, shown

VERSION = 8
_COMMAND = '"chainer-ooc profile MODEL --save FILE"'
FORM = Form('trace', VERSION, TraceFormatError, f'write one with {_COMMAND}', f'record it again with {_COMMAND}')


_TABLES: dict[str, type[Any]] = {'calls': Call, 'steps': Step, 'maps': FeatureMap}


def fingerprint_of(calls: Iterable[Call], steps: Iterable[Step]) -> str:
    """See `Trace.fingerprint`."""
    rows = [*(each.signature for each in calls), *(each.signature for each in steps)]
    return hashlib.sha256('\n'.join(map(repr, rows)).encode()).hexdigest()


@dataclass(frozen=True, repr=False)
class Trace:
    """A recorded iteration.

    Attributes:
        device: 'host', 'cuda'.
        calls, steps, maps: in the order of positions, and of ids.
        seconds: from the first call to the end of backward, as recorded.
        write_bytes_per_second, read_bytes_per_second: measured bandwidth of far memory; 0 if it could not be measured.
        copy_slowdown: a computation takes 1 + copy_slowdown times as long while copies run; measured too.
        versions: of Chainer, NumPy, Python, chainer_ooc and oneDNN, '' where that was not used.
        machine: what it was recorded on, as `Backend.machine` says; '' if unknown.
        workspace_bytes: scratch that one call had (``ooc_workspace``), or None.
        standing_forward_bytes, standing_backward_bytes: what lived through it beside feature maps: parameters and the
            optimizer's state, in forward the gradients before too, in backward those of other parameters alone.
        exchange_bytes, exchange_seconds: gradients that ranks exchange after it, and how long that takes, with the wait
            for the slowest: the median of the latest; 0 if none was measured.
        others_bytes: what other graphs of the same training have beside it, or need more than it does; as far as only
            `profile` knows. 0 in a training, which knows its graphs.
        doubt: why the training may need more than that all the same, see `InfeasibleBudgetError`; '' if it is not known
            to.
    """

    device: str
    calls: tuple[Call, ...]
    steps: tuple[Step, ...]
    maps: tuple[FeatureMap, ...]
    seconds: float
    write_bytes_per_second: float
    read_bytes_per_second: float
    copy_slowdown: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    machine: str = ''
    workspace_bytes: int | None = None
    standing_forward_bytes: int = 0
    standing_backward_bytes: int = 0
    exchange_bytes: int = 0
    exchange_seconds: float = 0.0
    others_bytes: int = 0
    doubt: str = ''

    def __repr__(self) -> str:
        """One line: what is in it, and which graph it is of."""
        return (f'<Trace of graph {self.fingerprint[:12]} on {self.device}: {counted(len(self.calls), "call")}, '
                f'{counted(len(self.steps), "step")}, {counted(len(self.maps), "feature map")}, {self.seconds:.3g} s>')

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the signatures, and over whose steps run in which order: equal for equal graphs."""
        return fingerprint_of(self.calls, self.steps)

    @cached_property
    def whole_fingerprint(self) -> str:
        """SHA-256 over the signatures and what each step reads: of traces with an equal one, plans have equal rows."""
        steps = ((each.call, each.maps) for each in self.steps)
        return hashlib.sha256(f'{self.fingerprint} {len(self.maps)} {list(steps)}'.encode()).hexdigest()

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

    @cached_property
    def most_computing_bytes(self) -> int:
        """The most of these."""
        return max(self.computing_bytes)

    @cached_property
    def leaves_at(self) -> tuple[int, ...]:
        """For each map, the position after which it can leave at the earliest."""
        return tuple(each.leaves_at for each in self.maps)

    @cached_property
    def maps_bytes(self) -> int:
        """Bytes of all feature maps together."""
        return sum(each.nbytes for each in self.maps)

    @cached_property
    def reused(self) -> frozenset[int]:
        """The feature maps that were read after the uses that are known here."""
        return frozenset(each.id for each in self.maps if each.reused)

    @cached_property
    def most_bytes(self) -> int:
        """Bytes of all feature maps, and the most that a position's computation has beside them."""
        return self.maps_bytes + self.most_computing_bytes

    @cached_property
    def most_other_bytes(self) -> int:
        """The most that lives when a position's computation begins, beside maps and what lives all the time."""
        return max([*(each.other_bytes for each in self.calls), *(each.other_bytes for each in self.steps)])

    @cached_property
    def scratch_shares(self) -> dict[str, float]:
        """By the names of functions, the most that a call or its step allocates over what it is given and makes."""
        shares: dict[str, float] = {}
        peaks = [*((each, each.peak_bytes) for each in self.calls),
                 *((self.calls[each.call], each.peak_bytes) for each in self.steps if each.call >= 0)]
        for call, peak_bytes in peaks:
            share = peak_bytes / max(1, sum(form.nbytes for form in (*call.arguments, *call.results)))
            shares[call.label] = max(share, shares.get(call.label, 0.0))
        return shares

    @cached_property
    def is_self_contained(self) -> bool:
        """Whether every step is the backward of one of its calls, and none that of a graph before."""
        return all(each.call >= 0 for each in self.steps)

    def name_of(self, position: int) -> str:
        """How messages call a position: ``'Convolution2DFunction, backward of call 14, at /conv1 in model.py:31'``."""
        if position < len(self.calls):
            return f'{self.calls[position].label}, forward of call {position}{self.calls[position].place}'
        step = self.steps[position - len(self.calls)]
        if step.call < 0:
            return f'{step.label or "a function"} outside of the recorded graph, backward at position {position}'
        call = self.calls[step.call]
        return f'{call.label}, backward of call {step.call}{call.place}'

    def maker_of(self, map_id: int) -> Call | None:
        """The call that makes a feature map; None for the batch."""
        producer = self.maps[map_id].producer
        return None if producer is None else self.calls[producer]

    def read_by(self, call: int) -> tuple[int, ...]:
        """The ids of the feature maps that a call reads, ascending."""
        return self._read[call]

    @cached_property
    def _read(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted({*call.inputs} - {-1})) for call in self.calls)

    def made_by(self, call: int) -> tuple[int, ...]:
        """The ids of the feature maps that a call makes, ascending."""
        return self._made[call]

    @cached_property
    def _made(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted({each for each in (*row.outputs, *row.hidden)
                                   if each >= 0 and self.maps[each].producer == call}))
                     for call, row in enumerate(self.calls))

    def to_json(self) -> str:
        """Returns the trace as JSON text, one row of a table per line; `from_json` gives an equal value."""
        names = [item.name for item in fields(self) if item.name not in _TABLES]
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
        tables = {name: load_table(name, kind, values.get(name), _FORMS) for name, kind in _TABLES.items()}
        trace = make('trace', Trace, {**values, **tables})
        _check(trace)
        return trace


def _check(trace: Trace) -> None:
    check_seconds('seconds', trace.seconds)
    check_bandwidth('write_bytes_per_second', trace.write_bytes_per_second)
    check_bandwidth('read_bytes_per_second', trace.read_bytes_per_second)
    if not 0 <= trace.copy_slowdown <= MOST_SLOWDOWN:
        raise Damage('copy_slowdown', f'{shown(trace.copy_slowdown)} is no slowdown: 0 to {MOST_SLOWDOWN:g}')
    for name in ('workspace_bytes', 'standing_forward_bytes', 'standing_backward_bytes', 'exchange_bytes',
                 'others_bytes'):
        check_bytes(name, getattr(trace, name) or 0)
    check_seconds('exchange_seconds', trace.exchange_seconds)
    for key, value in trace.versions.items():
        if not isinstance(value, str):
            raise Damage('versions', f'{shown(key)[1:-1]} is {shown(value)}, not a text')
    check_rows(trace.calls, trace.steps, trace.maps,
               max(trace.standing_forward_bytes, trace.standing_backward_bytes))


#: What NumPy gives as the `str` of a dtype; other names of dtypes are not written by `Trace.to_json`.
_DTYPE = re.compile(r'[<>|=][a-zA-Z][0-9]*(\[[0-9a-zA-Z]+\])?')


def _forms(rows: list[Any]) -> tuple[ArrayForm, ...]:
    found = tuple(ArrayForm(dtype, tuple(shape)) for dtype, shape in rows)
    for each in found:
        if not isinstance(each.dtype, str) or not _DTYPE.fullmatch(each.dtype) or any(
                type(extent) is not int or extent < 0 for extent in each.shape):
            raise TypeError(f'{shown(list(each))} is not the form of an array')
        np.dtype(each.dtype)
    return found


#: How the columns are read that are more than numbers.
_FORMS = {'arguments': _forms, 'results': _forms}
