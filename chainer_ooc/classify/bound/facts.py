"""What the rules of the bound are about: an iteration in whole numbers, and the stretches of backward they tell apart.

Bytes and seconds become multiples of 2**-50 of a unit, each a power of two, that the largest sums come near. What a
course has to spend is rounded down, what it is given is rounded up, so that rounding loosens the bound and never
tightens it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from chainer_ooc.classify.bound.program import ONE
from chainer_ooc.problem import Problem, Verdict, can_leave, can_recompute, changed, everything
from chainer_ooc.schedule.chains import calls_again
from chainer_ooc.schedule.schedule import demand

#: Of an iteration with more positions, about so many count.
POINTS = 400
#: Calls that may run again times stretches of backward are about so many; more make the bound tighter, and slower.
DETAIL = 400


@dataclass(frozen=True)
class Absent:
    """A map that can leave near memory.

    Attributes:
        map: its id.
        nbytes: its size, as a whole number of the unit.
        leaves: the position after which it may be away.
        use: the first position that reads it in backward; the number of positions if none does.
        call: that makes it again, or -1.
        write, read: seconds of a copy, in the unit.
    """

    map: int
    nbytes: int
    leaves: int
    use: int
    call: int
    write: int
    read: int


class Facts:
    """A problem in whole numbers.

    Attributes:
        problem: the iteration, its costs and the budget.
        unit_bytes, unit_seconds: what 1 stands for.
        absents: the maps that can leave, in the order of their ids.
        fixed: bytes at each position under any verdicts.
        budget: bytes.
        floor_bytes: with a smaller budget the fixed ones alone do not fit.
        calls: that may run again, ascending, with the seconds of each.
        stretches: first and last position of each, in order; together they are backward.
        points: the positions that memory and time are looked at, ascending; all if they are not too many.
    """

    def __init__(self, problem: Problem):
        trace = problem.trace
        swapped = everything(trace, problem.min_bytes)
        self.problem = problem
        self.positions, self.start = trace.positions, trace.backward_start
        need = demand(trace, swapped, problem.standing, problem.min_bytes).tolist()
        movable = [each for each in trace.maps if can_leave(each, problem.min_bytes)]
        self.unit_bytes = _unit(max([1, *need]) + sum(each.nbytes for each in movable))
        self.unit_seconds = _unit(sum(map(Fraction, problem.costs.seconds)))
        self.floor_bytes = max(need, default=0)
        self.fixed = [self.bytes(each) for each in need]
        self.budget = self.bytes(problem.budget_bytes)
        again = can_recompute(trace, problem.min_bytes)
        self.absents = [self._absent(each.id, again[each.id]) for each in movable]
        redone = changed(swapped, itertools.compress(range(len(again)), again), Verdict.RECOMPUTE)
        self.calls = {call: self.seconds(problem.costs.seconds[call]) for call in calls_again(
            trace, redone, [each.map for each in self.absents if each.call >= 0])}
        self.stretches = _stretches(self.start, self.positions, DETAIL // max(1, len(self.calls)))
        self.points = self._points(demand(
            trace, (Verdict.KEEP,) * len(trace.maps), problem.standing, problem.min_bytes).tolist())

    def _absent(self, map_id: int, again: bool) -> Absent:
        each, costs = self.problem.trace.maps[map_id], self.problem.costs
        producer = each.producer if again and each.producer is not None else -1
        return Absent(map_id, self.bytes(each.nbytes), each.leaves_at, (*each.backward_uses, self.positions)[0],
                      producer, self.seconds(costs.write_seconds(each.nbytes)),
                      self.seconds(costs.read_seconds(each.nbytes)))

    def _points(self, need: list[int]) -> list[int]:
        """The positions of each group that need most if all is kept, and the edges of forward and of stretches."""
        size = math.ceil(self.positions / POINTS) if self.positions > POINTS else 1
        groups = (range(first, min(self.positions, first + size)) for first in range(0, self.positions, size))
        edges = {0, self.start - 1, self.positions - 1, *(first for first, _ in self.stretches)}
        return sorted({each for each in edges if 0 <= each < self.positions}.union(
            max(group, key=lambda position: need[position]) for group in groups))

    def seconds_between(self, first: int, last: int) -> int:
        """Of the positions from `first` up to the one before `last`, rounded up."""
        return self._seconds_before[last] - self._seconds_before[first] if last > first else 0

    @cached_property
    def _seconds_before(self) -> list[int]:
        return [0, *itertools.accumulate(self.durations)]

    def bytes(self, nbytes: int) -> int:
        """Bytes in the unit; exact below 2**50 bytes."""
        return nbytes * ONE // self.unit_bytes

    def seconds(self, seconds: float) -> int:
        """Seconds in the unit, rounded down."""
        return math.floor(Fraction(seconds) * ONE / self.unit_seconds)

    @cached_property
    def durations(self) -> list[int]:
        """Seconds of each position in the unit, rounded up: what copies have of them."""
        return [self.seconds(each) + 1 for each in self.problem.costs.seconds]

    @cached_property
    def stretch_of(self) -> dict[int, int]:
        """The number of the stretch that each position of backward, and the end, is in."""
        found = {position: number for number, (first, last) in enumerate(self.stretches)
                 for position in range(first, last + 1)}
        return {**found, self.positions: len(self.stretches)}

    @cached_property
    def by_map(self) -> dict[int, Absent]:
        """The maps that can leave, by their ids."""
        return {each.map: each for each in self.absents}

    @cached_property
    def nbytes(self) -> int:
        """Of all maps that can leave."""
        return sum(each.nbytes for each in self.absents)

    @cached_property
    def longest(self) -> int:
        """More seconds than any reasonable course loses: all copies one after the other, and all calls once again."""
        copies = sum(each.write + each.read for each in self.absents)
        return 4 * (copies + sum(self.calls.values()) + sum(self.durations)) + ONE


def _unit(largest: int | Fraction) -> Fraction:
    """The smallest power of two that is above a number."""
    unit = Fraction(1)
    while unit <= largest:
        unit *= 2
    while unit / 2 > largest > 0:
        unit /= 2
    return unit


def _stretches(start: int, end: int, count: int) -> list[tuple[int, int]]:
    """Cuts the positions of backward into about `count` stretches of equal length."""
    length = max(1, math.ceil((end - start) / max(1, count)))
    return [(first, min(end, first + length) - 1) for first in range(start, end, length)]
