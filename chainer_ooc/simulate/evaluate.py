"""What a decision comes to: its course, and, when somebody asks, its time.

Policies may not import the schedule's room; this is the door through which they try a decision out.

Source: PoocH 4.1.2 (a classification is judged by its simulated timeline).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from chainer_ooc.problem import Decision, Problem
from chainer_ooc.schedule.course import Course, lay_out
from chainer_ooc.simulate.simulator import run


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A decision that was tried out. It is simulated when its time or its peak is asked for.

    Attributes:
        problem: what was decided about.
        course: the decision laid out over the positions.
    """

    problem: Problem
    course: Course

    @cached_property
    def fits(self) -> bool:
        """Whether `make_plan` would take it."""
        return self.course.fits(self.problem.budget_bytes)

    @property
    def seconds(self) -> float:
        """Simulated time of an iteration; infinite if it does not fit."""
        return self._result[0] if self.fits else float('inf')

    @property
    def peak_bytes(self) -> int:
        """Simulated peak of near memory."""
        return self._result[1]

    @cached_property
    def _result(self) -> tuple[float, int]:
        return run(self.problem, self.course)


def evaluate(problem: Problem, decision: Decision) -> Evaluation:
    """Lays a decision out."""
    return Evaluation(problem, lay_out(problem, decision))
