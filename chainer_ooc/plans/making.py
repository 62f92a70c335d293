"""Makes plans: a policy decides, its decision is laid out, and it is simulated or refused with a budget that works."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import Evaluation, evaluate
from chainer_ooc.cost.workspace import could_have, with_workspace
from chainer_ooc.errors import InfeasibleBudgetError, OocError
from chainer_ooc.plans.gap import gap_of
from chainer_ooc.plans.plan import Plan
from chainer_ooc.problem import Decision, Problem, everything, fault_of
from chainer_ooc.quantities import MOST_BYTES
from chainer_ooc.schedule.schedule import Schedule, lay_out
from chainer_ooc.simulate.simulator import run

#: The ratio of the budgets that `plan_within` tries. By the guide 1.02 times a floor that a refusal names works.
MARGIN = 1.02
#: Of that ratio, by how many steps smaller. Each try is a search of the policy's own.
SMALLER_STEPS = (1, 2, 4, 8, 16, 35)


def make_plan(policy: Policy, problem: Problem) -> Plan:
    """Has the policy decide, lays its decision out and simulates it.

    Raises:
        InfeasibleBudgetError: some position needs more than the budget under the policy's verdicts, or its swap-ins
            come when there is no memory for them; the error has a budget that works and what sets it.
    """
    decided = _Decided(policy, problem)
    if not decided(problem.budget_bytes).fits:
        raise _refusal(policy, _floor_from(decided, problem.budget_bytes))
    return decided.plan(problem.budget_bytes)


def plan_within(policy: Policy, problem: Problem) -> Plan:
    """`make_plan` for training: a policy that refuses a budget, and takes a smaller one, decides as if it had that.

    Such are policies whose swap-ins start without a look at memory, and one that recomputes what goes first. With more
    memory they keep more, and what they need grows past it: a budget above a floor that was named would be refused
    again. Commands that foretell a training use it; the papers' tables show such policies as they are.
    """
    decided = _Decided(policy, problem)
    if policy.may_need_more and not decided.may_fit(problem.budget_bytes):
        raise _refusal(policy, _floor(decided))
    if decided(problem.budget_bytes).fits:
        return decided.plan(problem.budget_bytes)
    if not decided.may_need_more:
        raise _refusal(policy, _floor_from(decided, problem.budget_bytes))
    for less_bytes in _smaller(problem.budget_bytes):
        if decided(less_bytes).needed_bytes <= problem.budget_bytes:
            return decided.plan(less_bytes)
    floor = _floor(decided)
    if floor.needed_bytes > problem.budget_bytes:
        raise _refusal(policy, floor)
    return decided.plan(floor.works_as_bytes)


def make_as_decided(policy: Policy, problem: Problem, decision: Decision) -> Plan:
    """The plan of a decision on the same graph that was made elsewhere, such as by another rank.

    Swap-ins start where it has them, or later where there is no room for them here.

    Raises:
        InfeasibleBudgetError: some position needs more than the budget under these verdicts.
        OocError: a map cannot have its verdict here, where no budget helps.
    """
    fault = fault_of(problem.trace, decision, problem.min_bytes)
    if fault:
        raise OocError(f'the decision cannot be followed here: {fault}')
    schedule = lay_out(problem, decision)
    if not schedule.fits(problem.budget_bytes):
        raise InfeasibleBudgetError(policy.name, problem.budget_bytes, schedule.needed_bytes,
                                    problem.trace.name_of(schedule.floor_at))
    return plan_of(policy.name, problem, schedule)


def floor_of(policy: Policy, problem: Problem) -> InfeasibleBudgetError | None:
    """How the policy refuses a budget of one byte: with the smallest that it plans for; None if that is enough."""
    try:
        plan_within(policy, replace(problem, budget_bytes=1))
    except InfeasibleBudgetError as error:
        return error.with_traceback(None)  # it would keep what was tried alive
    return None


def in_core(problem: Problem) -> Plan:
    """The plan of policy keep without a limit of memory, which others are compared with."""
    return make_plan(POLICIES['keep'], replace(problem, budget_bytes=MOST_BYTES))


class _Decided:
    """What a policy decides within a budget, evaluated. It is asked once about each.

    Attributes:
        may_need_more: see `Policy`; or what was decided last has swap-ins start without a look at memory.
    """

    def __init__(self, policy: Policy, problem: Problem):
        self.policy, self.problem = policy, problem
        self.may_need_more = policy.may_need_more
        self._known: dict[int, Evaluation] = {}

    @property
    def for_floors(self) -> _Decided:
        """The same of the policy that is asked for floors."""
        return self if self.policy.floors_of is None else _Decided(self.policy.floors_of, self.problem)

    @cached_property
    def _unmapped_bytes(self) -> int:
        return max(1, _least_bytes(self.problem))

    @property
    def least_bytes(self) -> int:
        """What no decision of this policy needs less than; of mapped maps that is not known."""
        return 1 if self(self._unmapped_bytes).decision.mapped else self._unmapped_bytes

    def may_fit(self, budget_bytes: int) -> bool:
        """Whether a decision may need no more than that; it is not asked for one if any may."""
        return budget_bytes >= self._unmapped_bytes or budget_bytes >= self.least_bytes

    def __call__(self, budget_bytes: int) -> Evaluation:
        if budget_bytes not in self._known:
            problem = self._within(budget_bytes)
            self._known[budget_bytes] = evaluate(problem, self.policy.decide(problem))
        found = self._known[budget_bytes]
        self.may_need_more = self.policy.may_need_more or not found.decision.starts.checks_memory
        return found

    def lay_out(self, budget_bytes: int) -> Schedule:
        """Lays out what is decided with a budget."""
        return lay_out(self._within(budget_bytes), self(budget_bytes).decision)

    def plan(self, budget_bytes: int) -> Plan:
        """What is decided with a budget, as a plan for the problem's."""
        return plan_of(self.policy.name, self.problem, self.lay_out(budget_bytes))

    def _within(self, budget_bytes: int) -> Problem:
        return replace(self.problem, budget_bytes=budget_bytes)


