"""What a report shows, as one frozen value: an iteration under plans for several budgets, and as it was measured.

    trace, costs --budgets--> plans --simulated--> Course, Course, ...  \
                                                                           Report --> page, picture, events
    Run (a training's own iteration) ----------------measured---------->  /

Everything is worked out here, so that what draws it only draws. Left out: policies beside each other (``compare``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chainer_ooc.classify.bound import Bound, known_bound
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.plans.making import floor_of, in_core, plan_of, plan_within
from chainer_ooc.plans.plan import Plan
from chainer_ooc.plans.run import Run
from chainer_ooc.problem import Problem, problem_of
from chainer_ooc.report.memory import Kind, ModelBlocks, by_kind, find_blocks
from chainer_ooc.report.reasons import Reason, Reasons
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.simulate.timeline import Stream, Timeline
from chainer_ooc.trace import Trace

#: So many budgets by default, from the smallest that works to the one in which everything stays.
BUDGETS = 7
#: What the streams of a timeline are called.
LANES = {Stream.COMPUTE: 'compute', Stream.COPY_OUT: 'copies out', Stream.COPY_IN: 'copies in'}


@dataclass(frozen=True)
class Course:
    """The iteration under a plan, as the simulator has it.

    Attributes:
        plan: its verdicts, seconds and peak, and the budget.
        bound: no plan is faster, proven; None where that is not known, or the plan is `mapped`.
        timeline: of it.
        kinds: what near memory holds at each position.
        reasons: for each map that a function retains, in the order of ids, why it has its verdict.
    """

    plan: Plan
    bound: Bound | None
    timeline: Timeline
    kinds: tuple[Kind, ...]
    reasons: tuple[Reason, ...]

    @property
    def gap(self) -> float | None:
        """How much longer than the bound it takes at most: 0.02 is two percent."""
        return None if self.bound is None else self.bound.gap(self.plan.seconds)

    @property
    def bound_seconds(self) -> float | None:
        """The bound; None where it is not known."""
        return None if self.bound is None else self.bound.seconds

    def facts(self) -> dict[str, Any]:
        """What it comes to, JSON-ready."""
        return {'budget_bytes': self.plan.budget_bytes, 'seconds': self.plan.seconds, 'gap': self.gap,
                'peak_bytes': self.plan.peak_bytes, 'stall_seconds': self.timeline.stall_seconds, **self.plan.counts()}

    def copied_bytes(self, trace: Trace, stream: Stream) -> int:
        """What is copied in one direction."""
        return sum(trace.maps[each.subject].nbytes for each in self.timeline.of(stream))


@dataclass(frozen=True)
class Report:
    """A report.

    Attributes:
        title: what it is about.
        trace: the iteration, with the times of the machine that it is simulated on.
        policy: which planned.
        in_core: the plan of policy `keep` in unlimited memory.
        blocks: the parts of the model.
        courses: one for each budget, ascending.
        shown: the number of the course that it is about; the others are beside it.
        measured: that iteration as it ran, or None.
    """

    title: str
    trace: Trace
    policy: str
    in_core: Plan
    blocks: ModelBlocks
    courses: tuple[Course, ...]
    shown: int
    measured: Timeline | None = None

    @property
    def course(self) -> Course:
        """The course that it is about."""
        return self.courses[self.shown]


def make_report(title: str, policy: Policy, problem: Problem, budgets: Sequence[int] = (), run: Run | None = None,
                steps: Callable[[Iterable[int]], Iterable[int]] = iter) -> Report:
    """Plans for each budget, and works out all that a report shows.

    Args:
        title: what it is about.
        policy: it plans; for the budget of a run its own plan stands.
        problem: its budget is that of the course which is shown; 1 for the middle one.
        budgets: in bytes; by default `BUDGETS` from the smallest that works to the one in which everything stays.
        run: as it ran; `problem` is about its trace, and has its budget.
        steps: is given the budgets and gives them again, such as a progress bar.

    Raises:
        InfeasibleBudgetError: the policy has no plan within a budget that was named.
    """
    whole, blocks = in_core(problem), find_blocks(problem.trace)
    named = {*budgets, *([problem.budget_bytes] if problem.budget_bytes > 1 else [])}
    courses: list[Course] = []
    for budget_bytes in steps(sorted(named | _others(policy, problem, whole.peak_bytes, budgets))):
        known = tuple(each.plan.decision() for each in courses[-1:])  # what was found for less memory is known
        here = replace(problem, budget_bytes=budget_bytes, known=known)
        try:
            own = run is not None and run.plan.budget_bytes == budget_bytes
            courses.append(_course(here, blocks, _plan(here, run) if run and own else plan_within(policy, here)))
        except InfeasibleBudgetError:  # some policies refuse budgets above one that they take
            if budget_bytes in named:
                raise
    shown = [each.plan.budget_bytes for each in courses].index(problem.budget_bytes) if (
        problem.budget_bytes > 1) else len(courses) // 2
    return Report(title, problem.trace, policy.name, whole, blocks, tuple(courses), shown,
                  None if run is None else run.timeline)


def report_of(title: str, run: Run) -> Report:
    """What a report shows of a run alone: its own plan, with no bound, no reasons and no other budgets.

    Nothing is planned or proven, so that a training can afford it.
    """
    problem, blocks = problem_of(run.trace, run.plan.budget_bytes, run.min_bytes), find_blocks(run.trace)
    course = _simulated(problem, blocks, _plan(problem, run))
    return Report(title, run.trace, course.plan.policy, in_core(problem), blocks, (course,), 0, run.timeline)


def _others(policy: Policy, problem: Problem, peak_bytes: int, budgets: Sequence[int]) -> set[int]:
    """The budgets beside those that were named: by default from the smallest to the largest, none next to another."""
    if budgets:
        return set()
    return {each for each in _between(_floor(policy, problem), peak_bytes)
            if problem.budget_bytes == 1 or abs(each - problem.budget_bytes) > problem.budget_bytes // 50}


def _floor(policy: Policy, problem: Problem) -> int:
    """The smallest budget that the policy plans for."""
    refused = floor_of(policy, problem)
    return 1 if refused is None else refused.floor_bytes


def _between(floor_bytes: int, peak_bytes: int) -> list[int]:
    """Budgets from one to the other, each larger than the one before by the same factor: what is lost falls fast."""
    if not 0 < floor_bytes < peak_bytes:
        return [max(1, floor_bytes)]
    factor = (peak_bytes / floor_bytes) ** (1 / (BUDGETS - 1))
    return [floor_bytes, *(math.ceil(floor_bytes * factor ** step) for step in range(1, BUDGETS - 1)), peak_bytes]


def _plan(problem: Problem, run: Run) -> Plan:
    """The run's own plan, as the simulator has it for the problem's times."""
    return plan_of(run.plan.policy, problem, lay_out(problem, run.plan.decision()))


def _course(problem: Problem, blocks: ModelBlocks, plan: Plan) -> Course:
    course = _simulated(problem, blocks, plan)
    reasons = Reasons(problem, plan, course.timeline)
    return replace(course, bound=None if plan.mapped else known_bound(problem),
                   reasons=tuple(reasons.of(each) for each in problem.trace.maps if each.retained))


def _simulated(problem: Problem, blocks: ModelBlocks, plan: Plan) -> Course:
    """The course without what takes long: a bound, and the reasons of verdicts."""
    schedule = lay_out(problem, plan.decision())
    timeline = simulate(problem, schedule)
    return Course(plan, None, timeline, by_kind(problem, schedule, timeline, blocks), ())
