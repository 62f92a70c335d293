"""A lower bound on the time of every course of an iteration, proven, and what stands against a faster one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from chainer_ooc.classify.bound.facts import Facts
from chainer_ooc.classify.bound.memory import MemoryRows
from chainer_ooc.classify.bound.program import NOTHING, Floats, NoSolverError
from chainer_ooc.classify.bound.relaxation import Relaxation
from chainer_ooc.problem import Problem

#: Where a closer look has no more than so many maps and positions in all, it is taken at once everywhere.
SMALL = 2500
#: A closer look at single positions is taken so many times, at so many maps and positions in all each time.
ROUNDS, LARGE = 3, 1200
#: It is worth while where the largest map is at least this share of the bytes that have to be absent.
LARGE_SHARE = 0.02


@dataclass(frozen=True)
class Price:
    """What memory at a position is worth.

    Attributes:
        position: of the call or step.
        seconds_per_byte: by which the bound falls with one byte more there, and nowhere else. Where maps are large
            beside what has to leave, a byte may bring nothing, and the last one a whole map: then ask for the bound of
            the larger budget.
    """

    position: int
    seconds_per_byte: float


@dataclass(frozen=True)
class Bound:
    """What no course is faster than.

    Attributes:
        seconds: proven; infinite if no course keeps within the budget.
        in_core_seconds: all computations, once each.
        floor_bytes: proven too: with less no course keeps within the budget.
        prices: of memory, where it is worth anything, the dearest first.
    """

    seconds: float
    in_core_seconds: float
    floor_bytes: int
    prices: tuple[Price, ...] = ()

    @property
    def lost_seconds(self) -> float:
        """What every course loses against in-core."""
        return self.seconds - self.in_core_seconds

    def gap(self, seconds: float) -> float:
        """How much longer than the bound a course takes: 0.02 is two percent."""
        return seconds / self.seconds - 1 if self.seconds else 0.0


def lower_bound(problem: Problem) -> Bound:
    """Finds a time that no course of the iteration is below, whatever its verdicts, leaves, starts and shared chains.

    It holds for each decision whose schedule fits the budget and that gives a map no verdict that it cannot have
    (`can_leave`, `can_recompute`), with or without recalls, synchronous or not; not for one that is `mapped`. The proof
    is in docs/bound.md, rule by rule.

    Raises:
        NoSolverError: SciPy is not installed.
    """
    facts = Facts(problem)
    if facts.floor_bytes > problem.budget_bytes:
        return Bound(math.inf, _in_core(problem), facts.floor_bytes)
    if not facts.absents:
        return Bound(_lowered(facts, Fraction(0)), _in_core(problem), facts.floor_bytes)
    memory = MemoryRows(Relaxation(facts))
    multipliers, lost = _look_closer(memory) if memory.places else (NOTHING, Fraction(0))
    return Bound(_lowered(facts, lost), _in_core(problem), facts.floor_bytes, _prices(memory, multipliers))


def known_bound(problem: Problem) -> Bound | None:
    """`lower_bound`; None where SciPy is not installed."""
    try:
        return lower_bound(problem)
    except NoSolverError:
        return None


def _look_closer(memory: MemoryRows) -> tuple[Floats, Fraction]:
    """Solves, has a closer look at the positions that matter, and solves again.

    Returns:
        The last multipliers, and the best that was proven.
    """
    program, maps = memory.program, max(1, len(memory.facts.absents))
    left = list(memory.places)
    if len(left) * maps <= SMALL:
        memory.look_closer(*left)
        left.clear()
    multipliers = program.solve(memory.facts.problem.limit_seconds)
    best = program.bound(multipliers)
    for _ in range(ROUNDS):
        worth = _worth(memory, multipliers)
        places = sorted((each for each in left if worth.get(each) and memory.largest_share(each) >= LARGE_SHARE),
                        key=lambda each: -worth[each])[:LARGE // maps or 1]
        if not places:
            break
        memory.look_closer(*places)
        left = [each for each in left if each not in places]
        multipliers = program.solve(memory.facts.problem.limit_seconds)
        best = max(best, program.bound(multipliers))
    return multipliers, best


def _in_core(problem: Problem) -> float:
    return sum(problem.costs.seconds)


def _lowered(facts: Facts, lost: Fraction) -> float:
    """The time with what is lost, as far below as sums of floats may be in the simulator."""
    seconds = sum(map(Fraction, facts.problem.costs.seconds)) + max(lost, Fraction(0)) * facts.unit_seconds
    sums = 4 * (facts.positions + len(facts.problem.trace.maps) + 4)
    return float(seconds * (1 - Fraction(sums, 1 << 52)))


def _worth(memory: MemoryRows, multipliers: Floats) -> dict[int, float]:
    """What a byte is worth at each position, in the units of the program."""
    worth: dict[int, float] = {}
    program = memory.program
    for number in multipliers.nonzero()[0].tolist():
        place, side = program.places[number], -program.sides[number]
        if program.rules[number] in ('memory', 'whole', 'rounding') and place >= 0 and side > 0:
            share = float(multipliers[number]) * side / memory.excess[place]
            worth[place] = worth.get(place, 0.0) + share
    return {place: each for place, each in worth.items() if each > 1e-9}


def _prices(memory: MemoryRows, multipliers: Floats) -> tuple[Price, ...]:
    unit = float(memory.facts.unit_seconds / memory.facts.unit_bytes)
    worth = sorted(_worth(memory, multipliers).items(), key=lambda each: (-each[1], each[0]))
    return tuple(Price(place, each * unit) for place, each in worth)
