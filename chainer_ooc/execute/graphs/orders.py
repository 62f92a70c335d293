"""A plan as execution follows it, sorted by position: each call and step looks up its own part."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from chainer_ooc.config import Settings
from chainer_ooc.execute.recording.expected import Models
from chainer_ooc.plans.plan import Plan
from chainer_ooc.problem import Standing, Verdict
from chainer_ooc.schedule.chains import Chains
from chainer_ooc.trace import Trace


@dataclass(frozen=True, eq=False)
class Orders:
    """A plan by position.

    Attributes:
        plan: the plan itself.
        standing: what it has live beside the maps.
        leave_after: maps to swap out after a call or step.
        discard_after: maps to discard after a call, since they will be made again; those that only chains read die
            by themselves.
        free_after: maps to drop after a step, and whether each is lost then (it has no far copy).
        recipes: calls that may run again.
        written: maps that the program has read in forward, and may have written to.
        unmoved: positions that touch only what stays whatever happens, see `_unmoved`.
    """

    plan: Plan
    standing: Standing
    leave_after: Mapping[int, Sequence[int]] = field(default_factory=dict)
    discard_after: Mapping[int, Sequence[int]] = field(default_factory=dict)
    free_after: Mapping[int, Sequence[tuple[int, bool]]] = field(default_factory=dict)
    recipes: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    unmoved: frozenset[int] = frozenset()

    @functools.cached_property
    def discardable(self) -> frozenset[int]:
        """The maps of `discard_after`."""
        return frozenset(each for maps in self.discard_after.values() for each in maps)


#: Of an iteration that follows no plan.
NO_ORDERS = Orders(Plan('', 0, (), (), (), Chains({}, (), ()), False, False, 0, 0.0), Standing(0, 0))


def give_orders(trace: Trace, plan: Plan, min_bytes: int, standing: Standing) -> Orders:
    """Sorts a plan by position."""
    leave_after: dict[int, list[int]] = {}
    discard_after: dict[int, list[int]] = {}
    free_after: dict[int, list[tuple[int, bool]]] = {}
    recipes = plan.chains.calls
    for each, verdict in zip(trace.maps, plan.verdicts, strict=True):
        if verdict is Verdict.SWAP:
            leave_after.setdefault(plan.leaves[each.id], []).append(each.id)
        elif each.producer in recipes and (verdict is Verdict.RECOMPUTE or not each.retained):
            discard_after.setdefault(plan.leaves[each.id], []).append(each.id)
        uses = plan.chains.uses[each.id]
        if uses and each.retained and not each.foreign and each.nbytes >= min_bytes:
            free_after.setdefault(uses[-1], []).append((each.id, verdict is Verdict.KEEP))
    unmoved = frozenset() if plan.synchronous else _unmoved(
        trace, min_bytes, recipes, {*leave_after, *discard_after, *free_after, *recipes})
    written = frozenset(each.id for each in trace.maps if each.written)
    return Orders(plan, standing, leave_after, discard_after, free_after, recipes, written, unmoved)


@dataclass(frozen=True, eq=False)
class Conditions:
    """What plans of an iteration are made for.

    Attributes:
        settings: those of the session.
        budget_bytes: what near memory may hold.
        unaccounted_bytes: of that, what only the device counts, see `Standing.beside`.
        standing_of: what lives beside the maps of a graph, by what it did with parameters.
    """

    settings: Settings
    budget_bytes: int
    unaccounted_bytes: int
    standing_of: Callable[[Models], Standing]

    @property
    def terms(self) -> tuple[object, ...]:
        """What orders of one graph hold for; others are given for other terms."""
        return self.settings.policy, self.budget_bytes, self.settings.min_bytes, self.unaccounted_bytes


def far_bytes(trace: Trace, orders: Orders) -> int:
    """Bytes of all maps that are swapped out."""
    return sum(trace.maps[each].nbytes for maps in orders.leave_after.values() for each in maps)


def swapping(orders: Orders, maps: frozenset[int]) -> Orders:
    """The same orders with some of the maps swapped out that they discard."""
    leave_after, discard_after = ({position: list(each) for position, each in ordered.items()}
                                  for ordered in (orders.leave_after, orders.discard_after))
    for each in maps:
        discard_after[orders.plan.leaves[each]].remove(each)
        leave_after.setdefault(orders.plan.leaves[each], []).append(each)
    return replace(orders, leave_after=leave_after, discard_after=discard_after)


def _unmoved(trace: Trace, min_bytes: int, recipes: Set[int], ordered: Set[int]) -> frozenset[int]:
    """The calls all of whose maps stay whatever happens, and that hide none and get none from outside; their steps.

    The first step is none of them: whether backward makes a graph is looked at there.

    Args:
        trace: the graph.
        min_bytes: smaller maps never leave.
        recipes: calls that may run again; a write to what they read has to be noticed.
        ordered: positions with orders of their own.
    """
    moved = {each.id for each in trace.maps if each.nbytes >= min_bytes or each.producer is None}.union(
        each for call in recipes for each in (*trace.read_by(call), *trace.made_by(call)))
    calls = {each.index for each in trace.calls if not each.hidden
             and moved.isdisjoint(each.inputs) and moved.isdisjoint(each.outputs)}
    steps = {each.position for each in trace.steps[1:] if each.call in calls and moved.isdisjoint(each.maps)}
    return frozenset((calls | steps) - ordered)
