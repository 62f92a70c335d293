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

from chainer_ooc.classify.bound import NoSolverError, lower_bound
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.plans.making import in_core, make_plan, plan_of
from chainer_ooc.plans.plan import Plan
from chainer_ooc.plans.run import Run
from chainer_ooc.problem import Decision, Problem, Verdict
from chainer_ooc.report.memory import Blocks, Kind, by_kind, find_blocks
from chainer_ooc.report.reasons import Reason, Reasons
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.simulate.timeline import Stream, Timeline
from chainer_ooc.trace import Trace

#: So many budgets by default, from the smallest that works to the one in which everything stays.
BUDGETS = 7


@dataclass(frozen=True)
class Course:
    """The iteration under a plan, as the simulator has it.

    Attributes:
        plan: its verdicts, seconds and peak, and the budget.
        bound_seconds: no plan is faster, proven; None where that is not known, or the plan is `mapped`.
        timeline: of it.
        kinds: what near memory holds at each position.
        reasons: for each map that a function retains, in the order of ids, why it has its verdict.
    """

    plan: Plan
    bound_seconds: float | None
    timeline: Timeline
    kinds: tuple[Kind, ...]
    reasons: tuple[Reason, ...]

    @property
    def gap(self) -> float | None:
        """How much longer than the bound it takes at most: 0.02 is two percent."""
        return self.plan.seconds / self.bound_seconds - 1 if self.bound_seconds else None

    def copied_bytes(self, trace: Trace, stream: Stream) -> int:
        """What is copied in one direction."""
        return sum(trace.maps[each.subject].nbytes for each in self.timeline.tasks if each.stream is stream)


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
    blocks: Blocks
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
    chosen = [*budgets] or _between(_floor(policy, problem), whole.peak_bytes)
    if problem.budget_bytes > 1:
        apart_bytes = 0 if budgets else problem.budget_bytes // 50
        chosen = [each for each in chosen if abs(each - problem.budget_bytes) > apart_bytes] + [problem.budget_bytes]
    ascending = sorted(set(chosen))
    courses: list[Course] = []
    for budget_bytes in steps(ascending):
        known = tuple(each.plan.decision() for each in courses[-1:])  # what was found for less memory is known
        here = replace(problem, budget_bytes=budget_bytes, known=known)
        own = run is not None and budget_bytes == run.plan.budget_bytes
        courses.append(_course(here, blocks, run.plan.decision() if own and run is not None else None, policy))
    shown = ascending.index(problem.budget_bytes) if problem.budget_bytes > 1 else len(ascending) // 2
    return Report(title, problem.trace, policy.name, whole, blocks, tuple(courses), shown,
                  None if run is None else run.timeline)


def _floor(policy: Policy, problem: Problem) -> int:
    """The smallest budget that the policy plans for."""
    try:
        return make_plan(policy, replace(problem, budget_bytes=1)).budget_bytes
    except InfeasibleBudgetError as error:
        return error.floor_bytes


def _between(floor_bytes: int, peak_bytes: int) -> list[int]:
    """Budgets from one to the other, each larger than the one before by the same factor: what is lost falls fast."""
    if not 0 < floor_bytes < peak_bytes:
        return [max(1, floor_bytes)]
    factor = (peak_bytes / floor_bytes) ** (1 / (BUDGETS - 1))
    return [floor_bytes, *(math.ceil(floor_bytes * factor ** step) for step in range(1, BUDGETS - 1)), peak_bytes]


def _course(problem: Problem, blocks: Blocks, decision: Decision | None, policy: Policy) -> Course:
    plan = make_plan(policy, problem) if decision is None else plan_of(policy.name, problem, lay_out(problem, decision))
    decided = plan.decision()
    schedule = lay_out(problem, decided)
    timeline = simulate(problem, schedule)
    try:
        bound = None if plan.mapped else lower_bound(problem)
    except NoSolverError:
        bound = None
    reasons = Reasons(problem, decided, timeline)
    return Course(plan, None if bound is None else bound.seconds, timeline,
                  by_kind(problem, schedule, timeline, blocks),
                  tuple(reasons.of(each) for each in problem.trace.maps if each.retained))


def counts(plan: Plan) -> dict[str, int]:
    """Number of maps by verdict."""
    return {verdict.value: plan.count(verdict) for verdict in Verdict}
