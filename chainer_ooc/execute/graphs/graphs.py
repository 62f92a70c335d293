"""The graphs that were recorded (P8).

A graph is known by the fingerprint of its recording. Which one an iteration follows is decided in `following`. A graph
of a size that was never recorded is estimated from another size of it. Where many are known, others are likely to come,
as those of sentences whose lengths hardly ever come together again. Recording each takes time, and where memory is
ample they need no plan: what one of them takes is estimated from the arrays of its calls, by those that were recorded
(`known_needs`).
"""

from __future__ import annotations

import gc
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable

from chainer_ooc.backends.base import Backend
from chainer_ooc.config import Settings
from chainer_ooc.cost.costs import measured
from chainer_ooc.errors import InfeasibleBudgetError, OocError
from chainer_ooc.execute.graphs import shared_plans
from chainer_ooc.execute.graphs.graph import Graph, Sources
from chainer_ooc.execute.graphs.known_needs import KnownNeeds
from chainer_ooc.execute.graphs.likeness import Forms
from chainer_ooc.execute.graphs.orders import Conditions
from chainer_ooc.execute.graphs.planner import Planner
from chainer_ooc.execute.graphs.saved_plans import SavedPlans
from chainer_ooc.execute.graphs.times import Times
from chainer_ooc.execute.recording.expected import Models
from chainer_ooc.problem import Standing
from chainer_ooc.trace import Trace

GRAPHS = 64

#: A graph of which so many sizes are known that differ behind the beginning may come in any size.
SIZES = 8

#: Where so many graphs are known, unknown ones are likely to come, and need not be recorded where memory is ample.
MANY_GRAPHS = 8

#: An unknown graph may need so many times what the largest recorded one does. Asked for at first, and as it grows.
ROOM_FOR_UNKNOWN = 2

#: A refusal names a budget that is enough for so many of the latest graphs.
ASKED_GRAPHS = 8

#: A refusal names `ooc_parameters` if what that could move is such a part of a budget that is enough, and so much.
MOVABLE_SHARE, LEAST_MOVABLE_BYTES = 0.25, 16 << 20

#: Why a floor that was named may be too small, see `InfeasibleBudgetError.doubt`.
BESIDE_THREADS = 'other threads were at work when this was recorded, and what they allocated and freed is in it'
MISSED = 'the program has run a graph that is not recorded yet'
SECOND_ORDER = 'a backward pass makes a graph (double backprop), and what stands of one while another runs may be more'
CUT_OFF = 'the program has cut maps off from their graph (unchain), and what goes on from them may be another graph'
NEWCOMER = 'another model begins like a known graph for the first time, and what it brings is not known yet'
UNDER_WAY = 'an iteration was under way with more in memory than when it was recorded, and has not come to its end'
FIRST_ROUND = 'several graphs were recorded, none of them twice, and the program has not come back to the first one'
FROM_FILE = 'its recording is read from the file {} (chainer.config.ooc_plan): delete that to have it recorded anew'


