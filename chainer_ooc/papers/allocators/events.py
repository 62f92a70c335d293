"""The mallocs and frees of an iteration, in the order in which a simulated timeline has them; run through an allocator.

At the edge before each position swap-ins that are issued allocate their maps, and then swap-outs that are whole free
theirs; a swap-in that had to wait for memory comes after these. The computation allocates what it makes that stays,
then what it needs besides; it frees the latter, and then what has been used for the last time::

    edge                     computation                                         end
    malloc map 4 (swap-in)   malloc map 7 (its output)                           free temporary
    free   map 2 (is away)   malloc temporary = peak_bytes - map 7               free map 5 (last use)

What a trace does not tell is chosen so that the sum of live bytes is the simulator's `near_bytes`, at every position:

- Outputs come before temporary memory, as with cuDNN, whose workspace is asked for when the output is there already.
- All temporary memory of a computation is one block.
- Gradients, and what else lives beside maps (`other_bytes`), are a stack. Where they grow, the growth is allocated in
  the computation that makes it, as part of its `peak_bytes`. Where they shrink, the youngest blocks go, for those are
  the gradients of feature maps that the step consumed, and what was too much of it comes again as a block of its own.
- What lives through the iteration is one block; what of it lives in forward only, or in backward only, is another.
- At the end everything but the first block is freed, so that a second iteration can follow.

One figure is smaller than the simulator's: the demand counts a map that a chain makes again twice while the chain runs,
as a map and in the peak of its call. Here it is allocated once.

A plan with a budget of B bytes is kept by counting bytes; an allocator that fragments needs a larger device for it.
`smallest_capacity` says how much larger, and with that which budget a device allows::

    |<- budget of the plan (exact) ->|<- lost to fragmentation ->|
    |<---------- smallest capacity of the pool ----------------->|

Source: PoocH 4.1 (a profile has malloc and free in order); Window+VA section 4, and figure 3 (a budget of 8 GB filled a
device of 16 GB at batch 928). Left out: a copy that is whole in the middle of a computation frees its memory at the
next edge.
"""

from __future__ import annotations

import heapq
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chainer_ooc.classify.search import largest_fitting
from chainer_ooc.papers.allocators.allocator import AllocatorModel, DeviceFullError, ExactAllocator, ModelBlock
from chainer_ooc.problem import Problem, Verdict
from chainer_ooc.schedule.schedule import Schedule, residency
from chainer_ooc.simulate.timeline import Stream, Task, Timeline

#: Position of what is allocated once, before the first iteration.
BEFORE = -1


@dataclass(frozen=True)
class Event:
    """A malloc or a free.

    Attributes:
        kind: 'malloc' or 'free'.
        block: number of the block, of which each has one malloc.
        nbytes: its size.
        position: the computation before or in which it happens; `BEFORE` for what stays from iteration to iteration.
        purpose: 'standing', 'old gradients', 'others' in forward, 'gradients' in backward, 'temporary', or 'map' with
            its id.
        at_edge: before the computation itself.
    """

    kind: str
    block: int
    nbytes: int
    position: int
    purpose: str
    at_edge: bool = False


def events_of(problem: Problem, schedule: Schedule, timeline: Timeline) -> tuple[Event, ...]:
    """Derives the mallocs and frees of one iteration, whose timeline is what `simulate` gave for the other two."""
    return _Writer(problem, schedule, timeline).write()