def _least_bytes(problem: Problem) -> int:
    """What no decision needs less than, but a mapped one: nothing is there but what a position reads and allocates."""
    return evaluate(problem, Decision(everything(problem.trace, problem.min_bytes))).floor_bytes


def _smaller(budget_bytes: int) -> list[int]:
    """Smaller budgets, down to half of it."""
    found = dict.fromkeys(math.ceil(budget_bytes / MARGIN ** step) for step in SMALLER_STEPS)
    return [each for each in found if each < budget_bytes]


def _refusal(policy: Policy, floor: _Floor) -> InfeasibleBudgetError:
    """Names a budget that works, and what sets it."""
    problem, set_at = floor.decided.problem, floor.decided.lay_out(floor.set_as_bytes).floor_at
    return InfeasibleBudgetError(policy.name, problem.budget_bytes, floor.needed_bytes, problem.trace.name_of(set_at),
                                 workspace_floor_bytes=_floor_with_workspace(policy, problem, floor.needed_bytes),
                                 doubt=problem.trace.doubt)


class _Floor(NamedTuple):
    """A budget that works.

    Attributes:
        decided: what names it.
        needed_bytes: the budget.
        set_as_bytes: what is decided as if that were there needs so much.
        works_as_bytes: what is decided as if that were there fits.
    """

    decided: _Decided
    needed_bytes: int
    set_as_bytes: int
    works_as_bytes: int


def _floor(decided: _Decided) -> _Floor:
    """A floor that does not depend on the problem's budget: what is decided with the least that any decision needs.

    Of a budget that nothing fits into some policies try each map in vain. What a policy that may need more of a larger
    budget decides with less may fit too.
    """
    decided = decided.for_floors
    least_bytes = decided.least_bytes
    floor = _floor_from(decided, least_bytes)
    while decided.may_need_more and floor.needed_bytes > least_bytes:
        others = (max(each, least_bytes) for each in _smaller(floor.needed_bytes))
        best = min(others, key=lambda each: decided(each).needed_bytes)
        if decided(best).needed_bytes >= floor.needed_bytes:
            break
        floor = _Floor(decided, decided(best).needed_bytes, best, best)
    return floor


def _floor_from(decided: _Decided, budget_bytes: int) -> _Floor:
    """What a decision needs, and what the policy decides with that; if it is another one, the same of this.

    This ends: each decision needs more than the one before, and there are not more of them than classifications.
    """
    decided = decided.for_floors
    while not decided(floor_bytes := decided(budget_bytes).needed_bytes).fits:
        budget_bytes = floor_bytes
    return _Floor(decided, floor_bytes, budget_bytes, floor_bytes)


def _floor_with_workspace(policy: Policy, problem: Problem, floor_bytes: int) -> int | None:
    """The floor with a workspace; None if that is not worth to be said."""
    if not could_have(problem.trace):
        return None
    found_bytes = _floor(_Decided(policy, replace(problem, trace=with_workspace(problem.trace)))).needed_bytes
    return found_bytes if found_bytes * MARGIN < floor_bytes else None


def plan_of(policy: str, problem: Problem, schedule: Schedule) -> Plan:
    """Simulates a schedule that fits, and makes it a plan."""
    seconds, peak_bytes = run(problem, schedule)
    plan = Plan(policy, problem.budget_bytes, schedule.verdicts, schedule.leaves, schedule.swap_ins, schedule.chains,
                schedule.synchronous, schedule.mapped, peak_bytes, seconds)
    return plan if plan.mapped else plan.asking(partial(gap_of, problem, seconds))
