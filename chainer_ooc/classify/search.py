"""What the searches of several policies share: what a decision comes to, the best one so far, and when to stop.

A search simulates one set of verdicts after the other. It stops by itself; where a graph is so large that this takes
too long, the time limit stops it with the best verdicts so far, which are never worse than those that it began with.

Source: PoocH 4.1.2 (a classification is judged by its simulated timeline).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace

import numpy as np

from chainer_ooc.problem import Decision, Problem, Verdict, changed, from_the_output
from chainer_ooc.schedule.schedule import demand_of, lay_out
from chainer_ooc.simulate.compiled import Needs, Outcome, evaluator_of
from chainer_ooc.simulate.simulator import run

Verdicts = tuple[Verdict, ...]
_look_up: ContextVar[Callable[[], None] | None] = ContextVar('look_up', default=None)

#: With more swapped maps than this, copies that cost nothing in the simulator are not spared one by one.
SPARED_MAPS = 512


class SearchStoppedError(Exception):
    """What `searching_beside` was given wants no result any more."""


@contextlib.contextmanager
def searching_beside(look_up: Callable[[], None]) -> Iterator[None]:
    """Searches in this thread, beside other work: they call `look_up` between evaluations, which may wait or raise.

    They show no progress bar.
    """
    token = _look_up.set(look_up)
    try:
        yield
    finally:
        _look_up.reset(token)


def largest_fitting(fitting: int, too_large: int, fits: Callable[[int], bool]) -> int:
    """Bisects for the largest number that fits.

    Args:
        fitting: known to fit, or below all that may; it is the answer if nothing above it fits.
        too_large: known not to fit, or above all that may.
        fits: if it holds of a number, it holds of the smaller ones.
    """
    while too_large - fitting > 1:
        _pause()
        middle = (fitting + too_large) // 2
        if fits(middle):
            fitting = middle
        else:
            too_large = middle
    return fitting


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a decision comes to.

    Attributes:
        decision: of what.
        floor_bytes: the smallest budget that is enough without early swap-ins.
        needed_bytes: the smallest budget that is enough.
        fits: `make_plan` would take it.
        seconds: simulated time of an iteration; infinite if it does not fit.
    """

    decision: Decision
    floor_bytes: int
    needed_bytes: int
    fits: bool
    seconds: float


def evaluate(problem: Problem, decision: Decision, without: int = -1) -> Evaluation:
    """Lays a decision out and simulates it; a map `without` bytes takes no memory, and no bytes have to be copied."""
    _pause()
    evaluator = evaluator_of(problem)
    outcome = evaluator.evaluate(decision, problem.budget_bytes, without) if evaluator else None
    if outcome is None:
        return _evaluated_in_python(problem if without < 0 else without_bytes_of(problem, without), decision)
    return Evaluation(decision, outcome.floor_bytes, outcome.needed_bytes,
                      outcome.needed_bytes <= problem.budget_bytes, outcome.seconds)


def compiled_question(problem: Problem, decision: Decision, codes: bytearray,
                      shared: bytearray | None) -> Callable[[], Outcome | None] | None:
    """`Evaluator.asks`, under the problem's budget; None where there is no compiled code."""
    evaluator = evaluator_of(problem)
    return evaluator.asks(decision, problem.budget_bytes, codes, shared) if evaluator else None


def needs(problem: Problem, decision: Decision) -> Needs:
    """What a decision needs at each position, before any swap-in comes early."""
    _pause()
    evaluator = evaluator_of(problem)
    found = evaluator.needs(decision, problem.budget_bytes) if evaluator else None
    return needs_in_python(problem, decision) if found is None else found


def needs_in_python(problem: Problem, decision: Decision) -> Needs:
    """The same where nothing is compiled."""
    chains, _, need = demand_of(problem, decision)
    first_use = [uses[0] if uses else -1 for uses in chains.uses]
    return Needs(need, np.array(first_use, np.int64), np.array(chains.restored, np.int64))


def _pause() -> None:
    look_up = _look_up.get()
    if look_up is not None:
        look_up()


def _evaluated_in_python(problem: Problem, decision: Decision) -> Evaluation:
    schedule = lay_out(problem, decision)
    fits = schedule.fits(problem.budget_bytes)
    return Evaluation(decision, schedule.floor_bytes, schedule.needed_bytes, fits,
                      run(problem, schedule)[0] if fits else float('inf'))


def without_bytes_of(problem: Problem, map_id: int) -> Problem:
    """The same iteration, in which one map has no bytes, so that its copies take no time."""
    maps = list(problem.trace.maps)
    maps[map_id] = replace(maps[map_id], nbytes=0)
    return replace(problem, trace=replace(problem.trace, maps=tuple(maps)))


def _shown(items: Sequence[int], what: str) -> Iterable[int]:
    """Items with a progress bar, or without where there is no memory to load it into: a training is under way."""
    try:
        from chainer_ooc.classify.progress import Bar  # here, as `doctor` has to run where nothing is installed
    except (ImportError, MemoryError, OSError):
        return items
    return Bar(items, desc=what, delay=1.0, disable=None, leave=False)


class Search:
    """A walk over verdicts, from a decision that need not fit.

    Attributes:
        found: the best decision so far, evaluated.
    """

    def __init__(self, problem: Problem, first: Decision):
        self.problem = problem
        self.found = evaluate(problem, first)
        self._ends = time.monotonic() + problem.limit_seconds

    @property
    def best(self) -> Decision:
        """The best decision so far."""
        return self.found.decision

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        _pause()
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
            self.found = found
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
                self.found = found

    def watched(self, items: Sequence[int], what: str) -> Iterator[int]:
        """Gives items until the time is up, with a progress bar on a terminal if that takes more than a second."""
        for each in items if _look_up.get() is not None else _shown(items, what):
            if self.is_over:
                return
            yield each