class _Writer:
    def __init__(self, problem: Problem, schedule: Schedule, timeline: Timeline):
        self.trace, self.standing, self.tasks = problem.trace, problem.standing, timeline.tasks
        self.chains, self.synchronous, self.mapped = schedule.chains, schedule.synchronous, schedule.mapped
        self.recalls = problem.recalls
        self.events: list[Event] = []
        self.live: dict[int, Event] = {}  # by block
        self.block_of: dict[int, int] = {}  # of each map that has one
        self.gradients: list[int] = []  # and other blocks beside maps, the youngest last
        self.other_bytes = [call.other_bytes for call in self.trace.calls]
        self.other_bytes += [step.other_bytes for step in self.trace.steps]
        self.late_growth_bytes = 0
        self.old_gradients: int | None = None
        self.position, self.at_edge = BEFORE, True
        self.whole_at: dict[int, float] = {}  # when the copy of each swapped map is whole
        self.leaving: list[tuple[float, int]] = []  # the same of those that will be freed then, a heap
        self.comes_back = {task.subject for task in timeline.of(Stream.COPY_IN)}
        self.made_by: dict[int | None, list[int]] = defaultdict(list)
        self.over_after: dict[int, list[int]] = defaultdict(list)
        for each, verdict in zip(self.trace.maps, schedule.verdicts, strict=True):
            self.made_by[each.producer].append(each.id)
            stays = residency(self.trace, each, verdict, problem.min_bytes, schedule.chains, schedule.leaves[each.id],
                              schedule.mapped)
            # The end of a swapped map's first stay is a copy's, which the timeline has.
            for _, last in stays[1:] if verdict is Verdict.SWAP else stays:
                self.over_after[last].append(each.id)

    def write(self) -> tuple[Event, ...]:
        self._begin()
        for task in self.tasks:
            if task.stream is Stream.COPY_OUT:
                self._leave(task)
            elif task.stream is Stream.COPY_IN:
                self._come(task)
            else:
                self._compute(task)
        for event in list(self.live.values()):
            if event.position != BEFORE:
                self._free(event.block)
        return tuple(self.events)

    def _malloc(self, nbytes: int, purpose: str) -> int:
        event = Event('malloc', len(self.events), nbytes, self.position, purpose, self.at_edge)
        self.events.append(event)
        self.live[event.block] = event
        return event.block

    def _free(self, block: int) -> None:
        event = self.live.pop(block)
        self.events.append(Event('free', block, event.nbytes, self.position, event.purpose, self.at_edge))

    def _malloc_map(self, map_id: int) -> int:
        nbytes = self.trace.maps[map_id].nbytes
        self.block_of[map_id] = self._malloc(nbytes, f'map {map_id}')
        return nbytes

    def _free_map(self, map_id: int) -> None:
        self._free(self.block_of.pop(map_id))

    def _begin(self) -> None:
        forward_bytes, backward_bytes = self.standing.forward_bytes, self.standing.backward_bytes
        both_bytes = min(forward_bytes, backward_bytes) if self.trace.calls else backward_bytes
        self._malloc(both_bytes, 'standing')
        self.position = 0
        if forward_bytes > both_bytes and self.trace.calls:
            self.old_gradients = self._malloc(forward_bytes - both_bytes, 'old gradients')
        for map_id in self.made_by[None]:
            self._malloc_map(map_id)
        self._begin_edge()

    def _begin_edge(self) -> None:
        """What goes before a position, beside copies."""
        if self.position == self.trace.backward_start and self.trace.steps and self.old_gradients is not None:
            self._free(self.old_gradients)

    def _end_edge(self) -> None:
        """What comes before a position, when the copies that are whole have gone."""
        late_bytes, self.late_growth_bytes = self.late_growth_bytes, 0
        self._grow(late_bytes)
        begins = self.position == self.trace.backward_start and self.trace.steps
        if begins and self.trace.calls and self.standing.backward_bytes > self.standing.forward_bytes:
            self._malloc(self.standing.backward_bytes - self.standing.forward_bytes, 'standing')
        if begins or not self.position:
            before_bytes = self.other_bytes[self.position - 1] if self.position else 0
            shed, growth_bytes = self._changed_by(self.other_bytes[self.position] - before_bytes)
            for block in shed:
                self._free(block)
            self._grow(growth_bytes)

    def _leave(self, task: Task) -> None:
        """A copy begins. A map that is wanted before it is whole never comes back, since it stays."""
        self.whole_at[task.subject] = task.end_seconds
        if task.subject in self.comes_back or not self.chains.uses[task.subject]:
            heapq.heappush(self.leaving, (task.end_seconds, task.subject))

    def _notice(self, seconds: float) -> None:
        """Frees the maps whose copies are whole by then."""
        while self.leaving and self.leaving[0][0] <= seconds:
            self._free_map(heapq.heappop(self.leaving)[1])

    def _come(self, task: Task) -> None:
        """A swap-in is issued, which takes memory before its copy begins, unless the map is read where it is.

        Where maps are not recalled, one that is still leaving keeps the memory that it has.
        """
        if self.mapped:
            return
        if not self.recalls and task.subject in self.block_of:
            self.leaving = [each for each in self.leaving if each[1] != task.subject]
            heapq.heapify(self.leaving)
            return
        # With its use a swap-in may have waited for room; at an edge it is issued before anything is noticed.
        has_waited = self.synchronous or self.chains.uses[task.subject][0] == self.position
        self._notice(task.start_seconds if has_waited else self.whole_at[task.subject])
        self._malloc_map(task.subject)

    def _compute(self, task: Task) -> None:
        self._notice(task.start_seconds)
        self._end_edge()
        self.at_edge = False
        if self.position < self.trace.backward_start:
            self._call()
        else:
            self._step()
        for map_id in self.over_after[self.position]:
            if self.whole_at.get(map_id, 0.0) <= task.end_seconds:
                self._free_map(map_id)
            else:  # it stayed, and its copy is still under way
                heapq.heappush(self.leaving, (self.whole_at[map_id], map_id))
        if self.position + 1 < self.trace.positions:
            self.position, self.at_edge = self.position + 1, True
            self._begin_edge()

    def _call(self) -> None:
        made_bytes = sum(self._malloc_map(each) for each in self.made_by[self.position])
        self._allocate(self.trace.calls[self.position].peak_bytes - made_bytes)

    def _temporary(self, nbytes: int) -> None:
        self._free(self._malloc(max(nbytes, 0), 'temporary'))

    def _step(self) -> None:
        self._run_again(self.chains.calls_at.get(self.position, ()))
        self._allocate(self.trace.steps[self.position - self.trace.backward_start].peak_bytes)

    def _allocate(self, peak_bytes: int) -> None:
        """What stays beside maps, and what goes when the computation has ended."""
        next_to = self.position + 1
        is_last = next_to in (self.trace.backward_start, self.trace.positions)  # of its half
        shed, growth_bytes = self._changed_by(
            0 if is_last else self.other_bytes[next_to] - self.other_bytes[self.position])
        if growth_bytes > peak_bytes:  # it cannot have been made within the computation
            growth_bytes, self.late_growth_bytes = 0, growth_bytes
        self._grow(growth_bytes)
        self._temporary(peak_bytes - growth_bytes)
        for block in shed:
            self._free(block)

    def _run_again(self, calls: tuple[int, ...]) -> None:
        last_use = {map_id: call for call in calls for map_id in self.trace.calls[call].inputs}
        passing: dict[int, int] = {}  # blocks of maps that live within the chain
        for call in calls:
            made_bytes = 0
            for made in self.made_by[call]:
                if self.chains.restored[made] == self.position:
                    made_bytes += self._malloc_map(made)
                elif last_use.get(made, -1) > call:
                    made_bytes += self.trace.maps[made].nbytes
                    passing[made] = self._malloc(self.trace.maps[made].nbytes, f'map {made}')
            self._temporary(self.trace.calls[call].peak_bytes - made_bytes)
            for made in [each for each in passing if last_use[each] <= call]:
                self._free(passing.pop(made))

    def _changed_by(self, change_bytes: int) -> tuple[list[int], int]:
        """Blocks of what lives beside maps that go, and the bytes that come."""
        shed = []
        while change_bytes < 0:
            shed.append(self.gradients.pop())
            change_bytes += self.live[shed[-1]].nbytes
        return shed, change_bytes

    def _grow(self, nbytes: int) -> None:
        if nbytes:
            purpose = 'others' if self.position < self.trace.backward_start else 'gradients'
            self.gradients.append(self._malloc(nbytes, purpose))


