"""Simulates an iteration: a compute stream, a stream for each direction of copying, and a memory of limited size.

It does what execution does, at the same moments:

- A map's swap-out is issued when the last call that uses it in forward has ended. Its memory is free only when the copy
  is whole, and that is noticed at the edge of a computation, after the swap-ins that begin there were issued.
- A computation begins when what it reads has arrived, and when what it allocates fits. Until then it waits: for the
  oldest swap-out, or for the swap-in.
- A swap-in is issued at the edge of a computation, when its plan says so and the memory is there beside all that the
  computation needs. If it is not there the next edge tries again, and the use itself brings the map in at the latest.
- A map that is wanted back while it is still leaving stays. It counts once, and if its last use passes before its copy
  is whole, its memory is free only then. Where the problem says that maps are not recalled, it is copied in as soon as
  it has been copied out, and its memory is not freed in between.
- Where maps are read where they are, a swap-in needs no memory. A map that is wanted while it is still leaving does not
  stay: it is swapped in when it is noticed that it has left, and a computation that reads it waits for that.
- Where copies are waited for at the end of a computation, these are its swap-outs and the swap-ins that began with it.
- What runs again runs before the step that needs it.
- A computation is slower by a factor while copies run beside it, where they take the same cores.

Each stream is first-in, first-out, so that no queue of events is needed: the time of every event is known when it is
issued (a stream is busy from now until the end of its last copy), and one pass over the positions finds them all. Cost:
proportional to positions + maps; no state is shared, and equal input gives equal output.

Source: PoocH 4.1.2 (simulated timeline); simpy (stable order of events). The slower computation is ours: a GPU's copy
engines leave it alone. Left out: that two copies at once slow it down more than one does.
"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Iterable

from chainer_ooc.problem import Problem, Verdict
from chainer_ooc.schedule.schedule import Schedule, SwapIn
from chainer_ooc.simulate.timeline import Cause, Stall, Stream, Task, Timeline

_HOME, _LEAVING, _AWAY, _COMING = range(4)


class Log:
    """What a simulation notes where more than the time is wanted."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.stalls: list[Stall] = []
        self.near_bytes: list[int] = []
        self.moving: list[tuple[int, ...]] = []


def simulate(problem: Problem, schedule: Schedule) -> Timeline:
    """Works out the timeline of a schedule."""
    log = Log()
    seconds, peak_bytes = run(problem, schedule, log)
    return Timeline(seconds, peak_bytes, tuple(log.tasks), tuple(log.stalls), tuple(log.near_bytes), tuple(log.moving))


def run(problem: Problem, schedule: Schedule, log: Log | None = None) -> tuple[float, int]:
    """Works out the seconds and the peak bytes of a schedule, and notes the rest if a log is given."""
    return _Run(problem, schedule, log).through(schedule.synchronous)


