"""A recorded graph and its plans: one for each policy, budget, threshold and what is unaccounted for (P8).

A plan is taken at once, and a better one when the planner has found it::

    recording, times  -->  problem  --planner-->  plan  -->  orders by position
                                       |                        ^
                                       '--searches on-->  better plan, from the next iteration on
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from chainer_ooc.classify.policies import policy_of
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.config import Settings
from chainer_ooc.cost.costs import measured
from chainer_ooc.errors import InfeasibleBudgetError, OocError, SpillError
from chainer_ooc.execute import log
from chainer_ooc.execute.graphs.likeness import Likeness
from chainer_ooc.execute.graphs.orders import Conditions, Orders, far_bytes, give_orders, swapping
from chainer_ooc.execute.graphs.planner import BackgroundSearch, Planner, plan_at_once
from chainer_ooc.execute.graphs.saved_plans import SavedPlans
from chainer_ooc.execute.graphs.shared_plans import SharedPlans
from chainer_ooc.execute.graphs.times import Times, Timing
from chainer_ooc.execute.recording.expected import Models
from chainer_ooc.execute.recording.recorder import written_with
from chainer_ooc.plans.making import in_core, make_as_decided
from chainer_ooc.plans.plan import Plan
from chainer_ooc.problem import Problem, Standing
from chainer_ooc.ranks.agreement import Offer
from chainer_ooc.trace import Trace
from chainer_ooc.trace.scaling import scale

#: So many recordings of a graph do not count if the device prepared kernels in them; a program that always has new ones
#: gets a plan all the same.
MOST_PREPARING = 2

#: How finely estimates grow: by a fourth root of two.
ESTIMATES_PER_DOUBLING = 4

_Made = TypeVar('_Made')


@dataclass(frozen=True)
class Sources:
    """Where an iteration's plans come from.

    Attributes:
        planner: makes them, and may search on for a better one, which is taken in a later iteration.
        reserve: called with the bytes that a plan will have in far memory; raises SpillError if they do not fit.
        saved: the file that they were loaded from, and go to, or None.
        shared: those that ranks have in common, or None.
    """

    planner: Planner
    reserve: Callable[[int], None]
    saved: SavedPlans | None = None
    shared: SharedPlans | None = None


@dataclass
class _Planned:
    """What a graph has for one policy, budget, threshold and what is unaccounted for.

    Attributes:
        orders: those in force, or None.
        told: what holds for all ranks, as far as it was looked at.
        taken: the plan that was laid out for what was told, as long as it holds here.
        offered: the last plan that the other ranks were offered.
    """

    orders: Orders | None = None
    told: Offer | None = None
    taken: Plan | None = None
    offered: Plan | None = None


@dataclass
class Graph(Likeness):
    """A recorded graph; see `Likeness` for other attributes.

    Attributes:
        recordings: how many iterations of it were recorded.
        preparing: how many of these say nothing about later ones, as the device prepared kernels for them.
        slack_bytes: of the budget, what plans leave alone: see `note_shortage`.
        times: what its iterations took.
        left_bytes, left_alone_bytes: what iterations before had left when it ran last; of it, what are no feature maps.
        used: what its last iterations did with parameters.
        is_disturbed: other threads were at work while it was recorded.
        has_returned: it was met again.
        makes_graphs, has_failing_calls: its backward pass does; errors of calls were caught as it ran last.
        reused_by_others: how many reused maps others had that are alike, by their numbers.
        differences: how often it seemed to run quietly, and was another one.
        is_metered: what calls allocate was measured, and not estimated from another size.
        is_loose: an estimate for any sizes behind the beginning, see `loosely`.
        is_guess: an estimate that may be too low, of a larger size than was recorded, or of any.
        varies: several sizes of it are known, which differ behind the beginning, so that more have to be expected.
        is_loaded: its plan is in the file that it came from.
        plan: the latest; it stays while the next one is not made yet.
    """

    trace: Trace
    times: Times
    recordings: int = 1
    preparing: int = 0
    is_metered: bool = True
    is_estimate: bool = False
    is_loose: bool = False
    is_guess: bool = False
    varies: bool = False
    is_loaded: bool = False
    plan: Plan | None = None
    left_bytes: int = 0
    left_alone_bytes: int = 0
    used: Models = field(default_factory=Models)
    is_disturbed: bool = False
    number: int = 0
    has_returned: bool = False
    makes_graphs: bool = False
    has_failing_calls: bool = False
    differences: int = 0
    slack_bytes: int = 0
    reused_by_others: dict[int, int] = field(default_factory=dict)
    _under: dict[tuple[object, ...], _Planned] = field(default_factory=dict)
    _foreseen: dict[tuple[object, ...], tuple[frozenset[int], int] | None] = field(default_factory=dict)
    _swapping: tuple[Orders, frozenset[int], Orders] | None = None
    _search: tuple[_Planned, BackgroundSearch] | None = None
    _in_core: tuple[Problem, Plan] | None = None
    _followed: list[Plan] = field(default_factory=list)
    _held: set[int] = field(default_factory=set)
    _exposed: set[int] = field(default_factory=set)
    _estimates: dict[int, Graph] = field(default_factory=dict)
    _common: dict[int, int] = field(default_factory=dict)
    _loose: Graph | None = None
    _min_bytes: int = 0

    def orders_for(self, conditions: Conditions, sources: Sources) -> Orders:
        """Plans, once for each policy, budget, threshold and what is unaccounted for, which is in what stands.

        Of several ranks the plan is taken that holds for all, where it holds here.

        Raises:
            InfeasibleBudgetError: no plan keeps within the budget.
            PlanMismatchError: the loaded plan does not hold here.
            SpillError: far memory is too small.
        """
        saved, shared = sources.saved, None if self.is_estimate or self.is_loaded else sources.shared
        settings, budget_bytes = conditions.settings, conditions.budget_bytes
        planned = self._under.setdefault(conditions.terms, _Planned())
        if planned.orders is not None:
            self.take_better(planned, sources, settings.min_bytes)
        if shared is not None:
            self._take_shared(planned, shared, conditions, sources)
        if planned.orders is None:
            self._stop_search()
            standing = conditions.standing_of(self.used)
            plan = saved.plan_for(self.trace, settings, budget_bytes) if saved is not None and self.is_loaded else None
            if plan is None:
                plan, search = self._planned(settings, budget_bytes, standing, sources.planner.plan)
                self._search = None if search is None else (planned, search)
            self._take(planned, plan, standing, sources, settings.min_bytes)
        assert planned.orders is not None
        self.plan, self._min_bytes = planned.orders.plan, settings.min_bytes
        plan = self.plan
        if shared is not None and plan is not planned.taken and plan is not planned.offered:
            planned.offered = plan
            shared.offer(self.trace, settings, plan, conditions.standing_of(self.used))
        if saved is not None and not self.is_estimate:
            saved.keep(self.trace, plan, settings.min_bytes, self.is_metered)
        return planned.orders

    def discardable_under(self, conditions: Conditions) -> tuple[frozenset[int], int] | None:
        """What its plan discards, or would, and the plan's peak; None if there is none. See `orders_for`."""
        key, settings = conditions.terms, conditions.settings
        planned = self._under.get(key)
        if planned is not None and planned.orders is not None:
            return planned.orders.discardable, planned.orders.plan.peak_bytes
        if key not in self._foreseen:
            self._foreseen[key] = None
            with contextlib.suppress(OocError):  # it is told when the graph is followed
                plan = self._planned(settings, conditions.budget_bytes, conditions.standing_of(self.used), plan_at_once)
                orders = give_orders(self.trace, plan, settings.min_bytes, Standing(0, 0))
                self._foreseen[key] = orders.discardable, plan.peak_bytes
        return self._foreseen.get(key)

    def swapping(self, orders: Orders, maps: frozenset[int], sources: Sources) -> Orders:
        """Its orders with some of the maps swapped out that they discard; the same where far memory has no room."""
        if self._swapping is None or self._swapping[:2] != (orders, maps):
            self._swapping, found = (orders, maps, orders), swapping(orders, maps)
            with contextlib.suppress(SpillError):
                sources.reserve(far_bytes(self.trace, found))
                self._swapping = orders, maps, found
        return self._swapping[2]

    def _take(self, planned: _Planned, plan: Plan, standing: Standing, sources: Sources, min_bytes: int) -> Orders:
        if standing.expected_bytes:  # with what stands now, its peak is another one
            plan = make_as_decided(policy_of(plan.policy), Problem(
                self.trace, self.times.costs, standing, plan.budget_bytes, min_bytes), plan.decision())
        orders = give_orders(self.trace, plan, min_bytes, standing)
        sources.reserve(far_bytes(self.trace, orders))
        planned.orders = orders
        return orders

    def _take_shared(self, planned: _Planned, shared: SharedPlans, conditions: Conditions, sources: Sources) -> None:
        """Takes the plan that holds for all ranks if it is another than the one in force, and holds here."""
        settings = conditions.settings
        told, before = shared.told(self.trace, settings), planned.orders
        if told is None or told is planned.told or (before is None and shared.is_own(told)):
            return
        planned.told = told
        if before is not None and (before.plan.decision() == told.plan
                                   or (shared.is_own(told) and before.plan is not planned.taken)):
            return
        standing = conditions.standing_of(self.used)
        try:
            plan = self._planned(settings, conditions.budget_bytes, standing,
                                 functools.partial(make_as_decided, decision=told.plan))
            orders = self._take(planned, plan, standing, sources, settings.min_bytes)
        except OocError as error:
            log.logger.info('the plan of rank %d does not hold here: %s', told.rank, error)
            planned.taken = None  # the one in force is for less room: others hear of it
            return
        self._stop_search()
        planned.taken = orders.plan
        log.logger.info('follows the plan of rank %d: %.3f s an iteration', told.rank, plan.seconds)

    def take_better(self, planned: _Planned, sources: Sources, min_bytes: int) -> None:
        """Takes what a search has found meanwhile, if it is faster.

        Raises:
            InfeasibleBudgetError: it was the first to ask the policy, which has no plan.
        """
        if self._search is None or self._search[0] is not planned or not self._search[1].is_over:
            return
        search, before = self._search[1], planned.orders
        if isinstance(search.error, InfeasibleBudgetError):
            raise search.error  # each time that it is asked for
        self._search = None
        if search.error is not None:
            log.logger.warning('the search for a better plan has failed, and the first one stays: %r', search.error)
        elif search.plan is not None and before is not None and (
                search.is_awaited or search.plan.seconds < before.plan.seconds):
            with contextlib.suppress(SpillError):  # the plan that is there moves less
                self._take(planned, search.plan, before.standing, sources, min_bytes)
                log.logger.info('a better plan was found in %.1f s: %.3f s an iteration, not %.3f s',
                                search.seconds, search.plan.seconds, before.plan.seconds)
        else:
            log.logger.info('no better plan was found in %.1f s', search.seconds)

    @property
    def is_searching(self) -> bool:
        """Whether a better plan is being looked for."""
        return self._search is not None and not self._search[1].is_over

    def _stop_search(self) -> None:
        if self._search is not None:
            self._search[1].stop()
            self._search = None

    def _planned(self, settings: Settings, budget_bytes: int, standing: Standing,
                 make: Callable[[Policy, Problem], _Made]) -> _Made:
        problem = Problem(self.trace, self.times.costs, standing, budget_bytes, settings.min_bytes,
                          known=() if self.plan is None else (self.plan.decision(),))
        if self.slack_bytes or standing.expected_bytes:
            with contextlib.suppress(InfeasibleBudgetError):  # better short now and then than refused
                return make(policy_of(settings.policy), replace(
                    problem, standing=standing.to_come(0), budget_bytes=max(1, budget_bytes - self.slack_bytes)))
        return make(policy_of(settings.policy), problem)

    def in_core(self, min_bytes: int, standing: Standing) -> Plan:
        """The plan of policy keep in unlimited memory, with the times that are known now."""
        problem = Problem(self.trace, self.times.costs, standing, 1, min_bytes)
        if self._in_core is None or self._in_core[0] != problem:
            self._in_core = problem, in_core(problem)
        return self._in_core[1]

    def record_again(self, trace: Trace, metered: bool) -> None:
        """Takes a newer recording; plans are made anew."""
        self.learn(trace)  # first, or after an interrupt an estimate would pass for what was measured
        self.times = Times(measured(trace))
        self.is_metered = metered
        self.recordings += 1

    def may_be_quiet(self) -> bool:
        """Whether all that it does was measured on this machine, and belongs to it alone."""
        return (self.is_metered and not self.is_estimate and not self.is_loaded and not self.makes_graphs
                and self.trace.is_self_contained)

    def is_recorded(self, iterations: int) -> bool:
        """Whether so many iterations were recorded that count."""
        return self.recordings - min(self.preparing, MOST_PREPARING) >= iterations

    def note_followed(self) -> bool:
        """Notes that an iteration has followed the plan; whether one did before: the first has new memory."""
        known = any(self.plan is each for each in self._followed)
        if not known and self.plan is not None:
            self._followed.append(self.plan)
        return known

    def note_timing(self, plan: Plan | None, timing: Callable[[], Timing]) -> None:
        """Adds what an iteration under a plan took; plans are made anew if they expected something else."""
        if plan is self.plan and not self.is_loaded and self._search is None and self.times.note(timing()):
            self._forget_orders()

    def note_shortage(self, missing_bytes: int) -> None:
        """Has plans leave more of the budget alone: an allocation lacked so much, as free memory is fragmented.

        From the next iteration on they leave that much more, and each time at least twice as much as before, since
        every plan lays memory out anew, and planning takes time. The first iteration under a plan does not count: what
        the one before left is still in its way.
        """
        followed = self.plan is not None and any(self.plan is each for each in self._followed)
        if missing_bytes and followed and not self.is_loaded:
            self.slack_bytes += max(missing_bytes, self.slack_bytes)
            self._forget_orders()

    def refusal(self, settings: Settings, budget_bytes: int, standing: Standing) -> InfeasibleBudgetError | None:
        """The refusal of a budget, or None if a plan keeps within it."""
        try:
            self._planned(settings, budget_bytes, standing, plan_at_once)
        except InfeasibleBudgetError as error:
            return error
        return None

    def _forget_orders(self) -> None:
        self._stop_search()
        for known in (self._under, self._foreseen, self._followed):
            known.clear()
        self._swapping = None

    def learn(self, recording: Trace | None = None, *, reused: Iterable[int] = (), held: Iterable[int] = (),
              exposed: Iterable[int] = ()) -> None:
        """Takes a newer recording, and what is new of maps; keeps what was learnt, which that may not have shown.

        Args:
            recording: None for the one that is there.
            reused: maps that a later backward pass reads: from the next iteration on no plan loses them.
            held: maps that the program holds after their last use: from the next iteration on plans count with that.
            exposed: maps that the program reads in forward: no later plan makes again what it may change.
        """
        trace = self.trace if recording is None else recording
        changed = (each for each in exposed if not self.trace.maps[each].written)
        known = self.trace.reused, self._held, self._exposed
        learnt = self.trace.reused.union(reused), self._held.union(held), self._exposed.union(changed)
        if trace is self.trace and known == learnt:
            return
        written = written_with(trace.calls, learnt[2])
        maps = tuple(
            replace(each, reused=each.reused or each.id in learnt[0], held=each.held or each.id in learnt[1],
                    written=each.written or each.id in written)
            for each in trace.maps)
        self._forget_orders()
        self._estimates.clear()
        self._loose = None
        # At last, and in this order, as an interrupt before has it learnt once more.
        self.is_loaded, self.trace, self._held, self._exposed = False, replace(trace, maps=maps), *learnt[1:]

    def lose_none(self, retained_alone: bool = False) -> None:
        """Has plans lose no map any more, or none that functions retain."""
        self.learn(reused=[each.id for each in self.trace.maps if each.retained or not retained_alone])

    def load(self) -> None:
        """Takes the plan for its trace from the file that both came from."""
        self.is_loaded, self.recordings = True, sys.maxsize
        self._held.update(each.id for each in self.trace.maps if each.held)

    def first_bytes(self) -> int:
        """Size of the first call's first input, which may be a part of its block, or 0 if that is no feature map."""
        first = self.trace.calls[0]
        return first.arguments[0].nbytes if first.inputs and first.inputs[0] >= 0 else 0

    def estimate(self, first_bytes: int) -> Graph:
        """The same graph for a first input of another size; sizes that are near each other share one."""
        doublings = max(0, math.ceil(ESTIMATES_PER_DOUBLING * math.log2(first_bytes / self.first_bytes())))
        if doublings not in self._estimates:
            trace = scale(self.trace, 2 ** (doublings / ESTIMATES_PER_DOUBLING))
            self._estimates[doublings] = Graph(
                trace, Times(measured(trace)), self.recordings, is_metered=False, is_estimate=True,
                is_guess=doublings > 0, used=self.used)
        return self._estimates[doublings]

    def loosely(self) -> Graph:
        """The same graph with other sizes behind a beginning that is known."""
        if self._loose is None:
            self._loose = Graph(self.trace, Times(self.times.costs), self.recordings, self.preparing, is_metered=False,
                                is_estimate=True, is_loose=True, is_guess=True, used=self.used,
                                makes_graphs=self.makes_graphs)
        return self._loose

    def stays(self, settings: Settings) -> bool:
        """Whether its plan moves nothing, and is for this policy and threshold."""
        return self.plan is not None and self.plan.moves_nothing and (
            (self.plan.policy, self._min_bytes) == (settings.policy, settings.min_bytes))
