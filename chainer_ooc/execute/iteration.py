"""One iteration: its forward calls, then the steps of one or more backward passes.

While the graph is one that is known, its orders are followed: maps leave after their last forward use, swap-ins start
when the plan says so, maps are dropped after their last backward use. Otherwise the iteration is safe and slow, and is
recorded: what a call retained leaves as soon as the next call does not need it, and comes back when it is read.

    apply -> before_call  reap, make room | compute |  after_call  register, follow, let leave
    step  -> before_step  fetch, make room | compute |  after_step  drop, start swap-ins

Source: PoocH 4.1 (profiled and optimised phases). Left out: iterations that overlap in one thread.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from typing import Any

from chainer_ooc.classify.verdict import Verdict
from chainer_ooc.config import Settings
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute.plans import Graph, Graphs, Orders
from chainer_ooc.execute.residency import Residency
from chainer_ooc.execute.seen import Parameters, array_of, retained, see_call
from chainer_ooc.execute.storage import State, Storage
from chainer_ooc.execute.tally import IterationStats, Tally
from chainer_ooc.quantities import format_bytes
from chainer_ooc.record.meter import AllocationMeter
from chainer_ooc.record.recorder import Recorder
from chainer_ooc.schedule.demand import Standing
from chainer_ooc.trace import Call, Step, Trace


#: While a graph is unknown, the maps of so many calls before the current one are on their way in backward, if near
#: memory has room for so many times their size: what the calls themselves allocate is not known yet.
LOOK_AHEAD_CALLS = 3
LOOK_AHEAD_ROOM = 8


class Iteration:
    """From the first function that is applied to the end of backward.

    Attributes:
        graph: the known graph that is followed, or None.
        in_backward: a backward pass has begun.
        finished: a backward pass has ended.
        left: it followed a graph, and then a call differed.
    """

    def __init__(self, settings: Settings, budget_bytes: int, residency: Residency, parameters: Parameters,
                 graphs: Graphs, meter: AllocationMeter, recording: bool):
        self.settings = settings
        self.budget_bytes = budget_bytes
        self.recorder = Recorder()
        self.graph: Graph | None = None
        self.in_backward = False
        self.finished = False
        self.left = False
        self._orders: Orders | None = None
        self._residency = residency
        self._parameters = parameters
        self._graphs = graphs
        self._meter = meter
        self._recorded = recording
        self._storages: list[weakref.ref[Storage]] = []
        self._functions: list[weakref.ref[Any]] = []
        self._call_of: dict[int, int] = {}
        self._retained: list[list[int]] = []
        self._hesitant: list[weakref.ref[Storage]] = []
        self._next_swap_in = 0
        self._began = time.perf_counter()
        self._begin()

    def _begin(self) -> None:
        residency = self._residency
        residency.tally = Tally()
        residency.budget_bytes = self.budget_bytes
        residency.min_bytes = self.settings.min_bytes
        residency.next_use = self._next_use
        residency.on_event = self._event
        self._steady_bytes, self._gradient_bytes = self._parameters.standing_bytes()
        graph = self._graphs.latest()
        if graph is not None and graph.recordings >= self.settings.profile_iterations:
            self._follow(graph)
        if self._recorded:
            self._meter.start()
            residency.forget_metered()
        residency.metering = self._recorded

    def _follow(self, graph: Graph) -> None:
        standing = Standing(self._steady_bytes + self._gradient_bytes, self._steady_bytes)
        self._orders = graph.orders_for(self.settings, self.budget_bytes, standing)
        self.graph = graph

    # --- forward ---------------------------------------------------------------------------------------------------

    def before_call(self, function: Any, inputs: Sequence[Any]) -> None:
        """Makes room for a forward call.

        Raises:
            InfeasibleBudgetError: nothing more can leave, and the call does not fit.
            SpillError: a swap-out failed.
        """
        residency, position = self._residency, len(self.recorder.calls)
        residency.reap()
        self._retry()
        residency.near_bytes()
        self.recorder.now = position
        given = [residency.find(array_of(each)) for each in inputs]
        residency.pinned = frozenset(each for each in given if each is not None)
        known = self._known_call(position)
        residency.standing_bytes = self._steady_bytes + self._gradient_bytes + self._other_bytes()
        need_bytes = known.peak_bytes if known else 4 * sum(each.nbytes for each in residency.pinned)
        self._room(need_bytes, known is not None, f'{function.label}, forward of call {position}')
        self._meter.mark()

    def after_call(self, function: Any, inputs: Sequence[Any], outputs: Sequence[Any], seconds: float) -> None:
        """Records a forward call, and lets go of what it used last."""
        recorder, residency = self.recorder, self._residency
        position, peak_bytes = len(recorder.calls), self._meter.above_mark_bytes()
        if self._recorded:
            self._peak(peak_bytes)
        ids = see_call(residency, recorder, self._parameters, self, function, inputs, outputs,
                       self.settings.min_bytes)
        self._keep_track(function, inputs, outputs, position)
        shapes = [array_of(each) for each in (*inputs, *outputs)]
        call = recorder.call(function.label, ids, shapes, seconds, peak_bytes)
        del shapes
        self._check(call)
        if self._orders is not None:
            self._leave(self._orders.leave_after.get(position, ()))
        elif self.settings.policy != 'keep':
            self._leave_eagerly(call)

    def _keep_track(self, function: Any, inputs: Sequence[Any], outputs: Sequence[Any], position: int) -> None:
        self._functions.append(weakref.ref(function))
        self._call_of[id(function)] = position
        found = {}
        for array in (*map(array_of, inputs), *(each.array for each in outputs)):
            storage = self._residency.find(array)
            if storage is not None and storage.token is self:
                found[storage.map] = storage
        kept = [each for each in retained(self._residency, function) if each.token is self]
        self._retained.append([each.map for each in kept])
        found.update({each.map: each for each in kept})
        for map_id in sorted(found):
            if map_id == len(self._storages):
                self._storages.append(weakref.ref(found[map_id]))

    def _check(self, call: Call) -> None:
        """Follows the graph that this call belongs to."""
        known = self._known_call(call.index)
        if self._orders is None or (known is not None and known.signature == call.signature):
            return
        other = self._graphs.like([each.signature for each in self.recorder.calls])
        if other is not None and other.recordings >= self.settings.profile_iterations:
            self._follow(other)
        else:
            self.graph, self._orders, self.left = None, None, True

    def _known_call(self, position: int) -> Call | None:
        calls = self.graph.trace.calls if self.graph is not None else ()
        return calls[position] if position < len(calls) else None

    def _leave(self, maps: Sequence[int]) -> None:
        for map_id in maps:
            storage = self._storage(map_id)
            if storage is not None and not self._residency.swap_out(storage):
                self._hesitant.append(weakref.ref(storage))

    def _leave_eagerly(self, call: Call) -> None:
        still_needed = {*call.outputs}
        for storage in self._residency.storages():
            if (storage.token is self and storage.map not in still_needed and storage.state is State.RESIDENT
                    and storage.nbytes >= max(self.settings.min_bytes, 1) and storage.pending_uses):
                self._residency.swap_out(storage)

    def _retry(self) -> None:
        hesitant, self._hesitant = self._hesitant, []
        for ref in hesitant:
            storage = ref()
            if storage is not None and storage.state is State.RESIDENT and not self._residency.swap_out(storage):
                self._hesitant.append(ref)

    # --- backward --------------------------------------------------------------------------------------------------

    def begin_backward(self) -> None:
        """A backward pass begins: old gradients are gone now, and what somebody else holds is known."""
        if not self.in_backward:
            for map_id, row in enumerate(self.recorder.maps):
                storage = self._storage(map_id)
                row.foreign = storage is not None and storage.state is State.RESIDENT and storage.held_elsewhere()
        self.in_backward = True
        self._steady_bytes, self._gradient_bytes = self._parameters.standing_bytes()
        if self._orders is not None and self._known_call(len(self.recorder.calls)) is not None:
            self.graph, self._orders, self.left = None, None, True
        self._start_swap_ins()

    def before_step(self, function: Any) -> list[Storage]:
        """Makes resident what a function's backward reads, and room for what it allocates.

        Returns:
            The storages that it reads.
        """
        residency, position = self._residency, self.recorder.next_position
        residency.reap()
        self._retry()
        residency.near_bytes()
        self.recorder.now = position
        needed = retained(residency, function)
        residency.pinned = frozenset(needed)
        for storage in needed:
            if storage.state in (State.AWAY, State.ARRIVING, State.LOST):
                residency.fetch(storage, exposed=False)
            storage.touched = position
        known = self._known_step(function)
        if known is not None:
            residency.standing_bytes = self._steady_bytes + max(self._gradient_bytes, known.other_bytes)
            need_bytes = known.peak_bytes
        else:
            residency.standing_bytes = self._steady_bytes + self._gradient_bytes + self._other_bytes()
            call = self._call_of.get(id(function), -1)
            need_bytes = self.recorder.calls[call].peak_bytes if call >= 0 else 0
        self._room(need_bytes, known is not None, f'{function.label}, backward')
        self._step_other_bytes = self._other_bytes()
        self._meter.mark()
        return needed

    def after_step(self, function: Any, needed: list[Storage], seconds: float) -> None:
        """Records a step, drops what is not needed any more, and starts the swap-ins that are due."""
        peak_bytes, position = self._meter.above_mark_bytes(), self.recorder.next_position
        if self._recorded:
            self._peak(peak_bytes)
        self._note_reuse(needed)
        own = [each.map for each in needed if each.token is self]
        self.recorder.step(self._call_of.get(id(function), -1), own, seconds, peak_bytes, self._step_other_bytes)
        for storage in needed:
            storage.pending_uses -= 1
            if storage.pending_uses <= 0 and (self._orders is None or storage.token is not self):
                self._residency.drop(storage, may_lose=False)
        if self._orders is not None and self.graph is not None:
            for map_id, may_lose in self._orders.free_after.get(position, ()):
                storage_or_none = self._storage(map_id)
                if storage_or_none is not None:
                    self._residency.drop(storage_or_none, may_lose and map_id not in self.graph.reused)
        self._residency.pinned = frozenset()
        self._start_swap_ins()

    def _known_step(self, function: Any) -> Step | None:
        """The plan's step, if the function is the one that it expects here."""
        if self.graph is None:
            return None
        trace, number = self.graph.trace, len(self.recorder.steps)
        step = trace.steps[number] if number < len(trace.steps) else None
        if step is None or step.call != self._call_of.get(id(function), -1):
            self.graph, self._orders, self.left = None, None, True
            return None
        return step

    def _note_reuse(self, needed: list[Storage]) -> None:
        """A map of an earlier iteration's graph was read again: that graph's plan may not lose it."""
        for storage in needed:
            other = storage.token
            if isinstance(other, Iteration) and other is not self and other.graph is not None:
                other.graph.reused.add(storage.map)

    def _start_swap_ins(self) -> None:
        """Starts the swap-ins that are due; with no plan, those of the calls that backward most likely comes to next."""
        if self._orders is None or self.graph is None:
            self._look_ahead()
            return
        due, position, trace = self._orders.swap_ins, self.recorder.next_position, self.graph.trace
        number = len(self.recorder.steps)
        ahead_bytes = trace.steps[number].peak_bytes if number < len(trace.steps) else 0
        while self._next_swap_in < len(due) and due[self._next_swap_in].start <= position:
            storage = self._storage(due[self._next_swap_in].map)
            if storage is not None and storage.state is State.LEAVING:
                return
            if storage is not None and storage.state is State.AWAY:
                if not self._residency.fits(storage.nbytes + ahead_bytes):
                    return
                self._residency.prefetch(storage)
            self._next_swap_in += 1

    def _look_ahead(self) -> None:
        latest = self.recorder.steps[-1].call if self.recorder.steps else len(self.recorder.calls)
        for call in range(latest - 1, max(latest - 1 - LOOK_AHEAD_CALLS, -1), -1):
            for map_id in self._retained[call]:
                storage = self._storage(map_id)
                room_bytes = LOOK_AHEAD_ROOM * storage.nbytes if storage is not None else 0
                if storage is not None and storage.state is State.AWAY and self._residency.fits(room_bytes):
                    self._residency.prefetch(storage)

    # --- the end ---------------------------------------------------------------------------------------------------

    def end_backward(self) -> IterationStats:
        """A backward pass ended; another one over the same graph may follow."""
        self.finished = True
        tally = self._residency.tally
        tally.seconds = time.perf_counter() - self._began
        plan = self._orders.plan if self._orders is not None else None
        return IterationStats(
            policy=self.settings.policy, phase='profile' if plan is None else 'run', budget_bytes=self.budget_bytes,
            peak_bytes=tally.peak_bytes, swapped_out_bytes=tally.swapped_out_bytes,
            swapped_in_bytes=tally.swapped_in_bytes, recomputed_calls=0, faults=tally.faults,
            stall_seconds=tally.stall_seconds, seconds=tally.seconds,
            predicted_seconds=None if plan is None else plan.seconds,
            predicted_peak_bytes=None if plan is None else plan.peak_bytes,
            keep=0 if plan is None else plan.count(Verdict.KEEP),
            swap=0 if plan is None else plan.count(Verdict.SWAP), recompute=0)

    def is_over(self) -> bool:
        """Whether the next function begins another iteration: backward has ended, or the graph is dead."""
        return self.finished or not any(ref() is not None for ref in self._functions)

    def close(self) -> Trace | None:
        """Stops recording; gives the trace if the whole iteration was recorded and no known graph describes it."""
        self._meter.stop()
        self._residency.metering = False
        if not self._recorded or self._orders is not None or not self.finished:
            return None
        return self.recorder.trace(
            self._residency.backend.name, self._residency.tally.seconds, self._residency.backend.bandwidth())

    def _event(self, kind: str, token: object, map_id: int, nbytes: int) -> None:
        if token is self and map_id < len(self.recorder.maps):
            self.recorder.event(kind, map_id, nbytes)

    # --- shared ----------------------------------------------------------------------------------------------------

    def _storage(self, map_id: int) -> Storage | None:
        return self._storages[map_id]() if map_id < len(self._storages) else None

    def _other_bytes(self) -> int:
        """What was allocated since recording began and is no feature map."""
        return max(0, self._meter.current_bytes() - self._residency.metered_bytes()) if self._recorded else 0

    def _room(self, need_bytes: int, certain: bool, where: str) -> None:
        fits = self._residency.make_room(need_bytes)
        self._peak(need_bytes if certain else 0)
        if not fits and certain:
            floor_bytes = self._residency.near_bytes() + need_bytes
            raise InfeasibleBudgetError(self.settings.policy, self.budget_bytes, floor_bytes, where)

    def _peak(self, above_bytes: int) -> None:
        tally = self._residency.tally
        tally.peak_bytes = max(tally.peak_bytes, self._residency.near_bytes() + above_bytes)

    def _next_use(self, storage: Storage) -> float:
        """The position at which a storage is used next, as far as the plan knows; the one not used longest else."""
        if self.graph is None or storage.token is not self:
            return -float(storage.touched)
        feature_map, position = self.graph.trace.maps[storage.map], self.recorder.next_position
        if feature_map.last_forward_use >= position:
            return position
        return next((use for use in feature_map.backward_uses if use >= position), float('inf'))


def describe(stats: IterationStats) -> str:
    """One line for the log."""
    return (f'{stats.policy} ({stats.phase}): {stats.seconds:.3f} s, peak {format_bytes(stats.peak_bytes)} of '
            f'{format_bytes(stats.budget_bytes)}, out {format_bytes(stats.swapped_out_bytes)}, in '
            f'{format_bytes(stats.swapped_in_bytes)}, {stats.faults} faults, {stats.stall_seconds:.3f} s stalled')
