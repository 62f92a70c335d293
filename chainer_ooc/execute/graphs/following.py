"""Which known graph an iteration seems to be, and the orders of its plan (P8).

The latest graph with the same first call is followed until a call or a step differs. Then another known graph with the
same beginning is followed; without one the iteration goes on without orders: slower, never wrong. Of sequences whose
lengths change, one graph is often the beginning of another::

    followed   a b c d e f          a graph of 6 calls, which ran last
    others     a b c                the shorter one is followed if backward begins after 3 calls,
               a b c d g h          the other one from the fifth call on
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from chainer_ooc.config import Settings
from chainer_ooc.errors import InfeasibleBudgetError, SpillError
from chainer_ooc.execute.graphs.graph import Graph
from chainer_ooc.execute.graphs.graphs import ASKED_GRAPHS, Graphs, after_collecting
from chainer_ooc.execute.graphs.known_needs import KnownNeeds
from chainer_ooc.execute.graphs.likeness import Forms
from chainer_ooc.execute.graphs.orders import NO_ORDERS, Conditions
from chainer_ooc.execute.graphs.reuse import share_reuse
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.expected import Models
from chainer_ooc.execute.recording.recorder import GRADIENTS_AND_SCRATCH, Recorder, forms
from chainer_ooc.execute.recording.registration import name_of
from chainer_ooc.execute.storage.slots import array_of
from chainer_ooc.execute.storage.storage import Storage, Token
from chainer_ooc.problem import Standing
from chainer_ooc.schedule.schedule import SwapIn
from chainer_ooc.trace import Call, Step
from chainer_ooc.trace.scaling import grown


class Following:
    """The graph that is followed, and where the iteration stands in its plan.

    Within `unmetered` nothing is measured: the arrays that a plan is made with are none of the iteration's.

    Attributes:
        graph: the one that is followed, or None.
        orders: of its plan; none without a graph.
        token: the iteration's; it has the graph that was followed last.
        left: one was followed, and then the program differed.
        ample: what recorded graphs need, if there are many, and an unknown one surely has room; else None.
        may_be_given_up: a call has failed, and the program may go on with another iteration.
        same_calls: the other known graphs that have all calls of the one that is followed, and other steps.
    """

    def __init__(self, graphs: Graphs, settings: Settings, recorder: Recorder, memory: Residency,
                 unmetered: Callable[[], AbstractContextManager[None]]):
        self.graph: Graph | None = None
        self.orders = NO_ORDERS
        self.token = Token()
        self.left = self.may_be_given_up = False
        self.ample: KnownNeeds | None = None
        self._graphs, self._recorder = graphs, recorder
        self._conditions = Conditions(settings, 0, 0, _nothing_stands)
        self._first_bytes = 0
        self._doubt_of: Callable[[Sequence[Models]], str] = _no_doubt
        self._sources = graphs.sources(memory.backend.reserve)
        self._has_cut_off, self._unmetered = memory.has_cut_off, unmetered
        self._alike: list[Graph] = []  # the other known graphs with the same first call, the latest first
        self._apart: dict[int, list[Graph]] = {}  # of these, by the first call that is not that of the one in hand
        self.same_calls: list[Graph] = []
        self._next_swap_in, self._mode = 0, _mode()
        self._more_bytes: dict[int, int] = {}  # of an estimate's call, by which its arrays are larger than was known
        self._before_turn: dict[str, Any] = {}  # all of this, where the call in hand has had another graph followed
        self._unlike: tuple[int, KnownNeeds | None, list[tuple[Graph, int]]] | None = None

    def batch_bytes(self, label: str, arguments: Forms, first_bytes: int) -> int:
        """Bytes of the maps from outside of the graph that begins with this call; see `begin` for the arguments."""
        known = self._graphs.beginning_with(label, arguments)
        return sum(each.nbytes for each in known[0].trace.maps if each.producer is None) if known else first_bytes

    def begin(self, label: str, arguments: Forms, first_bytes: int, conditions: Conditions,
              doubt_of: Callable[[Sequence[Models]], str]) -> None:
        """Follows the graph that begins with this call, or an estimate of it if another size of it is known.

        `arguments` are the forms of the call's inputs, `first_bytes` is the size of the first. By what graphs did with
        parameters, `doubt_of` gives why what stands under the conditions may not be all, or ''.

        Raises:
            InfeasibleBudgetError: no plan for that graph keeps within the budget.
            PlanMismatchError: the file has a plan for that graph which does not hold here.
            SpillError: far memory is too small for the plan.
        """
        self._conditions, self._doubt_of, self._first_bytes = conditions, doubt_of, first_bytes
        alike = self._graphs.beginning_with(label, arguments)
        self._alike = alike[1:]
        self._follow(alike[0] if alike else self._graphs.resembling(label, arguments, first_bytes))
        self.ample = self._graphs.ample(self._conditions, self._sources)

    def refusal(self, error: InfeasibleBudgetError) -> InfeasibleBudgetError:
        """The error where a computation does not fit: its floor has all that is known to come beside what stands."""
        return self._graphs.largest_refusal(error, self._conditions, error.doubt)

    @property
    def is_certain(self) -> bool:
        """Whether the graph's figures were measured."""
        return self.graph is not None and self.graph.is_metered

    def name_of(self, position: int) -> str:
        """How messages call a position of the graph that is followed; '' if it has none such."""
        trace = None if self.graph is None else self.graph.trace
        return '' if trace is None or position >= trace.positions else trace.name_of(position)

    # --- what is expected ------------------------------------------------------------------------------------------

    def call_at(self, position: int) -> Call | None:
        """The call that the graph has at a position."""
        calls = self.graph.trace.calls if self.graph is not None else ()
        return calls[position] if position < len(calls) else None

    def step_at(self, number: int) -> Step | None:
        """The step that the graph has next, by its number."""
        steps = self.graph.trace.steps if self.graph is not None else ()
        step = steps[number] if number < len(steps) else None
        if step is not None and (more_bytes := self._more_bytes.get(step.call, 0)):
            return replace(step, peak_bytes=step.peak_bytes + GRADIENTS_AND_SCRATCH * more_bytes)
        return step

    def begins_anew(self, position: int, function: Any, inputs: Sequence[Any]) -> bool:
        """Whether a call begins another forward pass, and this one has no backward pass.

        Either the graph is complete, and its first call comes again, which no known graph does there; while it is
        recorded, what comes may be part of it. Or no graph is followed, and a known one begins in another mode of
        Chainer's (``chainer.config.train``), as a training after an evaluation. Or a call has failed, and the first one
        comes again: the program has given this iteration up, and the error may keep it alive.
        """
        graph = self.graph
        is_likely = (_mode() is not self._mode if graph is None
                     else not self._recorder.measures and position == len(graph.trace.calls))
        if not (is_likely or self.may_be_given_up):
            return False
        label, arguments = name_of(function), forms([array_of(each) for each in inputs])
        if not is_likely:
            first = self._recorder.calls[0] if self._recorder.calls else None
            return (graph is not None and graph.begins_with(label, arguments) if first is None
                    else (first.label, first.arguments) == (label, arguments))
        if graph is None:
            return bool(self._graphs.beginning_with(label, arguments))
        return graph.begins_with(label, arguments) and not self._graphs.go_on(graph, label, arguments)

    def coming_calls(self, position: int, function: Any, inputs: Sequence[Any]) -> list[Call]:
        """The calls of known graphs that the one which is about to run may be, that of the followed graph first.

        Room is made by what they took, so a graph that has another call there is left before this one runs. Which of
        several it is, is known by its outputs.
        """
        if self.graph is None:
            return []
        before, label = {**vars(self)}, name_of(function)
        arguments = forms([getattr(each, '_node', each) for each in inputs])
        graph = self.check(position, lambda graph: graph.may_go_on(position, label, arguments))
        if graph is not before['graph']:
            self._before_turn = before
        if graph is None:
            return []
        parting = [each for each in self.parting(position) if each.may_go_on(position, label, arguments)]
        calls = [each.trace.calls[position] for each in (graph, *parting)]
        return [grown(calls[0], arguments)] if graph.is_loose else calls

    def check_call(self, call: Call) -> None:
        """Compares the latest call with those of the graphs that it may belong to."""
        self._before_turn = {}
        graph = self.check(call.index, lambda graph: graph.expects(call))
        if graph is not None and graph.is_loose:
            known = graph.trace.calls[call.index]
            self._more_bytes[call.index] = max(0, _bytes(call) - _bytes(known))

    def note_unlike(self, calls: int) -> None:
        """The call that comes next, after so many, is none of the graph's, or of no known kind; see `take_back`."""
        graphs = [] if self.graph is None else [self.graph, *self.begun(calls)]
        self._unlike = calls, self.ample, [(each, each.differences) for each in graphs]

    def take_back(self, calls: int) -> list[Graph]:
        """Follows what was followed before the call in hand, which comes after so many and has failed.

        What was concluded from it in an iteration that ran quietly is forgotten; the graphs that it was like are given.
        """
        if self._before_turn:
            vars(self).update(self._before_turn)
            self.token.graph = self.graph
        before, self._unlike = self._unlike, None
        if before is None or before[0] != calls:
            return []
        _, self.ample, known = before
        for graph, differences in known:
            graph.differences = differences
        return [graph for graph, _ in known]

    def check(self, calls: int, is_alike: Callable[[Graph], bool]) -> Graph | None:
        """Follows another graph if the one in hand, which is like the first so many calls, is not like what runs.

        That is one that is like it, or else the largest that differs in its sizes alone, if such sizes vary.

        Returns:
            The one that is followed now.

        Raises:
            InfeasibleBudgetError, PlanMismatchError, SpillError: see `begin`.
        """
        before = self.graph
        if before is not None and not is_alike(before):
            begun = self.begun(calls)
            sizes = [each.loosely() for each in (before, *begun) if each.varies] if not self._recorder.measures else []
            largest = sorted(filter(is_alike, sizes), key=lambda each: each.trace.maps_bytes)[-1:]
            self.turn(list(filter(is_alike, begun)) or largest)
        return self.graph

    def begun(self, calls: int) -> list[Graph]:
        """The other known graphs that begin with so many calls as the one in hand does, the latest first."""
        graph = self.graph
        return [] if graph is None or graph.is_estimate else [
            each for each in self._alike if each.common_calls(graph) >= calls]

    def stays(self, graph: Graph) -> bool:
        """Whether all that a graph has and does is known, and its plan for these settings moves nothing."""
        return graph.may_be_quiet() and graph.stays(self._conditions.settings)

    def stepped(self, number: int, call: int, label: str) -> list[Graph]:
        """The other known graphs with the same calls and the same first steps as the one in hand, and this one then."""
        graph = self.graph
        return [] if graph is None else [
            each for each in self.same_calls if each.has_step(number, call, label) and each.steps_like(graph, number)]

    def turn(self, graphs: Sequence[Graph]) -> None:
        """Follows the first of these from here on, or none; the others are like it up to here.

        Raises:
            InfeasibleBudgetError, PlanMismatchError, SpillError: see `begin`.
        """
        self.leave()
        self._alike = list(graphs[1:])
        with self._unmetered():
            after_collecting(lambda: self._follow(graphs[0] if graphs else None))

    def parting(self, position: int) -> Sequence[Graph]:
        """The other known graphs that are like the one in hand up to a position, and have another call there."""
        return self._apart.get(position, ())

    def check_forward_is_over(self, retained: Sequence[Sequence[int]], exposed: Iterable[int]) -> None:
        """Leaves a graph that has further calls when backward begins, or an estimate that retained something else.

        A graph that is not left learns which of its maps are `exposed`.

        Raises:
            InfeasibleBudgetError, PlanMismatchError, SpillError: see `begin`.
        """
        calls = len(retained)
        graph = self.check(calls, lambda graph: len(graph.trace.calls) == calls)
        if graph is None:
            return
        steps = graph.trace.steps if graph.is_estimate else ()
        if any(each.call >= 0 and set(each.maps) != set(retained[each.call]) for each in steps):
            self.leave()
        else:
            graph.learn(exposed=exposed)

    def is_outgrown(self, maps_bytes: int) -> bool:
        """Whether an estimated size, of so many bytes of maps, has turned out to be larger than all that are known."""
        return self.graph is not None and self.graph.is_loose and maps_bytes > self.graph.trace.maps_bytes

    def check_step(self, number: int, call: int, function: Any) -> Step | None:
        """Gives the step that the graph has next; None, and it is left, if that is of another call or function.

        Another known graph of the same calls and first steps takes over where there is one; not while the iteration is
        recorded, as the steps that have run may have taken more than was known.

        Raises:
            InfeasibleBudgetError, PlanMismatchError, SpillError: see `begin`.
        """
        label = '' if call >= 0 else name_of(function)
        if self.graph is not None and not self.graph.has_step(number, call, label):
            self.turn([] if self._recorder.measures else self.stepped(number, call, label))
        return self.step_at(number)

    # --- orders ----------------------------------------------------------------------------------------------------

    def is_discardable(self, map_id: int) -> bool:
        """Whether the plan discards a map and has it made again."""
        return (map_id in self.orders.discardable and self.graph is not None
                and not self.graph.trace.maps[map_id].reused)

    def freed_after(self, position: int) -> list[tuple[int, bool]]:
        """Maps to drop after a step, and whether they may be lost: a later backward pass reads none of those."""
        freed = self.orders.free_after.get(position, ())
        return [(each, loses and self.graph is not None and not self.graph.trace.maps[each].reused)
                for each, loses in freed]

    def due(self, position: int) -> SwapIn | None:
        """The next swap-in, if it may start when a position begins; `started` moves on."""
        swap_ins = self.orders.plan.swap_ins
        first = swap_ins[self._next_swap_in] if self._next_swap_in < len(swap_ins) else None
        return first if first is not None and first.start <= position else None

    def started(self) -> None:
        """Goes on to the next swap-in: the one that was due is under way, or the map is there."""
        self._next_swap_in += 1

    def next_use(self, storage: Storage) -> float:
        """The position of a storage's next use by the plan; without one the least recently used is evicted first.

        What is left of an iteration that is over is evicted before all, as is what is not used any more.
        """
        maps, position = () if self.graph is None else self.graph.trace.maps, self._recorder.next_position
        if storage.token is not self.token:
            return float('inf')
        if storage.map >= len(maps):
            return -float(storage.touched)
        if maps[storage.map].last_forward_use >= position:
            return position
        return next((use for use in self.orders.plan.chains.uses[storage.map] if use >= position), float('inf'))

    # --- following and leaving -------------------------------------------------------------------------------------

    def _follow(self, graph: Graph | None) -> None:
        if graph is None or not graph.is_recorded(self._conditions.settings.profile_iterations):
            return
        share_reuse(graph, self._alike)
        try:
            self.orders = graph.orders_for(self._conditions, self._sources)
        except (InfeasibleBudgetError, SpillError) as error:
            if not graph.is_metered and not self._needs_as_much(graph):
                return  # the graph itself may need less: without a plan the iteration is recorded
            if isinstance(error, SpillError):
                raise
            alike = [each.used for each in (graph, *self._alike)]
            doubt = self._doubt_of(alike) or self._graphs.doubt_of(graph, self._has_cut_off)
            raise self._graphs.largest_refusal(error, self._conditions, doubt) from None
        if alone := self._discarded_here_alone(graph):
            self.orders = graph.swapping(self.orders, alone, self._sources)
        self.graph = self.token.graph = graph
        self._next_swap_in, self._apart, self.same_calls = 0, {}, []
        for each in self._alike:
            position = each.common_calls(graph)
            if position < len(each.trace.calls):
                self._apart.setdefault(position, []).append(each)
            elif position == len(graph.trace.calls):
                self.same_calls.append(each)

    def _discarded_here_alone(self, graph: Graph) -> frozenset[int]:
        """What the plan discards in the beginning of another graph too, whose plan has no room to make it again."""
        maps, plan = graph.trace.maps, self.orders.plan
        discarded = [each for each in self.orders.discardable if maps[each].retained]
        found: set[int] = set()
        for other in self._alike[:ASKED_GRAPHS] if discarded else ():
            common = other.common_calls(graph)
            alone = {each for each in discarded if plan.leaves[each] < common} - found
            foreseen = other.discardable_under(self._conditions) if alone else None
            if foreseen is not None:
                theirs, peak_bytes = foreseen
                alone -= theirs
                again_bytes = sum(maps[each].nbytes for each in alone) + graph.trace.most_computing_bytes
                if peak_bytes + again_bytes > self._conditions.budget_bytes:
                    found |= alone
        return frozenset(found)

    def _needs_as_much(self, graph: Graph) -> bool:
        """Whether a size that was never measured needs more than the budget, as one that is no larger does."""
        smaller = None if graph.is_loose else self._graphs.smaller_measured(graph, self._first_bytes)
        here = self._conditions
        return smaller is not None and smaller.refusal(
            here.settings, here.budget_bytes, here.standing_of(smaller.used)) is not None

    def follow_none(self) -> None:
        """Has the iteration be one of an unknown graph, for which nothing has to be known."""
        self.graph, self.token.graph, self.orders = None, None, NO_ORDERS

    def end(self) -> None:
        """The iteration asks for no plan any more: what plans are made with refers back to it."""
        self._conditions, self._doubt_of = replace(self._conditions, standing_of=_nothing_stands), _no_doubt
        self._before_turn, self._unlike = {}, None

    def leave(self) -> None:
        """Follows no graph any more: the program differs from it."""
        self.graph, self.orders, self.left = None, NO_ORDERS, True


def _nothing_stands(models: Models) -> Standing:
    return Standing(0, 0)


def _no_doubt(known: Sequence[Models]) -> str:
    return ''


def _bytes(call: Call) -> int:
    return sum(each.nbytes for each in (*call.arguments, *call.results))


def _mode() -> object:
    import chainer

    return chainer.config.train
