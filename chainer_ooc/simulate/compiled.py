"""Seconds and bytes of decisions on one problem, in C: what a search asks thousands of times.

`lay_out` and `run` take a millisecond for a network of 350 positions, most of it for objects that a search throws away.
The files of `native/` do the same over arrays, which are packed once for a problem::

    problem  --packed once-->  arrays  \
                                         timeline_evaluate  -->  bytes that are needed, seconds, peak
                                         timeline_needs     -->  bytes that each position needs
    decision --packed------->  arrays  /

Results are equal to those of the Python code, to the last bit: the code in Python says what is meant, and is used where
there was no compiler as the package was built. What it fails at, C leaves to it.

The library is called through ctypes: that costs about a microsecond a call, and no object is touched in C. Calls leave
Python's lock to other threads, so that a search in the background does not hold up a training: each thread packs a
problem for itself. Left out: what a timeline is made of, such as stalls.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chainer_ooc import extension
from chainer_ooc.problem import Decision, Problem, Starts, Verdict
from chainer_ooc.schedule.chains import find_chains
from chainer_ooc.schedule.schedule import add_intervals, residency

_Ints = npt.NDArray[np.int64]
_DONE, _REFUSED, _CHAINS_TOO_LONG = range(3)
_SHARES_NOTHING, _SHARES_ALL, _SHARES_SOME, _SHARES_IF_IT_FITS = range(4)
_NO_START = -1 << 63
#: Sums stay within 64 bits if all bytes of a problem together, and what a decision names, are below the first, and its
#: budget is not above the second.
_MOST, _MOST_BUDGET = 1 << 58, 1 << 62
#: What is kept of earlier problems: a search goes back and forth between few.
_KEPT_PROBLEMS = 4
_code = operator.attrgetter('code')


class Outcome(NamedTuple):
    """What a decision comes to.

    Attributes:
        floor_bytes, needed_bytes: see `Schedule`.
        seconds: simulated time of an iteration; infinite if more is needed than the budget.
        peak_bytes: of near memory; 0 if more is needed than the budget.
    """

    floor_bytes: int
    needed_bytes: int
    seconds: float
    peak_bytes: int


class Needs(NamedTuple):
    """What a decision needs before any swap-in comes early.

    Attributes:
        need: bytes at each position, int64, shape (positions,).
        first_use: for each map the position in backward that reads it first, chains among them, or -1.
        restored: for each map the position before which a chain makes it again to stay, or -1.
    """

    need: _Ints
    first_use: _Ints
    restored: _Ints


_POINTER, _INT, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _Problem(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ('positions', 'calls', 'maps', 'recalls')),
        *((name, _POINTER) for name in (
            'computing_bytes', 'resident_change', 'call_bytes', 'step_bytes', 'input_offsets', 'inputs', 'made_offsets',
            'made', 'read_offsets', 'reads', 'nbytes', 'producer', 'leaves_at', 'first_read', 'last_read', 'retained',
            'movable', 'stays', 'held', 'seconds', 'write_seconds', 'read_seconds')),
        ('slowdown', _DOUBLE)]


class _Decision(ctypes.Structure):
    _fields_ = [
        ('verdicts', ctypes.c_char_p), ('shared', ctypes.c_char_p),
        *((name, _POINTER) for name in ('leaves', 'starts', 'gates')),
        *((name, _INT) for name in ('gates_count', 'ahead', 'is_early', 'checks_memory', 'shares', 'synchronous',
                                    'mapped', 'budget_bytes', 'without'))]


class _Answer(ctypes.Structure):
    _fields_ = [*((name, _INT) for name in ('floor_bytes', 'scheduled_bytes', 'peak_bytes')), ('seconds', _DOUBLE)]


class Evaluator:
    """One problem, packed, for one thread. The budget is that of each question."""

    def __init__(self, problem: Problem, library: ctypes.CDLL):
        self._library, self._maps = library, len(problem.trace.maps)
        self._arrays = _pack(problem)
        trace = problem.trace
        self._problem = _Problem(trace.positions, len(trace.calls), self._maps, problem.recalls, slowdown=float(
            problem.costs.slowdown), **{name: each.ctypes.data for name, each in self._arrays.items()})
        self._decision, self._answer = _Decision(), _Answer()
        self._pointers = ctypes.byref(self._problem), ctypes.byref(self._decision)
        self._to_answer = ctypes.byref(self._answer)
        if not library.timeline_check(self._pointers[0]):
            raise ValueError('a trace that names maps or calls which it does not have')
        self._take_memory(4 * trace.positions)

    def evaluate(self, decision: Decision, budget_bytes: int, without: int = -1) -> Outcome | None:
        """Lays a decision out and simulates it; None if Python is to do that.

        A map `without` bytes takes no time to copy either.
        """
        kept = self._note(self._decision, decision, budget_bytes, without)
        return None if kept is None else self._ask(self._pointers, budget_bytes)

    def needs(self, decision: Decision, budget_bytes: int) -> Needs | None:
        """What a decision needs at each position; None if Python is to say that."""
        kept = self._note(self._decision, decision, budget_bytes, -1)
        found = Needs(np.empty(self._problem.positions, np.int64), *np.empty((2, self._maps), np.int64))
        if kept is None or not self._call(self._library.timeline_needs, self._pointers, *map(_address, found)):
            return None
        return found

    def asks(self, decision: Decision, budget_bytes: int, verdicts: bytearray,
             shared: bytearray | None) -> Callable[[], Outcome | None] | None:
        """Gives what evaluates a decision with other verdicts: the codes that stand in an array when it is called.

        So a search that changes single verdicts packs the rest of its decision once. With `shared`, what a chain makes
        of a map stays where that array has a 1. None if Python is to do that.
        """
        row = _Decision()
        kept = self._note(row, decision, budget_bytes, -1)
        if kept is None or not verdicts or any(len(each) != self._maps for each in (verdicts, shared or verdicts)):
            return None
        codes = (ctypes.c_char * self._maps).from_buffer(verdicts)
        row.verdicts = ctypes.addressof(codes)
        mask = None if shared is None else (ctypes.c_char * self._maps).from_buffer(shared)
        if mask is not None:
            row.shared, row.shares = ctypes.addressof(mask), _SHARES_SOME
        pointers = self._pointers[0], ctypes.byref(row)

        def ask(_: object = (kept, codes, mask)) -> Outcome | None:
            return self._ask(pointers, budget_bytes)

        return ask

    def _note(self, row: _Decision, decision: Decision, budget_bytes: int, without: int) -> object | None:
        """Fills a row; gives arrays that it points to, which have to live as long, or None if they cannot say it."""
        if len(decision.verdicts) != self._maps or not 0 <= budget_bytes <= _MOST_BUDGET:
            return None
        row.verdicts = bytes(map(_code, decision.verdicts))
        try:
            self._note_shares(row, decision)
            kept = self._note_starts(row, decision.starts), self._note_leaves(row, decision.leaves)
        except (LookupError, OverflowError):
            return None
        row.synchronous, row.mapped = decision.synchronous, decision.mapped
        row.budget_bytes, row.without = budget_bytes, without
        return kept

    def _ask(self, pointers: tuple[object, object], budget_bytes: int) -> Outcome | None:
        """Evaluates what the pointers have."""
        answer = self._answer
        if not self._call(self._library.timeline_evaluate, pointers, self._to_answer):
            return None
        needed_bytes = max(answer.floor_bytes, answer.scheduled_bytes)
        if needed_bytes > budget_bytes:
            return Outcome(answer.floor_bytes, needed_bytes, float('inf'), 0)
        return Outcome(answer.floor_bytes, needed_bytes, answer.seconds, answer.peak_bytes)

    def _call(self, function: Callable[..., int], pointers: tuple[object, object], *answers: object) -> bool:
        """Calls the library, with as much memory as it takes; whether it has an answer."""
        while (status := function(*pointers, self._to_memory, self._words, *answers)) == _CHAINS_TOO_LONG:
            self._take_memory(2 * self._words)
        return status == _DONE

    def _take_memory(self, beside_words: int) -> None:
        self._words = self._library.timeline_words(self._pointers[0]) + beside_words
        self._memory = np.empty(self._words, np.int64)
        self._to_memory = self._memory.ctypes.data

    def _note_shares(self, row: _Decision, decision: Decision) -> None:
        shares = decision.shares_chains
        if isinstance(shares, frozenset):
            mask = bytearray(self._maps)
            for each in shares:
                if 0 <= each < self._maps:
                    mask[each] = 1
            row.shared, row.shares = bytes(mask), _SHARES_SOME
        else:
            row.shares = _SHARES_IF_IT_FITS if shares is None else _SHARES_ALL if shares else _SHARES_NOTHING

    def _note_starts(self, row: _Decision, starts: Starts) -> tuple[object, ...]:
        positions = _by_map(self._maps, starts.positions or {}, _NO_START)
        gates = None if starts.gates is None else np.array(starts.gates, np.int64)
        row.starts, row.gates = _address(positions), _address(gates)
        row.gates_count, row.is_early = 0 if gates is None else len(gates), starts.ahead is None
        row.ahead = 0 if starts.ahead is None else _small(starts.ahead)
        row.checks_memory = starts.checks_memory
        return positions, gates

    def _note_leaves(self, row: _Decision, leaves: Mapping[int, int]) -> object:
        array = _by_map(self._maps, leaves, 0)
        row.leaves = _address(array)
        return array


def evaluator_of(problem: Problem) -> Evaluator | None:
    """The problem, packed; None where there is no library, or where numbers are too large for it."""
    return _evaluator(_Same(problem))


def available() -> str | None:
    """Returns None if there is a library, or a sentence that says why there is none."""
    found = _library()
    return found if isinstance(found, str) else None


class _Same:
    """A problem whose equals are those of the very same trace and costs, in the same thread.

    Comparing values takes too long.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self._parts = (threading.get_ident(), id(problem.trace), id(problem.costs), problem.standing,
                       problem.min_bytes, problem.recalls)
        self._hash = hash(self._parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._parts == other._parts


@functools.lru_cache(_KEPT_PROBLEMS)
def _evaluator(same: _Same) -> Evaluator | None:
    library = _library()
    try:
        return None if isinstance(library, str) else Evaluator(same.problem, library)
    except (ValueError, OverflowError, IndexError):
        return None


@functools.cache
def _library() -> ctypes.CDLL | str:
    try:
        library = extension.load(ctypes.CDLL, 'simulate', 'native', '_timeline')
    except OSError as error:
        return str(error)
    library.timeline_words.restype = _INT
    library.timeline_words.argtypes = library.timeline_check.argtypes = (_POINTER,)
    library.timeline_evaluate.argtypes = (_POINTER, _POINTER, _POINTER, _INT, _POINTER)
    library.timeline_needs.argtypes = (_POINTER, _POINTER, _POINTER, _INT, _POINTER, _POINTER, _POINTER)
    return library


def _small(value: int) -> int:
    if abs(value) >= _MOST:
        raise OverflowError
    return value


def _by_map(maps: int, values: Mapping[int, int], default: int) -> _Ints | None:
    """An array of what a mapping says about each map, or None if it says nothing."""
    if not values:
        return None
    array = np.full(maps, default, np.int64)
    for map_id, value in values.items():
        if 0 <= map_id < maps:
            array[map_id] = value
    return array


def _address(array: _Ints | None) -> int | None:
    return None if array is None else array.ctypes.data


def _pack(problem: Problem) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a problem, as `native/timeline.h` describes them.

    Raises:
        ValueError, OverflowError: numbers are too large, or rows are not in order.
    """
    trace, costs = problem.trace, problem.costs
    maps, calls, steps = trace.maps, trace.calls, trace.steps
    _check(problem)
    standing = problem.standing
    computing_bytes = [nbytes + (standing.forward_bytes if position < len(calls) else standing.backward_bytes)
                       for position, nbytes in enumerate(trace.computing_bytes)]
    columns: dict[str, Iterable[int]] = {
        'computing_bytes': computing_bytes, 'resident_change': _resident_change(problem),
        'call_bytes': (each.peak_bytes for each in calls), 'step_bytes': (each.peak_bytes for each in steps),
        'nbytes': (each.nbytes for each in maps), 'leaves_at': (each.leaves_at for each in maps),
        'producer': (-1 if each.producer is None else each.producer for each in maps),
        'first_read': (min(each.backward_uses, default=-1) for each in maps),
        'last_read': (max(each.backward_uses, default=-1) for each in maps),
        'retained': (each.retained for each in maps), 'held': (each.held for each in maps),
        'movable': (each.retained and not each.foreign for each in maps),
        'stays': (each.nbytes < problem.min_bytes or each.reused or each.held for each in maps)}
    lists = {'input': [trace.read_by(call.index) for call in calls],
             'made': [trace.made_by(call.index) for call in calls], 'read': [tuple({*step.maps}) for step in steps]}
    arrays: dict[str, npt.NDArray[Any]] = {name: np.array(list(each), np.int64) for name, each in columns.items()}
    for name, rows in lists.items():
        arrays[f'{name}_offsets'] = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        elements = 'made' if name == 'made' else f'{name}s'
        arrays[elements] = np.array([each for row in rows for each in sorted(row)], np.int64)
    all_bytes = [*(each.nbytes for each in maps), 0]
    arrays['seconds'] = np.array(costs.seconds, np.float64)
    arrays['write_seconds'] = np.array([costs.write_seconds(each) for each in all_bytes], np.float64)
    arrays['read_seconds'] = np.array([costs.read_seconds(each) for each in all_bytes], np.float64)
    return arrays


def _check(problem: Problem) -> None:
    """Refuses what the arrays cannot hold."""
    trace, standing = problem.trace, problem.standing
    in_order = (all(each.id == number for number, each in enumerate(trace.maps))
                and all(each.index == number for number, each in enumerate(trace.calls))
                and all(each.position == number for number, each in enumerate(trace.steps, trace.backward_start))
                and all(list(each.backward_uses) == sorted(each.backward_uses) for each in trace.maps)
                and len(problem.costs.seconds) == trace.positions)
    numbers: Sequence[int] = (
        *trace.computing_bytes, *(each.nbytes for each in trace.maps), standing.forward_bytes, standing.backward_bytes,
        *(each.peak_bytes for each in trace.calls), *(each.peak_bytes for each in trace.steps))
    if not in_order or sum(map(abs, numbers)) >= _MOST:
        raise ValueError('a trace whose rows are not in order, or whose bytes are too many')


def _resident_change(problem: Problem) -> list[int]:
    """What the maps that no verdict moves add at each position to what is resident, and take away after the last."""
    trace, change = problem.trace, [0] * (problem.trace.positions + 1)
    chains = find_chains(trace, ())
    for each in trace.maps:
        if each.foreign or not each.retained:
            add_intervals(change, residency(trace, each, Verdict.KEEP, problem.min_bytes, chains), each.nbytes)
    return change
