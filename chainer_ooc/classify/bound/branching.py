"""A tighter bound by branch and bound: verdicts of single maps are told apart, and the slowest branch does not count.

A relaxation may keep half of a map. Here the problem is split by one verdict at a time, such as "map 7 is swapped" and
"map 7 is not"; each course is in one of the two branches, and each branch has a relaxation, and a bound, of its own.
What is proven is the least bound of all branches that are open. The one that has it is split next, by the map that its
solution is least decided about.

Source: Land and Doig 1960. Left out: cuts for a branch alone; what is known of a branch's solution when it is split.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Mapping
from fractions import Fraction

from chainer_ooc.classify.bound.program import ONE, Program, Solution

#: A verdict is decided if its variable is as near to 0 or 1.
_NEAR = 1e-6

#: A branch: what is decided in it, and its solution.
_Branch = tuple[dict[int, int], Solution]


def branch(program: Program, choices: Mapping[int, int], root: tuple[Solution, Fraction], enough: Fraction,
           limit_seconds: float, clock: Callable[[], float] = time.perf_counter) -> tuple[Fraction, int]:
    """Returns a bound that is as large as the root's or larger, and how many branches were looked at.

    Args:
        program: the relaxation.
        choices: the variables that are 0 or 1 in each course, with what each is worth: the bytes of its map.
        root: the relaxation's solution, and its bound.
        enough: a branch with this bound, or more, is not split: a course is known that is as fast.
        limit_seconds: no branch is begun after it.
        clock: gives seconds.
    """
    solution, least = root
    if not solution.values.size:
        return least, 0
    ends, numbers, looked = clock() + limit_seconds, itertools.count(), 0
    waiting: list[tuple[Fraction, int, _Branch]] = [(least, next(numbers), ({}, solution))]
    closed = enough
    while waiting and waiting[0][0] < enough and clock() < ends:
        bound, _, (decided, solution) = heapq.heappop(waiting)
        split = _undecided(solution, {each: worth for each, worth in choices.items() if each not in decided})
        if split is None:
            closed = min(closed, bound)  # all is decided, and it is no faster than this
            continue
        for value in (0, ONE):
            child = {**decided, split: value}
            own, looked = program.solve(max(1.0, ends - clock()), child), looked + 1
            if own.values.size:
                own_bound = max(bound, program.bound(own.multipliers, child))
                heapq.heappush(waiting, (own_bound, next(numbers), (child, own)))
            elif not program.is_impossible(max(1.0, ends - clock()), child):
                closed = min(closed, bound)
    return min([closed, *(bound for bound, _, _ in waiting)]), looked


def _undecided(solution: Solution, choices: Mapping[int, int]) -> int | None:
    """The variable that is farthest from 0 and 1, times what it is worth; None if all are decided."""
    farthest = {each: min(value, 1 - value) * worth for each, worth in choices.items()
                if _NEAR < (value := float(solution.values[each])) < 1 - _NEAR}
    return max(farthest, key=lambda each: farthest[each], default=None)
