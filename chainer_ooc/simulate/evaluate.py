"""What a decision costs: the question that a search asks again and again."""

from __future__ import annotations

from dataclasses import dataclass

from chainer_ooc.classify.decision import Decision
from chainer_ooc.cost.problem import Problem
from chainer_ooc.schedule.course import Course, lay_out
from chainer_ooc.simulate.simulator import run


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A decision's outcome.

    Attributes:
        course: the decision laid out.
        seconds: time of the iteration; infinite if it does not fit.
        peak_bytes: of near memory, simulated; what it would need if it does not fit.
        fits: it keeps within the budget.
    """

    course: Course
    seconds: float
    peak_bytes: int
    fits: bool


def evaluate(problem: Problem, decision: Decision) -> Evaluation:
    """Lays a decision out and simulates it, if it fits."""
    course = lay_out(problem, decision)
    if not course.fits(problem.budget_bytes):
        return Evaluation(course, float('inf'), max(course.floor_bytes, course.scheduled_bytes), False)
    seconds, peak_bytes = run(problem, course)
    return Evaluation(course, seconds, peak_bytes, True)