class Graphs:
    """The known graphs; the least recently used is forgotten first.

    Attributes:
        saved: the file of plans in use, or None.
        planner: makes their plans.
        has_lost: a late backward pass has not come to its end, as where something was lost: plans of estimates lose
            nothing any more.
    """

    def __init__(self) -> None:
        self.planner = Planner()
        self.saved: SavedPlans | None = None
        self.has_lost = False
        self._graphs: OrderedDict[str, Graph] = OrderedDict()
        self._may_lie_on_file = False
        self._lost_bytes: Callable[[int], int] = lambda budget_bytes: 0
        self._terms: tuple[int | None, str, str] | None = None
        self._by_terms: dict[tuple[int | None, str, str], OrderedDict[str, Graph]] = {}
        self._numbers = itertools.count(1)
        self._missed: dict[str, None] = {}
        self._known_needs: tuple[list[Trace], KnownNeeds] | None = None

    def set_terms(self, settings: Settings, backend: Backend) -> None:
        """Has the graphs be those that were recorded with this workspace and oneDNN: others' times do not hold."""
        self._may_lie_on_file = settings.parameters is None and backend.file_backed is not None
        self._lost_bytes = backend.lost_bytes
        terms = (settings.workspace_bytes, backend.onednn_version(settings.use_ideep), settings.parameters or '')
        if terms != self._terms:
            self._graphs, self._terms = self._by_terms.setdefault(terms, OrderedDict()), terms

    def sources(self, reserve: Callable[[int], None]) -> Sources:
        """Where plans of an iteration that begins come from, also what other ranks have sent by now; see `Sources`."""
        return Sources(self.planner, reserve, self.saved, shared_plans.current())

    def latest(self) -> Graph | None:
        """The graph that ran last."""
        return next(reversed(self._graphs.values()), None)

    def ample(self, conditions: Conditions, sources: Sources) -> KnownNeeds | None:
        """What those that were measured need, if many are known and an unknown one surely has room; else None."""
        if len(self._graphs) < MANY_GRAPHS or any(each.makes_graphs for each in self._graphs.values()):
            return None
        known = [each for each in self._graphs.values() if each.may_be_quiet()]
        largest = max(known, key=lambda each: each.trace.maps_bytes, default=None)
        try:
            plan = None if largest is None else largest.orders_for(conditions, sources).plan
        except OocError:  # it is told when that graph is followed
            return None
        if plan is None or not plan.moves_nothing:
            return None
        needs = self._needs_of([each.trace for each in known])
        has_room = plan.peak_bytes + (ROOM_FOR_UNKNOWN - 1) * needs.most_bytes <= conditions.budget_bytes
        return needs if has_room else None

    def _needs_of(self, traces: list[Trace]) -> KnownNeeds:
        """The same as the last time, as long as the recordings are the same."""
        of, needs = self._known_needs or ([], None)
        if needs is None or {*map(id, of)} != {*map(id, traces)}:
            needs = KnownNeeds.of(traces)
            self._known_needs = traces, needs
        return needs

    def traces(self) -> list[Trace]:
        """The recordings, that of the graph that ran last at the end."""
        return [each.times.with_exchange(each.trace) for each in self._graphs.values()]

    def beginning_with(self, label: str, arguments: Forms) -> list[Graph]:
        """The graphs whose first call is of this function, with inputs of these forms, the latest first."""
        return [each for each in reversed(self._graphs.values()) if each.begins_with(label, arguments)]

    def resembling(self, label: str, arguments: Forms, first_bytes: int) -> Graph | None:
        """An estimate from the nearest size of a graph: only its first input's extents differ in the first call.

        From one that was measured, if any was: what it takes is rounded up, and from estimates that would add up.
        """
        alike = self._alike(label, arguments)
        alike = [each for each in alike if each.is_metered] or alike
        if not alike or not first_bytes:
            return None
        larger = [each for each in alike if each.first_bytes() >= first_bytes]
        nearest = (min if larger else max)(larger or alike, key=Graph.first_bytes)
        estimate = nearest.estimate(first_bytes)
        if self.has_lost:
            estimate.lose_none()
        return estimate

    def smaller_measured(self, graph: Graph, first_bytes: int) -> Graph | None:
        """The largest size of a graph that was measured, up to this size of its first input; None if there is none."""
        first = graph.trace.calls[0]
        found = [each for each in self._alike(first.label, first.arguments)
                 if each.is_metered and each.first_bytes() <= first_bytes]
        return max(found, key=Graph.first_bytes, default=None)

    def _alike(self, label: str, arguments: Forms) -> list[Graph]:
        """The graphs whose first call is the same but for the extents of its first input."""
        return [each for each in self._graphs.values() if each.first_bytes() and each.trace.calls[0].label == label
                and _extents_aside(each.trace.calls[0].arguments) == _extents_aside(arguments)]

    def go_on(self, graph: Graph, label: str, arguments: Forms) -> bool:
        """Whether another begins like all of this graph and goes on with this function and inputs of these forms."""
        calls = len(graph.trace.calls)
        return not graph.is_estimate and any(
            each.may_go_on(calls, label, arguments) and each.common_calls(graph) == calls
            for each in self._graphs.values())

    def add(self, trace: Trace, metered: bool = True) -> Graph:
        """Remembers a recording; one of a known graph replaces the older, and its plans are made anew."""
        graph = self._graphs.get(trace.fingerprint)
        if graph is None:
            graph = self._graphs[trace.fingerprint] = Graph(
                trace, Times(measured(trace)), is_metered=metered, number=next(self._numbers))
            self._missed.pop(trace.fingerprint, None)
            self._missed.pop('', None)
            self._compare(graph)
        else:
            graph.record_again(trace, metered)
            self.use(graph)
        if len(self._graphs) > GRAPHS:
            self._graphs.popitem(last=False)
        return graph

    def _compare(self, graph: Graph) -> None:
        """Finds out what a new graph tells of those that begin like it."""
        first = graph.trace.calls[0]
        alike = self.beginning_with(first.label, first.arguments)
        sizes = [each for each in alike if each.resembles(graph)]
        if len(sizes) >= SIZES:
            for each in sizes:
                each.varies = True
            graph.differences = max(each.differences for each in sizes)
        for each in alike:
            if not each.varies:
                each.differences = 0  # what it was taken for is known now

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
        loaded = [] if self.saved is None or self._terms is None else self.saved.take(self._terms)[-GRAPHS:]
        for each in loaded:
            self.add(each.trace, each.metered).load()
        return bool(loaded)

    def _forget_loaded(self) -> None:
        for graphs in self._by_terms.values():
            for fingerprint in [each for each, graph in graphs.items() if graph.is_loaded]:
                del graphs[fingerprint]

    def largest_refusal(self, error: InfeasibleBudgetError, conditions: Conditions,
                        doubt: str) -> InfeasibleBudgetError:
        """The refusal with a budget that is enough for each known graph; a program may have several.

        What the program holds of one graph, and a later backward pass reads, stands while the next one runs; and so
        does what was left by others when that ran last, and what parameters will bring. A device gives memory in
        pieces, which takes some more. `doubt` is why all of this may not be enough, or ''.
        """
        floor_bytes, where, expected_bytes, stands_bytes = error.floor_bytes, error.where, 0, 0
        workspace_floor_bytes = error.workspace_floor_bytes
        settings, graphs = conditions.settings, list(reversed(self._graphs.values()))[:ASKED_GRAPHS]
        unmeasured: list[tuple[Graph, Standing]] = []
        kept = {id(graph): sum(each.nbytes for each in graph.trace.maps if each.held and each.reused)
                for graph in graphs}
        for graph in graphs:
            kept_bytes = max((kept[key] for key in kept if key != id(graph)), default=0)
            standing = conditions.standing_of(graph.used)
            stands_bytes = max(stands_bytes, standing.backward_bytes - standing.left_bytes)
            left_bytes = max(graph.left_bytes, kept_bytes + graph.left_alone_bytes)
            stands = standing.to_come(max(0, left_bytes - standing.left_bytes, kept_bytes))
            if not graph.is_metered:
                unmeasured.append((graph, stands))
                continue
            other = graph.refusal(settings, floor_bytes, stands)
            if other is not None and other.floor_bytes > floor_bytes:
                floor_bytes, where, expected_bytes = other.floor_bytes, other.where, standing.expected_bytes
                workspace_floor_bytes = other.workspace_floor_bytes
        # What is estimated of a size may be much more than that needs: it names no floor.
        if not doubt and any(graph.refusal(settings, floor_bytes, stands) for graph, stands in unmeasured):
            doubt = MISSED
        lost_bytes = self._lost_bytes(floor_bytes)
        return InfeasibleBudgetError(
            settings.policy, error.budget_bytes, floor_bytes + lost_bytes, where, lost_bytes=lost_bytes,
            expected_bytes=min(expected_bytes, floor_bytes - error.floor_bytes),
            workspace_floor_bytes=workspace_floor_bytes,
            movable_bytes=stands_bytes if self._may_lie_on_file and stands_bytes >= max(
                LEAST_MOVABLE_BYTES, MOVABLE_SHARE * floor_bytes) else 0,
            doubt='; '.join(filter(None, (doubt, self._source_of(graphs)))))

    def refusal_under(self, settings: Settings, standing_of: Callable[[Models], Standing],
                      has_cut_off: Callable[[], bool]) -> InfeasibleBudgetError:
        """What a budget of one byte is refused with: its floor is enough for each known graph."""
        latest = self.latest()
        return self.largest_refusal(
            InfeasibleBudgetError(settings.policy, 1, 1, ''), Conditions(settings, 1, 0, standing_of),
            '' if latest is None else self.doubt_of(latest, has_cut_off))

    def _source_of(self, graphs: Iterable[Graph]) -> str:
        """Names the file that graphs were read from: what is damaged in it refuses budgets that are enough."""
        if self.saved is None or not any(each.is_loaded for each in graphs):
            return ''
        return FROM_FILE.format(self.saved.path)

    def miss(self, fingerprint: str) -> None:
        """An iteration is over that was of no known graph, and was not recorded; '' if it is not known of which."""
        self._missed[fingerprint] = None
        if len(self._missed) > GRAPHS:
            self._missed.pop(next(iter(self._missed)))

    def doubt_of(self, graph: Graph, has_cut_off: Callable[[], bool]) -> str:
        """Why a floor that is named when `graph` begins again may be too small, or ''."""
        if any(each.is_disturbed for each in self._graphs.values()):
            return BESIDE_THREADS
        if self._missed:
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


def after_collecting(plan: Callable[[], None]) -> None:
    """Makes a plan; once more where it is refused, as it may be for a model or a graph that the program has no more."""
    try:
        plan()
        return
    except InfeasibleBudgetError:
        pass  # first, or what the error's frames hold would stay
    gc.collect()
    plan()
