"""The graphs that were recorded, and a plan for each (P8).

A graph is known by the fingerprint of its recording. Which one an iteration follows is decided in `following`. A graph
of a size that was never recorded is estimated from another size of it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from chainer_ooc.backends.base import Backend
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.config import Settings
from chainer_ooc.cost.costs import measured
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute.graphs.orders import Orders, give_orders
from chainer_ooc.execute.graphs.saved_plans import SavedPlans
from chainer_ooc.execute.graphs.times import Times, Timing
from chainer_ooc.execute.recording.expected import Models
from chainer_ooc.plans.making import plan_within
from chainer_ooc.plans.plan import Plan
from chainer_ooc.problem import Problem, Standing, Verdict
from chainer_ooc.trace import ArrayForm, Call, Trace
from chainer_ooc.trace.scaling import scale

#: What a call is given.
Forms = tuple[ArrayForm, ...]

GRAPHS = 64

#: A refusal names a budget that is enough for so many of the latest graphs.
ASKED_GRAPHS = 8

#: Why a floor that was named may be too small, see `InfeasibleBudgetError.doubt`.
BESIDE_THREADS = 'other threads were at work when this was recorded, and what they allocated is in it'
MISSED = 'the program has run a graph that is not recorded yet, since it began like a known one'
SECOND_ORDER = 'a backward pass makes a graph (double backprop), and what stands of one while another runs may be more'
CUT_OFF = 'the program has cut maps off from their graph (unchain), and what goes on from them may be another graph'
FIRST_ROUND = 'several graphs were recorded, none of them twice, and the program has not come back to the first one'

#: So many recordings of a graph do not count if the device prepared kernels in them; a program that always has new ones
#: gets a plan all the same.
MOST_PREPARING = 2

#: How finely estimates grow: by a fourth root of two.
ESTIMATES_PER_DOUBLING = 4


@dataclass
class Graph:
    """A recorded graph.

    Attributes:
        trace: its last recording.
        recordings: how many iterations of it were recorded.
        preparing: how many of these say nothing about later ones, as the device prepared kernels for them.
        orders: by policy, budget, threshold, and what is unaccounted for.
        slack_bytes: of the budget, what plans leave alone: see `note_shortage`.
        times: what its iterations took.
        left_bytes: what iterations before had left when it ran last.
        used: what its last iterations did with parameters.
        is_disturbed: other threads were at work while it was recorded.
        number: it was the so-many-th to be recorded, from 1 on.
        has_returned: it was met again.
        makes_graphs: its backward pass does, as in double backprop.
        differences: how often it seemed to run quietly, and was another one.
        is_metered: what calls allocate was measured, and not estimated from another size.
        is_estimate: the whole trace is that of another size, scaled.
        is_loaded: its plan is in the file that it came from.
        plan: the latest; it stays while the next one is not made yet.
    """

    trace: Trace
    times: Times
    recordings: int = 1
    preparing: int = 0
    is_metered: bool = True
    is_estimate: bool = False
    is_loaded: bool = False
    plan: Plan | None = None
    left_bytes: int = 0
    used: Models = field(default_factory=Models)
    is_disturbed: bool = False
    number: int = 0
    has_returned: bool = False
    makes_graphs: bool = False
    differences: int = 0
    slack_bytes: int = 0
    orders: dict[tuple[object, ...], Orders] = field(default_factory=dict)
    _followed: list[Plan] = field(default_factory=list)
    _reused: set[int] = field(default_factory=set)
    _held: set[int] = field(default_factory=set)
    _estimates: dict[int, Graph] = field(default_factory=dict)

    def orders_for(
            self, settings: Settings, budget_bytes: int, standing_of: Callable[[Models], Standing],
            reserve: Callable[[int], None], saved: SavedPlans | None = None, unaccounted_bytes: int = 0) -> Orders:
        """Plans, once for each policy, budget, threshold and what is unaccounted for, which is in what stands.

        `reserve` checks that far memory holds the plan. Plans come from the file of `saved` if they were loaded from
        there, and go there.

        Raises:
            InfeasibleBudgetError: no plan keeps within the budget.
            PlanMismatchError: the loaded plan does not hold here.
            SpillError: far memory is too small.
        """
        key = settings.policy, budget_bytes, settings.min_bytes, unaccounted_bytes
        if key not in self.orders:
            plan = saved.plan_for(self.trace, settings, budget_bytes) if saved is not None and self.is_loaded else None
            if plan is None:
                plan = self._planned(settings, budget_bytes, standing_of(self.used))
            reserve(sum(each.nbytes for each, verdict in zip(self.trace.maps, plan.verdicts, strict=True)
                        if verdict is Verdict.SWAP))
            self.orders[key] = give_orders(self.trace, plan, settings.min_bytes)
        self.plan = self.orders[key].plan
        if saved is not None and self.plan is not None and not self.is_estimate:
            saved.keep(self.trace, self.plan, settings.min_bytes, self.is_metered)
        return self.orders[key]

    def _planned(self, settings: Settings, budget_bytes: int, standing: Standing) -> Plan:
        problem = Problem(self.trace, self.times.costs, standing, budget_bytes, settings.min_bytes)
        left_alone_bytes = self.slack_bytes + standing.expected_bytes
        if left_alone_bytes:
            with contextlib.suppress(InfeasibleBudgetError):  # better short now and then than refused
                return plan_within(POLICIES[settings.policy], replace(
                    problem, budget_bytes=max(1, budget_bytes - left_alone_bytes)))
        return plan_within(POLICIES[settings.policy], problem)

    def record_again(self, trace: Trace, metered: bool) -> None:
        """Takes a newer recording; plans are made anew."""
        self.recordings += 1
        self.is_metered = metered
        self.times = Times(measured(trace))
        self._plan_anew(trace)

    def may_be_quiet(self) -> bool:
        """Whether all that it does was measured on this machine, and belongs to it alone."""
        return (self.is_metered and not self.is_estimate and not self.is_loaded and not self.makes_graphs
                and all(each.call >= 0 for each in self.trace.steps))

    def is_recorded(self, iterations: int) -> bool:
        """Whether so many iterations were recorded that count."""
        return self.recordings - min(self.preparing, MOST_PREPARING) >= iterations

    def has_followed(self) -> bool:
        """Notes that an iteration has followed the plan; whether one did before: the first has new memory."""
        known = any(self.plan is each for each in self._followed)
        if not known and self.plan is not None:
            self._followed.append(self.plan)
        return known

    def note_timing(self, plan: Plan | None, timing: Callable[[], Timing]) -> None:
        """Adds what an iteration under a plan took; plans are made anew if they expected something else."""
        if plan is self.plan and not self.is_loaded and self.times.note(timing()):
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
            self._planned(settings, budget_bytes, standing)
        except InfeasibleBudgetError as error:
            return error
        return None

    def _forget_orders(self) -> None:
        self.orders.clear()
        self._followed.clear()

    def note_reuse(self, maps: Iterable[int]) -> None:
        """A later backward pass reads these maps: from the next iteration on no plan loses them."""
        self._learn(self._reused, maps)

    def note_held(self, maps: Iterable[int]) -> None:
        """The program holds these maps after their last use: from the next iteration on plans count with that."""
        self._learn(self._held, maps)

    def _learn(self, known: set[int], maps: Iterable[int]) -> None:
        before = len(known)
        known.update(maps)
        if len(known) > before:
            self._plan_anew(self.trace)

    def _plan_anew(self, trace: Trace) -> None:
        """Takes a recording; keeps what was learnt, which the recorded iteration may not have shown."""
        maps = tuple(
            replace(each, reused=each.reused or each.id in self._reused, held=each.held or each.id in self._held)
            for each in trace.maps)
        self.trace = replace(trace, maps=maps)
        self.is_loaded = False
        self._forget_orders()
        self._estimates.clear()

    def load(self) -> None:
        """Takes the plan for its trace from the file that both came from."""
        self.is_loaded, self.recordings = True, sys.maxsize
        self._reused.update(each.id for each in self.trace.maps if each.reused)
        self._held.update(each.id for each in self.trace.maps if each.held)

    def expects(self, call: Call) -> bool:
        """Whether the graph has this call at its position; an estimate knows no shapes."""
        if call.index >= len(self.trace.calls):
            return False
        own = self.trace.calls[call.index]
        if self.is_estimate:
            return ((own.label, own.inputs, own.outputs, own.hidden)
                    == (call.label, call.inputs, call.outputs, call.hidden))
        return own.signature == call.signature

    def first_bytes(self) -> int:
        """Size of the first call's first input, or 0 if that is no feature map."""
        first = self.trace.calls[0].inputs[:1]
        return self.trace.maps[first[0]].nbytes if first and first[0] >= 0 else 0

    def estimate(self, first_bytes: int) -> Graph:
        """The same graph for a first input of another size; sizes that are near each other share one."""
        doublings = max(0, math.ceil(ESTIMATES_PER_DOUBLING * math.log2(first_bytes / self.first_bytes())))
        if doublings not in self._estimates:
            trace = scale(self.trace, 2 ** (doublings / ESTIMATES_PER_DOUBLING))
            self._estimates[doublings] = Graph(
                trace, Times(measured(trace)), self.recordings, is_metered=False, is_estimate=True,
                used=self.used)
        return self._estimates[doublings]

    def begins_with(self, label: str, arguments: Forms) -> bool:
        """Whether its first call is of this function, with inputs of these forms."""
        first = self.trace.calls[0]
        return (first.label, first.arguments) == (label, arguments)

    def may_go_on(self, position: int, label: str, arguments: Forms) -> bool:
        """Whether its call at a position is of this function, with inputs of these forms, which an estimate lacks."""
        if position >= len(self.trace.calls):
            return False
        call = self.trace.calls[position]
        return call.label == label and (self.is_estimate or call.arguments == arguments)

    def starts_like(self, other: Graph) -> bool:
        """Whether it begins with all calls of another graph."""
        mine, others = self.trace.calls, other.trace.calls
        return len(mine) >= len(others) and all(
            each.signature == call.signature for each, call in zip(mine, others, strict=False))


