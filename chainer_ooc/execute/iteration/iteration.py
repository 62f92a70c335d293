"""One iteration: its forward calls, then the steps of one or more backward passes.

While the graph is a known one, its plan is followed: maps leave after their last forward use, swap-ins start where the
plan has them, maps are dropped after their last backward use. Otherwise the iteration is safe and slow, and is
recorded: what a call retained leaves as soon as the next call does not need it, and comes back when it is read.

    apply -> before_call  reap, make room | compute |  after_call  register, follow, have maps leave
    step  -> before_step  fetch, start swap-ins, make room | compute |  after_step  drop

Source: PoocH 4.1 (profiled and optimised phases). Left out: iterations that overlap in one thread.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from chainer_ooc.backends.metering import Meter
from chainer_ooc.config import Settings
from chainer_ooc.execute import log
from chainer_ooc.execute.finished import Finished
from chainer_ooc.execute.functions.prototype import may_write_inputs
from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.graphs.graphs import Graphs
from chainer_ooc.execute.graphs.reuse import ReadAgain, note_that_it_makes_graphs
from chainer_ooc.execute.iteration.beside import BesideMaps
from chainer_ooc.execute.iteration.comparison import Calls
from chainer_ooc.execute.iteration.departures import Departures
from chainer_ooc.execute.iteration.left import earlier_bytes
from chainer_ooc.execute.iteration.liveness import Liveness
from chainer_ooc.execute.iteration.prefetch import start_swap_ins
from chainer_ooc.execute.iteration.quiet import Quietly
from chainer_ooc.execute.iteration.recipes import Recipes
from chainer_ooc.execute.iteration.room import UNKNOWN_CALL_ROOM, Room
from chainer_ooc.execute.iteration.unmoved import Unmoved
from chainer_ooc.execute.iteration.writes import Writes
from chainer_ooc.execute.memory.mapped import MAPPED
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.memory.transit import COPY_IN, Context
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.recording.recorder import Recorder, Span, freeze_trace
from chainer_ooc.execute.recording.registration import Register, makes_graphs, name_of, retained
from chainer_ooc.execute.storage.account import find
from chainer_ooc.execute.storage.slots import array_of
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage
from chainer_ooc.execute.tally import Stretch, Tally
from chainer_ooc.trace import Trace
from chainer_ooc.trace.scaling import fill_in


class Iteration(Quietly):
    """From the first function that is applied to the end of backward.

    Attributes:
        following: the known graph that it seems to be, and its plan.
        finished: a backward pass has ended.
        token: stands for it in its maps; `has_ended` once the session has left it, and takes no more for its own.
        beside, room, writes: what stands beside the maps; room for computations; what the program's functions write to.
        makes_graphs, spans_threads: its backward pass makes a graph; has read maps that another thread has made.
        is_foreign: the function in hand is the program's own, which may write to what it is given.
    """

    def __init__(self, settings: Settings, budget_bytes: int, memory: Residency, parameters: Parameters,
                 graphs: Graphs, meter: Meter, end_quiet: Callable[[], None]):
        self.settings, self.budget_bytes, self.recorder = settings, budget_bytes, Recorder()
        self.finished = self._in_backward = self.is_foreign = self.makes_graphs = self.spans_threads = False
        self._memory, self._parameters, self._meter = memory, parameters, meter
        self._unmoved: Unmoved | None = None
        self._coming_bytes = self._other_at_start_bytes = 0
        self.writes, self._calls, self._read_again = Writes(), Calls(), ReadAgain(graphs)
        self.following = Following(graphs, settings, self.recorder, memory, meter.leaves_out)
        self.token = self.following.token
        self.register = Register(memory, self.recorder, parameters, self.token, settings.min_bytes)
        self._liveness = Liveness(self.register.storages)
        self.beside = BesideMaps(memory, parameters, self.register, meter, self.following)
        self.room = Room(memory, self.beside, parameters, settings, self.following, end_quiet, weakref.ref(self))
        self._departures = Departures(memory, self.following, self.register, settings)
        self._recipes = Recipes(memory, self.following, self.register)
        self._start_swap_ins = functools.partial(start_swap_ins, memory, self.following, self.register, self.beside)

    def open(self, function: Any, inputs: Sequence[Any], most_bytes: Callable[[], int], records: bool) -> None:
        """Finds a plan for what begins with this call, and sets the memory up for it; see `Room.begin_within`.

        With `records` also what is known already is recorded.

        Raises:
            InfeasibleBudgetError: no plan keeps within the budget.
        """
        self.budget_bytes = self.room.begin_within(function, inputs, self.budget_bytes, most_bytes)
        graph = self.following.graph
        if graph is not None:  # a loaded plan runs before any parameter was seen
            self.beside.assume(graph.trace.standing_backward_bytes)
        if records:
            self.following.ample = None
        records = records or (graph is None and self.following.ample is None)
        self.recorder.measures = records and self._meter.start()
        if records and not self.recorder.measures:
            log.logger.info('no plans for new graphs any more: up to Python 3.12 each recording loses memory')
        self._enter(Tally(self._memory.backend, Stretch(self._memory.backend), self.token))
        self.beside.begin_recording()
        self.room.limit()

    def compare_unmoved(self) -> None:
        """Has calls and steps that touch only what never moves be compared and counted alone from now on."""
        graph = self.following.graph
        if graph is not None and self.following.orders.unmoved:
            self._unmoved = Unmoved(graph, self._parameters, self._calls, self.following, self.register, self._memory,
                                    self.beside, self.room, self.writes, self._liveness, self._look_around)

    def _enter(self, tally: Tally) -> None:
        self._orders, plan = self.following.orders, self.following.orders.plan
        self.register.written = self._orders.written
        self._departures.prepare()
        self._memory.enter(Context(
            tally, self.budget_bytes, self.settings.min_bytes, self.following.next_use,
            MAPPED if plan.mapped else COPY_IN, plan.chains.shared, self._note_exposed,
            self.register.gone if self.recorder.measures else None, self._meter.has_counted, self.room.collect))

    # --- forward ---------------------------------------------------------------------------------------------------

    def before_call(self, function: Any, inputs: Sequence[Any]) -> None:
        """Makes room for a forward call.

        Raises:
            InfeasibleBudgetError: the call does not fit and nothing can leave.
            SpillError: a swap-out failed.
        """
        self.is_foreign = False
        if self._unmoved is not None and self._unmoved.begins_call(function, inputs):
            return
        memory, position = self._memory, len(self.recorder.calls)
        coming = self.following.coming_calls(position, function, inputs)
        self._look_around(position)
        memory.pin(filter(None, map(find, map(array_of, inputs))))
        self.is_foreign = may_write_inputs(function)
        self.writes.expect(function, self.is_foreign, memory.pinned)
        self.writes.watch(function, inputs, self.recorder.measures)
        known = coming[0] if coming else None
        is_new = not coming or max([max(each.inputs, default=-1) for each in coming]) >= len(self.recorder.maps)
        self._coming_bytes = self.room.coming_bytes(inputs) if is_new else 0
        need_bytes = self._coming_bytes + (known.peak_bytes if known else UNKNOWN_CALL_ROOM * (
            self._coming_bytes + sum(each.nbytes for each in memory.pinned)))
        self._other_at_start_bytes = self._scratch_bytes()
        self.beside.stand(known.other_bytes if known else self._other_at_start_bytes)
        self.recorder.near_bytes.append(self.room.make(
            need_bytes, position if known else -1,
            self._coming_bytes + max(each.peak_bytes for each in coming) if len(coming) > 1 else 0))
        self._recipes.prepare(function, inputs, position)
        if self.recorder.measures:
            self._meter.mark()

    def after_call(self, function: Any, inputs: Sequence[Any], outputs: Sequence[Any], span: Span) -> None:
        """Records a forward call, and has the maps leave that it used last."""
        recorder, position = self.recorder, len(self.recorder.calls)
        if self._unmoved is not None and self._unmoved.ends_call(function, inputs, outputs, span):
            return
        peak_bytes = self._peak_bytes(self._coming_bytes)
        self.writes.look_at_given()
        if self.writes.look_at_inputs(function, inputs):
            self.is_foreign = True
            self._recipes.forget()
        ids, _ = self.register.call(function, inputs, outputs, position)
        self._calls.add(function)
        known = self.following.call_at(position) if self.following.is_certain and not self.recorder.measures else None
        call = recorder.call(name_of(function), ids, [*function.inputs, *[each.node for each in outputs]], span,
                             peak_bytes, self._recipes.is_repeatable, self._other_at_start_bytes, known)
        for map_id in set(call.inputs) - {-1} if self.is_foreign else ():
            recorder.maps[map_id].written = True  # their producers may not make them again
        self._liveness.read(call.inputs)
        self.following.check_call(call)
        self._take_orders(position)
        self._recipes.write(function, inputs, outputs, peak_bytes, position)
        self._departures.after_call(call)
        self._memory.pin()
        if self.following.orders.plan.synchronous:
            self._memory.synchronise()

    def forget_call(self, function: Any, inputs: Sequence[Any], may_be_given_up: bool) -> None:
        """The call that has begun last has failed, and is no part of the graph; the program goes on, here or anew."""
        self.forget_quiet_call()
        if self.quiet is None:
            del self.recorder.near_bytes[self.recorder.next_position:]
            self.writes.look_at_given()
            self.writes.look_at_inputs(function, inputs)
            self._recipes.forget()
            self._memory.pin()
        self.following.may_be_given_up = may_be_given_up

    # --- backward --------------------------------------------------------------------------------------------------

    def begin_backward(self) -> None:
        """Begins a backward pass: old gradients are gone now, and what the program holds is known."""
        if self.quiet is not None:
            if not self.quiet.begin_backward():
                self.differ()
            return
        if not self._in_backward:
            self.following.check_forward_is_over(self.register.retained, self.recorder.exposed)
            self._take_orders(self.recorder.next_position)
            held = self._departures.begin_backward(self.recorder.measures)
            if self.recorder.measures or self.following.graph is None or self.following.graph.is_estimate:
                self.register.note_holders(held)
            else:
                self.room.disown(self.register.storage)
        self._parameters.begin_backward()
        self._in_backward = True
        if self.beside.begin_backward(self.following.step_at(len(self.recorder.steps))):
            self.recorder.forget_others()
        self.writes.begin_backward()
        self._memory.deferred = self._memory.deferred or []
        self._start_swap_ins()

    def before_step(self, function: Any) -> list[Storage]:
        """Makes resident what a function's backward reads, and gives that; starts swap-ins; makes room for the step."""
        self.is_foreign = False
        if self._unmoved is not None and self._unmoved.begins_step(function):
            return []
        if not (recorder := self.recorder).steps and makes_graphs():
            self.makes_graphs = True
            note_that_it_makes_graphs(self.following.graph)
        self.writes.look_at_shown()
        self._look_around(recorder.next_position)
        needed = list(dict.fromkeys((*retained(function), *self.writes.read_by_hooks())))
        self._memory.pin(needed)
        self.is_foreign = may_write_inputs(function)
        call = self._calls.number(function)
        known = self.following.check_step(len(recorder.steps), call, function)
        self._take_orders(recorder.next_position)
        others = [each for each in needed if each.token is not self.token]
        self._read_again.note(others, self.following.graph, self.finished and len(others) < len(needed))
        if known is not None:  # what the steps before have left is there already, beside what comes now
            self.beside.stand(self.beside.scratch_of(known, earlier_bytes(others)))
        for storage in needed:
            if storage.state is not State.RESIDENT:
                if known is not None and storage.state is not State.ARRIVING:
                    self.room.make_for_map(storage)
                storage.memory.fetch(storage, exposed=False, beside=needed)
            storage.use(recorder.now)
        self.writes.expect(function, self.is_foreign, needed)  # of the bytes as they are now
        scratch_bytes = self._scratch_bytes()
        self._other_at_start_bytes = max(0, scratch_bytes + earlier_bytes(others) + self.beside.stood_bytes())
        most_bytes = 0 if known is not None and call >= 0 else recorder.likely_bytes(call, function)
        need_bytes = (most_bytes if known is None else known.peak_bytes) + self.beside.sum_bytes(function)
        if known is not None:
            if others:  # what is mapped by now counts no more
                self.beside.stand(self.beside.scratch_of(known, earlier_bytes(others)))
            self._start_swap_ins()  # not after the step before, while Chainer still has the gradient that it read
        else:
            self.beside.stand(scratch_bytes)
        recorder.near_bytes.append(self.room.make(need_bytes, -1 if known is None else known.position, most_bytes))
        if self.recorder.measures:
            self._meter.mark()
        return needed

    def after_step(self, function: Any, needed: list[Storage], span: Span) -> None:
        """Records a step and drops what is not needed any more; where no graph is known, starts likely swap-ins."""
        if self._unmoved is not None and self._unmoved.ends_step(span):
            return
        peak_bytes, position = self._peak_bytes(), self.recorder.next_position
        self.writes.look_at_given()
        own = [each.map for each in needed if each.token is self.token]
        if len(own) < len(needed):
            self.spans_threads |= any(each.memory is not self._memory for each in needed)
        call = self._calls.number(function)
        label = '' if call >= 0 else name_of(function)
        self.recorder.step(call, own, span, peak_bytes, self._other_at_start_bytes, label)
        for storage in needed:
            if storage.note_backward():
                if storage.token is not self.token:
                    storage.memory.drop(storage, may_lose=False)
                elif self.following.graph is None:
                    self._liveness.drop(storage, may_lose=False)
            storage.memory.touch(storage)
        self._liveness.step_over(self.recorder.calls[call].inputs if call >= 0 else (),
                                 self.following.freed_after(position))
        self._departures.after_step(position)
        self._memory.pin()
        if self.following.orders.plan.synchronous:
            self._memory.synchronise()
        if self.following.graph is None:
            self._start_swap_ins()

    # --- the end ---------------------------------------------------------------------------------------------------

    def end_backward(self) -> Finished:
        """Ends a backward pass; gives what the iteration can be asked."""
        self.finished = True
        tally, graph = self._memory.tally, self.following.graph
        if self.quiet is None:
            self._end_backward()
        else:
            self.quiet.end_backward()
            tally.peak_bytes = self.quiet.peak_bytes
        tally.end()
        self._memory.backend.rest()
        return Finished(tally.snapshot(), self.settings, self.budget_bytes, self.following.orders, graph,
                        None if self.quiet else self.recorder.moments())

    def _end_backward(self) -> None:
        self._memory.check_deferred()
        self._read_again.learn(has_ended=True)
        self.recorder.is_late = self._read_again.has_lost
        self.writes.end_backward()
        held = self._liveness.held()
        for map_id in held:
            self.recorder.maps[map_id].held = True
        self.register.end_backward()
        if self.following.graph is not None:
            self.following.graph.learn(held=held)
        self._memory.leave_room()
        if (peak_bytes := self._memory.tally.peak_bytes) > self.budget_bytes:
            log.warn_of_excess(peak_bytes, self.budget_bytes)

    def is_over(self) -> bool:
        """Whether the next function begins another iteration: backward has ended, or the graph is dead."""
        return self.finished or not self.calls().is_alive()

    def begins_anew(self, function: Any, inputs: Sequence[Any]) -> bool:
        """See `Following.begins_anew`; a call that reads a map of this iteration is part of it."""
        calls = self.calls()
        return (not self._in_backward and self.following.begins_anew(len(calls.functions), function, inputs)
                and not calls.is_read_by(inputs)
                and not any(each is not None and each.token is self.token for each in map(find, map(array_of, inputs))))

    def abandon(self) -> None:
        """Ends an iteration whatever its state: nothing is metered or pinned for it any more."""
        self.token.has_ended = True  # first, or after an interrupt what it has left would be its own for ever
        if self.quiet is not None:
            self.quiet.end_backward()
        self.writes.end_backward()
        self._read_again.learn(has_ended=False)
        self._departures.end()
        self._meter.stop()
        self._memory.meter(None)
        self._memory.pin()
        self._unmoved = None  # it refers back, and Python's collector alone would find the two
        self.following.end()

    def close(self) -> Trace | None:
        """Stops recording; gives the trace if the whole iteration was recorded and no known graph describes it."""
        self.abandon()
        self.beside.end(self.token)
        estimate = self.following.graph
        if not self.finished or (not self.recorder.measures if estimate is None else not estimate.is_estimate
                                 or estimate.is_loose or len(self.recorder.steps) != len(estimate.trace.steps)):
            return None
        trace = freeze_trace(self.recorder, self._memory, self._parameters, self.beside.now.others_bytes, self.settings)
        return trace if estimate is None or self.recorder.measures else fill_in(trace, estimate.trace)

    def leave(self) -> Span:
        """Follows the graph no more; gives an empty span, for what was not timed."""
        if not self.token.has_ended:
            self.room.settle()
        self.following.leave()
        return (now := self._memory.backend.timestamp()), now

    # --- shared ----------------------------------------------------------------------------------------------------

    def _look_around(self, position: int) -> None:
        """Books what ended since the last computation: swap-outs, blocks that died, references."""
        self._take_orders(position)
        for storage in self._departures.go_on():
            if storage.token is self.token and not self._in_backward:
                self.recorder.maps[storage.map].last_held = position - 1
        if self._orders.plan.synchronous:
            self._memory.settle()
        if self.recorder.measures:
            self._memory.near_bytes()
        self.recorder.now = position

    def _take_orders(self, position: int) -> None:
        """Goes on under the plan of another graph if one is followed since the last computation, or without one."""
        if self.following.orders is not self._orders and not self.token.has_ended:  # later the memory is the next one's
            self._enter(self._memory.tally)
            self._departures.forget_recipes()
            if self._unmoved is not None:
                self._unmoved.take_orders()
            if not self.recorder.steps:  # later what has left is on its way back
                self._departures.catch_up(position)

    def _note_exposed(self, storage: Storage) -> None:
        is_own = storage.token is self.token
        if is_own and self.finished and not storage.is_shown():
            self.recorder.maps[storage.map].reused = True
        self.recorder.note_read(storage.map if is_own else -1, self._in_backward)

    def _scratch_bytes(self) -> int:
        is_asked = self.recorder.measures or (self._in_backward and self.following.graph is None)
        return self.beside.measured_scratch_bytes() if is_asked else 0

    def _peak_bytes(self, beside_bytes: int = 0) -> int:
        """What the computation that has just run allocated at its highest; 0 where that is not measured."""
        if not self.recorder.measures:
            return 0
        peak_bytes = self._meter.above_mark_bytes()
        self._memory.note_peak(peak_bytes + beside_bytes)
        return peak_bytes
