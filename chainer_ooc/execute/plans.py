"""The graphs that were recorded, and a plan for each (P8).

A graph is known by the signatures of its calls. While an iteration grows, the graph that it seems to be is followed
until a call differs; then another known graph with the same beginning takes over, if there is one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.classify.verdict import Verdict
from chainer_ooc.config import Settings
from chainer_ooc.schedule.demand import Standing
from chainer_ooc.schedule.plan import Plan, SwapIn, make_plan
from chainer_ooc.trace import Trace

GRAPHS = 64


@dataclass(frozen=True)
class Orders:
    """A plan as execution reads it: by position.

    Attributes:
        plan: the plan itself.
        leave_after: maps to swap out after a call.
        forget_after: maps to give up after a call, since they will be made again; or, where only chains read them,
            to leave to themselves.
        free_after: maps to drop after a step, and whether each may be lost (it has no far copy).
        recipes: calls that may run again.
        forgettable: the maps of `forget_after`.
        swap_ins: in order.
    """

    plan: Plan
    leave_after: dict[int, list[int]]
    forget_after: dict[int, list[int]]
    free_after: dict[int, list[tuple[int, bool]]]
    swap_ins: tuple[SwapIn, ...]
    recipes: frozenset[int]
    forgettable: frozenset[int]


@dataclass
class Graph:
    """A recorded graph.

    Attributes:
        trace: its last recording.
        signatures: of its calls.
        recordings: how many iterations of it were recorded.
        orders: by policy, budget and threshold.
    """

    trace: Trace
    signatures: tuple[str, ...]
    recordings: int = 1
    orders: dict[tuple[object, ...], Orders] = field(default_factory=dict)
    _reused: set[int] = field(default_factory=set)
    _held: set[int] = field(default_factory=set)

    def orders_for(
            self, settings: Settings, budget_bytes: int, standing: Standing, reserve: Callable[[int], None]) -> Orders:
        """Plans, once for each policy, budget and threshold, and has `reserve` check that far memory holds the plan.

        Raises:
            InfeasibleBudgetError: no plan keeps within the budget.
            SpillError: far memory is too small.
        """
        key = settings.policy, budget_bytes, settings.min_bytes
        if key not in self.orders:
            plan = make_plan(POLICIES[settings.policy], self.trace, standing, budget_bytes, settings.min_bytes)
            reserve(sum(each.nbytes for each, verdict in zip(self.trace.maps, plan.verdicts, strict=True)
                        if verdict is Verdict.SWAP))
            self.orders[key] = give_orders(self.trace, plan, settings.min_bytes)
        return self.orders[key]

    def record_again(self, trace: Trace) -> None:
        """Takes a newer recording; plans are made anew."""
        self.recordings += 1
        self._plan_anew(trace)

    def note_reuse(self, maps: Iterable[int]) -> None:
        """A later backward pass reads these maps: from the next iteration on no plan loses them."""
        self._learn(self._reused, maps)

    def note_held(self, map_id: int) -> None:
        """Somebody holds this map after its last use: from the next iteration on plans count with that."""
        self._learn(self._held, [map_id])

    def _learn(self, known: set[int], maps: Iterable[int]) -> None:
        before = len(known)
        known.update(maps)
        if len(known) > before:
            self._plan_anew(self.trace)

    def _plan_anew(self, trace: Trace) -> None:
        """What was learnt outlives a recording, which may have been of an iteration without it."""
        maps = tuple(
            replace(each, reused=each.reused or each.id in self._reused, held=each.held or each.id in self._held)
            for each in trace.maps)
        self.trace = replace(trace, maps=maps)
        self.orders.clear()

    def starts_like(self, signatures: list[str]) -> bool:
        """Whether the graph begins with these calls."""
        return self.signatures[:len(signatures)] == tuple(signatures)


class Graphs:
    """The known graphs; the least recently used is forgotten first."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[tuple[str, ...], Graph] = OrderedDict()

    def __len__(self) -> int:
        return len(self._graphs)

    def latest(self) -> Graph | None:
        """The graph that ran last."""
        return next(reversed(self._graphs.values()), None)

    def beginning_with(self, label: str, arguments: str) -> Graph | None:
        """The latest graph whose first call is of this function, with inputs of these forms."""
        for graph in reversed(self._graphs.values()):
            first = graph.trace.calls[0]
            if (first.label, first.arguments) == (label, arguments):
                return graph
        return None

    def like(self, signatures: list[str]) -> Graph | None:
        """The latest graph that begins with these calls."""
        return next((each for each in reversed(self._graphs.values()) if each.starts_like(signatures)), None)

    def add(self, trace: Trace) -> Graph:
        """Remembers a recording; one of a known graph replaces the older, and its plans are made anew."""
        signatures = tuple(call.signature for call in trace.calls)
        graph = self._graphs.get(signatures)
        if graph is None:
            graph = self._graphs[signatures] = Graph(trace, signatures)
        else:
            graph.record_again(trace)
        self.use(graph)
        if len(self._graphs) > GRAPHS:
            self._graphs.popitem(last=False)
        return graph

    def use(self, graph: Graph) -> None:
        """Makes a graph the latest."""
        if graph.signatures in self._graphs:
            self._graphs.move_to_end(graph.signatures)


def give_orders(trace: Trace, plan: Plan, min_bytes: int) -> Orders:
    """Sorts a plan by position."""
    leave_after: dict[int, list[int]] = {}
    forget_after: dict[int, list[int]] = {}
    free_after: dict[int, list[tuple[int, bool]]] = {}
    for each, verdict in zip(trace.maps, plan.verdicts, strict=True):
        if verdict is Verdict.SWAP:
            leave_after.setdefault(each.last_forward_use, []).append(each.id)
        elif each.producer in plan.chains.calls and (verdict is Verdict.RECOMPUTE or not each.retained):
            forget_after.setdefault(each.last_forward_use, []).append(each.id)
        uses = plan.chains.uses[each.id]
        if uses and each.retained and not each.foreign and each.nbytes >= min_bytes:
            may_lose = verdict is Verdict.KEEP and not each.reused
            free_after.setdefault(uses[-1], []).append((each.id, may_lose))
    return Orders(plan, leave_after, forget_after, free_after, plan.swap_ins, plan.chains.calls,
                  frozenset(each for maps in forget_after.values() for each in maps))