@dataclass(frozen=True)
class Replay:
    """What happened.

    Attributes:
        peak_used_bytes: the most that was asked for and alive.
        peak_reserved_bytes: the most that the allocator had from the device.
        fragmentation: the share of that which was not used, when it first was so much.
        failed_at: the position whose malloc failed (`BEFORE` for what precedes the iteration), or None.
    """

    peak_used_bytes: int
    peak_reserved_bytes: int
    fragmentation: float
    failed_at: int | None


def replay(events: Sequence[Event], allocator: AllocatorModel, iterations: int = 1) -> Replay:
    """Runs events through a fresh allocator, until the end or until it has no room.

    Args:
        events: of one iteration, as `events_of` gives them.
        allocator: is changed: it holds afterwards what lives between iterations, or what lived at the failure.
        iterations: how often the iteration runs; later ones find the cache that the first has cut up.
    """
    blocks: dict[int, ModelBlock] = {}
    peak_used_bytes, peak_reserved_bytes, fragmentation, failed_at = 0, 0, 0.0, None
    try:
        for number in range(iterations):
            for event in events:
                if number and event.position == BEFORE:
                    continue
                if event.kind == 'malloc':
                    blocks[event.block] = allocator.malloc(event.nbytes)
                else:
                    allocator.free(blocks.pop(event.block))
                peak_used_bytes = max(peak_used_bytes, allocator.used_bytes)
                if allocator.reserved_bytes > peak_reserved_bytes:
                    peak_reserved_bytes = allocator.reserved_bytes
                    fragmentation = 1 - allocator.used_bytes / peak_reserved_bytes
    except DeviceFullError:
        failed_at = event.position
    return Replay(peak_used_bytes, peak_reserved_bytes, fragmentation, failed_at)


def smallest_capacity(events: Sequence[Event], allocator: Callable[[int], AllocatorModel], iterations: int = 1) -> int:
    """The smallest device, in bytes, in which the events succeed, by bisection.

    Between the bytes that live at most and the bytes that the allocator takes from a device without an end, a larger
    device is taken to be no worse. For a best-fit pool that is not quite so: what it gives back differs, and now and
    then a device somewhat smaller than the answer would do. The answer itself always does, and one byte less does not.
    Events and iterations are those of `replay`; `allocator` makes a fresh one for a capacity in bytes.
    """
    enough = replay(events, allocator(sys.maxsize), iterations).peak_reserved_bytes
    too_little = replay(events, ExactAllocator(sys.maxsize)).peak_used_bytes - 1
    return 1 + largest_fitting(too_little, enough, lambda capacity_bytes: (
        replay(events, allocator(capacity_bytes), iterations).failed_at is not None))