class Graphs:
    """The known graphs; the least recently used is forgotten first.

    Attributes:
        saved: the file of plans in use, or None.
    """

    def __init__(self) -> None:
        self.saved: SavedPlans | None = None
        self._graphs: OrderedDict[str, Graph] = OrderedDict()
        self._terms: tuple[int | None, str] | None = None
        self._under_others: dict[tuple[int | None, str], OrderedDict[str, Graph]] = {}
        self._numbers = itertools.count(1)
        self._has_missed = False

    def set_terms(self, settings: Settings, backend: Backend) -> None:
        """Has the graphs be those that were recorded with this workspace and oneDNN: others' times do not hold."""
        terms = settings.workspace_bytes, backend.onednn_version(settings.use_ideep)
        if terms != self._terms:
            if self._terms is not None:
                self._under_others[self._terms], self._graphs = self._graphs, OrderedDict()
            self._graphs, self._terms = self._under_others.pop(terms, self._graphs), terms

    def latest(self) -> Graph | None:
        """The graph that ran last."""
        return next(reversed(self._graphs.values()), None)

    def beginning_with(self, label: str, arguments: Forms) -> list[Graph]:
        """The graphs whose first call is of this function, with inputs of these forms, the latest first."""
        return [each for each in reversed(self._graphs.values()) if each.begins_with(label, arguments)]

    def is_only(self, graph: Graph) -> bool:
        """Whether no other known graph begins with the same call."""
        first = graph.trace.calls[0]
        return all(each is graph for each in self.beginning_with(first.label, first.arguments))

    def resembling(self, label: str, arguments: Forms, first_bytes: int) -> Graph | None:
        """An estimate from the nearest size of a graph: only its first input's extents differ in the first call."""
        alike = [each for each in self._graphs.values() if each.first_bytes() and each.trace.calls[0].label == label
                 and _extents_aside(each.trace.calls[0].arguments) == _extents_aside(arguments)]
        if not alike or not first_bytes:
            return None
        larger = [each for each in alike if each.first_bytes() >= first_bytes]
        nearest = (min if larger else max)(larger or alike, key=Graph.first_bytes)
        return nearest.estimate(first_bytes)

    def go_on(self, graph: Graph, label: str, arguments: Forms) -> bool:
        """Whether another begins like all of this graph and goes on with this function and inputs of these forms."""
        return any(each.may_go_on(len(graph.trace.calls), label, arguments) and each.starts_like(graph)
                   for each in self._graphs.values())

    def add(self, trace: Trace, metered: bool = True) -> Graph:
        """Remembers a recording; one of a known graph replaces the older, and its plans are made anew."""
        graph = self._graphs.get(trace.fingerprint)
        if graph is None:
            graph = self._graphs[trace.fingerprint] = Graph(
                trace, Times(measured(trace)), is_metered=metered, number=next(self._numbers))
            self._has_missed = False
        else:
            graph.record_again(trace, metered)
            self.use(graph)
        if len(self._graphs) > GRAPHS:
            self._graphs.popitem(last=False)
        return graph

    def follow_file(self, path: str | None, backend: Backend) -> bool:
        """Uses a file of plans from now on: its graphs under the terms in force are known. Returns whether any are new.

        Raises:
            PlanFormatError: there is something else at `path`.
        """
        is_same = path == (None if self.saved is None else self.saved.path)
        if not is_same or (self.saved is not None and self.saved.is_deleted()):
            if is_same:
                self._forget_loaded()
            self.saved = None if path is None else SavedPlans(path, backend)
        loaded = [] if self.saved is None or self._terms is None else self.saved.take(*self._terms)[-GRAPHS:]
        for each in loaded:
            self.add(each.trace, each.metered).load()
        return bool(loaded)

    def _forget_loaded(self) -> None:
        for graphs in (self._graphs, *self._under_others.values()):
            for fingerprint in [each for each, graph in graphs.items() if graph.is_loaded]:
                del graphs[fingerprint]

    def largest_refusal(self, error: InfeasibleBudgetError, settings: Settings,
                        standing_of: Callable[[Models], Standing], doubt: str) -> InfeasibleBudgetError:
        """The refusal with a budget that is enough for each known graph; a program may have several.

        What the program holds of one graph, and a later backward pass reads, stands while the next one runs; and so
        does what was left by others when that ran last, and what parameters will bring. `doubt` is why all of this may
        not be enough, or ''.
        """
        floor_bytes, where, expected_bytes = error.floor_bytes, error.where, 0
        graphs = list(reversed(self._graphs.values()))[:ASKED_GRAPHS]
        kept = {id(graph): sum(each.nbytes for each in graph.trace.maps if each.held and each.reused)
                for graph in graphs}
        for graph in graphs:
            kept_bytes = max((kept[key] for key in kept if key != id(graph)), default=0)
            standing = standing_of(graph.used)
            stands = standing.to_come(max(0, graph.left_bytes - standing.left_bytes, kept_bytes))
            other = graph.refusal(settings, floor_bytes, stands) if graph.is_metered else None
            if other is not None and other.floor_bytes > floor_bytes:
                floor_bytes, where, expected_bytes = other.floor_bytes, other.where, standing.expected_bytes
        return InfeasibleBudgetError(
            settings.policy, error.budget_bytes, floor_bytes, where,
            expected_bytes=min(expected_bytes, floor_bytes - error.floor_bytes), doubt=doubt)

    def miss(self) -> None:
        """An iteration is over that was of no known graph, and was not recorded."""
        self._has_missed = True

    def doubt_of(self, graph: Graph, has_cut_off: Callable[[], bool]) -> str:
        """Why a floor that is named when `graph` begins again may be too small, or ''."""
        if any(each.is_disturbed for each in self._graphs.values()):
            return BESIDE_THREADS
        if self._has_missed:
            return MISSED
        if any(each.makes_graphs for each in self._graphs.values()):
            return SECOND_ORDER
        if any(each.has_returned for each in self._graphs.values()):
            return ''
        if has_cut_off():
            return CUT_OFF
        return '' if all(graph.number <= each.number for each in self._graphs.values()) else FIRST_ROUND

    def use(self, graph: Graph) -> None:
        """Makes a graph, which was met again, the latest."""
        graph.has_returned = True
        self._graphs.move_to_end(graph.trace.fingerprint)


def _extents_aside(arguments: Forms) -> tuple[object, ...]:
    """The forms of a call's inputs with the first one's extents left out."""
    first, others = arguments[:1], arguments[1:]
    return tuple((each.dtype, len(each.shape)) for each in first), others