class _Run:
    def __init__(self, problem: Problem, schedule: Schedule, log: Log | None):
        trace, chains = problem.trace, schedule.chains
        self.trace, self.costs, self.budget_bytes = trace, problem.costs, problem.budget_bytes
        self.need: list[int] = schedule.need.tolist()
        self.swap_ins, self.mapped, self.log = schedule.swap_ins, schedule.mapped, log
        self.recalls = problem.recalls
        self.leave_after: dict[int, list[int]] = {}
        self.first_use: dict[int, list[int]] = {}
        self.last_use: dict[int, list[int]] = {}
        for map_id, verdict in enumerate(schedule.verdicts):
            if verdict is Verdict.SWAP:
                self.leave_after.setdefault(schedule.leaves[map_id], []).append(map_id)
                if chains.uses[map_id]:
                    self.first_use.setdefault(chains.uses[map_id][0], []).append(map_id)
                    if not trace.maps[map_id].held:
                        self.last_use.setdefault(chains.uses[map_id][-1], []).append(map_id)
        self.again_seconds = {position: _sum(problem.costs.seconds[call] for call in calls)
                              for position, calls in chains.calls_at.items()}
        self.now = self.out_free = self.in_free = 0.0
        self.peak_bytes = 0
        self.moving_bytes = 0  # on their way out, or in before their use: beside `need`
        self.moving: set[int] = set()  # the maps of these bytes
        self.state = [_HOME] * len(trace.maps)
        self.arrival = [0.0] * len(trace.maps)
        self.whole_at = [0.0] * len(trace.maps)  # the copy out
        self.leaving: deque[int] = deque()
        self.recalled: set[int] = set()  # of mapped ones: wanted while they were leaving
        self.is_copied = [True] * len(trace.maps)  # no swap-out of it is under way
        self.latest_swap_in = -1
        self.next_swap_in = 0

    def through(self, synchronous: bool) -> tuple[float, int]:
        """Passes over all positions."""
        start, last = self.trace.backward_start, self.trace.positions - 1
        leaving, leave_after = self.leaving, self.leave_after
        first_use, last_use = self.first_use, self.last_use
        for position, seconds in enumerate(self.costs.seconds):
            if position >= start:
                self._count_once(position)
                self._start_swap_ins(position)
            if leaving:
                self._reap()
            if position in first_use:
                for map_id in first_use[position]:
                    self._fetch(map_id, position)
            self._make_room(position)
            self._compute(position, seconds)
            if position in leave_after:
                for map_id in leave_after[position]:
                    self._swap_out(map_id)
            if position in last_use:
                for map_id in last_use[position]:
                    self._drop(map_id)
            if synchronous and position < last:
                self._synchronise(position + 1)
        return self.now, self.peak_bytes

    def _count_once(self, position: int) -> None:
        """From this edge on `need` has what the position reads, whether that is still leaving or already coming."""
        for map_id in self.first_use.get(position, ()) if not self.mapped else ():
            if self.state[map_id] in (_LEAVING, _COMING):
                self._move(map_id, -1)
                if self.state[map_id] == _LEAVING and self.recalls:
                    self.state[map_id] = _HOME
                elif self.state[map_id] == _LEAVING:
                    self._swap_in(map_id)

    def _reap(self) -> None:
        leaving = self.leaving
        while leaving and self.whole_at[leaving[0]] <= self.now:
            self._gone(leaving.popleft())

    def _gone(self, map_id: int) -> None:
        self.is_copied[map_id] = True
        if self.state[map_id] == _LEAVING:
            self.state[map_id] = _AWAY
            self._move(map_id, -1)
            if map_id in self.recalled:
                self._swap_in(map_id)

    def _move(self, map_id: int, sign: int) -> None:
        """A map begins, or ends, to count beside `need`."""
        self.moving_bytes += sign * self.trace.maps[map_id].nbytes
        (self.moving.add if sign > 0 else self.moving.discard)(map_id)

    def _make_room(self, position: int) -> None:
        need = self.need[position]
        while self.moving_bytes + need > self.budget_bytes and self.leaving:
            self._wait_for_one(position, Cause.MEMORY)

    def _wait_for_one(self, position: int, cause: Cause) -> None:
        """Waits for the first map that is leaving."""
        map_id = self.leaving.popleft()
        self._wait(self.whole_at[map_id], position, map_id, cause)
        self._gone(map_id)

    def _wait(self, until: float, position: int, map_id: int, cause: Cause) -> None:
        if until > self.now:
            if self.log is not None:
                self.log.stalls.append(Stall(position, map_id, until - self.now, cause))
            self.now = until

    def _compute(self, position: int, seconds: float) -> None:
        again_seconds = self.again_seconds.get(position, 0.0)
        began, self.now = self.now, self.now + self._beside_copies(again_seconds + seconds)
        near_bytes = self.moving_bytes + self.need[position]
        self.peak_bytes = max(self.peak_bytes, near_bytes)
        if self.log is not None:
            self.log.tasks.append(Task(Stream.COMPUTE, position, began, self.now, again_seconds))
            self.log.near_bytes.append(near_bytes)
            self.log.moving.append(tuple(sorted(self.moving)))

    def _beside_copies(self, seconds: float) -> float:
        """What a computation of so many seconds takes if it begins now."""
        copying_seconds, slowdown = max(self.out_free, self.in_free) - self.now, self.costs.slowdown
        if copying_seconds <= 0 or not slowdown:
            return seconds
        return min(seconds * (1 + slowdown), seconds + copying_seconds * (slowdown / (1 + slowdown)))

    def _swap_out(self, map_id: int) -> None:
        nbytes = self.trace.maps[map_id].nbytes
        began = max(self.now, self.out_free)
        self.out_free = began + self.costs.write_seconds(nbytes)
        self.whole_at[map_id] = self.out_free
        self.leaving.append(map_id)
        self.state[map_id], self.is_copied[map_id] = _LEAVING, False
        self._move(map_id, 1)
        if self.log is not None:
            self.log.tasks.append(Task(Stream.COPY_OUT, map_id, began, self.out_free))

    def _drop(self, map_id: int) -> None:
        """A position has read the map for the last time: it goes, but not before its copy is whole."""
        if not self.is_copied[map_id]:
            self.state[map_id] = _LEAVING
            self._move(map_id, 1)

    def _fetch(self, map_id: int, position: int) -> None:
        """A position reads the map for the first time."""
        while self.mapped and self.state[map_id] == _LEAVING:
            self._wait_for_one(position, Cause.SWAP_OUT)
        if self.state[map_id] == _AWAY:
            self._make_room(position)
            self._swap_in(map_id)
        if self.state[map_id] != _HOME:
            self._wait(self.arrival[map_id], position, map_id, Cause.SWAP_IN)
            self._reap()
        self.state[map_id] = _HOME

    def _swap_in(self, map_id: int) -> None:
        self.state[map_id] = _COMING
        began, self.latest_swap_in = max(self.now, self.in_free, self.whole_at[map_id]), map_id
        self.in_free = self.arrival[map_id] = began + self.costs.read_seconds(self.trace.maps[map_id].nbytes)
        if self.log is not None:
            self.log.tasks.append(Task(Stream.COPY_IN, map_id, began, self.in_free))

    def _start_swap_ins(self, position: int) -> None:
        """Issues what is due when a position begins, as far as memory allows."""
        while self.next_swap_in < len(self.swap_ins) and self.swap_ins[self.next_swap_in].start <= position:
            swap_in = self.swap_ins[self.next_swap_in]
            if swap_in.use >= position and not self._start(swap_in, position):
                return
            self.next_swap_in += 1

    def _start(self, swap_in: SwapIn, position: int) -> bool:
        map_id, nbytes = swap_in.map, self.trace.maps[swap_in.map].nbytes
        beside_bytes = 0 if swap_in.use == position or self.mapped else nbytes  # `need` has it at its use
        if self.mapped and self.state[map_id] == _LEAVING:
            self.recalled.add(map_id)
            return True
        if self.state[map_id] == _AWAY:
            if not self.mapped and self.moving_bytes + beside_bytes + self.need[position] > self.budget_bytes:
                return False
            self._swap_in(map_id)
            if beside_bytes:
                self._move(map_id, 1)
        elif self.state[map_id] == _LEAVING and not self.recalls:
            self._swap_in(map_id)
        if self.state[map_id] != _HOME:
            self.state[map_id] = _COMING
        return True

    def _synchronise(self, position: int) -> None:
        """A position begins when all copies that have begun are whole."""
        if self.leaving:
            self._wait(self.out_free, position, self.leaving[-1], Cause.SWAP_OUT)
        self._wait(self.in_free, position, self.latest_swap_in, Cause.SWAP_IN)
        self._reap()


def _sum(seconds: Iterable[float]) -> float:
    """Adds one after the other: what `sum` does depends on the version of Python, and seconds would."""
    return functools.reduce(operator.add, seconds, 0.0)
