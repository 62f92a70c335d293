"""What the searches of several policies share: what a decision comes to, the best one so far, and when to stop.

A search simulates one set of verdicts after the other. It stops by itself; where a graph is so large that this takes
too long, the time limit stops it with the best verdicts so far, which are never worse than those that it began with.

Source: PoocH 4.1.2 (a classification is judged by its simulated timeline).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from chainer_ooc.problem import Decision, Problem, Verdict, changed, from_the_output
from chainer_ooc.schedule.schedule import Schedule, lay_out
from chainer_ooc.simulate.simulator import run

Verdicts = tuple[Verdict, ...]

#: With more swapped maps than this, copies that cost nothing in the simulator are not spared one by one.
SPARED_MAPS = 512


def largest_fitting(fitting: int, too_large: int, fits: Callable[[int], bool]) -> int:
    """Bisects for the largest number that fits.

    Args:
        fitting: known to fit, or below all that may; it is the answer if nothing above it fits.
        too_large: known not to fit, or above all that may.
        fits: if it holds of a number, it holds of the smaller ones.
    """
    while too_large - fitting > 1:
        middle = (fitting + too_large) // 2
        if fits(middle):
            fitting = middle
        else:
            too_large = middle
    return fitting


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A decision that was laid out over the positions. It is simulated when its time is read."""

    problem: Problem
    schedule: Schedule

    @property
    def fits(self) -> bool:
        """Whether `make_plan` would take it."""
        return self.schedule.fits(self.problem.budget_bytes)

    @cached_property
    def seconds(self) -> float:
        """Simulated time of an iteration; infinite if it does not fit."""
        return run(self.problem, self.schedule)[0] if self.fits else float('inf')


def evaluate(problem: Problem, decision: Decision) -> Evaluation:
    """Lays a decision out."""
    return Evaluation(problem, lay_out(problem, decision))


class Search:
    """A walk over verdicts, from a decision that need not fit.

    Attributes:
        best: the best decision so far.
        found: its evaluation.
    """

    def __init__(self, problem: Problem, first: Decision):
        self.problem = problem
        self.best = first
        self.found = evaluate(problem, first)
        self._ends = time.monotonic() + problem.limit_seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self._ends

    @property
    def left_seconds(self) -> float:
        """What is left of the time, not below 0."""
        return max(0.0, self._ends - time.monotonic())

    def try_verdicts(self, verdicts: Verdicts) -> Evaluation:
        """Evaluates verdicts under the best decision's ways; they become the best if they are faster."""
        return self.try_decision(replace(self.best, verdicts=verdicts))

    def try_decision(self, decision: Decision) -> Evaluation:
        """Evaluates a decision; it becomes the best if it is faster."""
        found = evaluate(self.problem, decision)
        if found.fits and found.seconds < self.found.seconds:
            self.best, self.found = decision, found
        return found

    def spare_copies(self) -> None:
        """Keeps swapped maps, from the output backwards, where there is memory for it and nothing becomes slower.

        In the simulator a copy that is hidden behind computations costs nothing. On a host it takes processor time, on
        any machine power and bandwidth; and a kept map is never late. Left out above `SPARED_MAPS` maps, where
        simulating each takes too long.
        """
        swapped = [each for each, verdict in enumerate(self.best.verdicts) if verdict is Verdict.SWAP]
        if not self.found.fits or len(swapped) > SPARED_MAPS:
            return
        for map_id in self.watched(from_the_output(self.problem.trace, swapped), 'spare'):
            decision = replace(self.best, verdicts=changed(self.best.verdicts, [map_id], Verdict.KEEP))
            found = evaluate(self.problem, decision)
            if found.fits and found.seconds <= self.found.seconds:
                self.best, self.found = decision, found

    def watched(self, items: Sequence[int], what: str) -> Iterator[int]:
        """Gives items until the time is up, with a progress bar on a terminal if that takes more than a second."""
        from chainer_ooc.classify.progress import Bar  # here, as `doctor` has to run where nothing is installed

        for each in Bar(items, desc=what, delay=1.0, disable=None, leave=False):
            if self.is_over:
                return
            yield each
