"""A second simulator, written from the rules alone: slow, with a queue of events and a set of blocks for the memory.

The computation is a generator that asks to sleep or to wait for a copy. Each direction of copying is a server with a
queue of its own. All three are moved by one heap of events; what ends at a moment ends before the computation looks.
Memory is asked for anew each time, by going through all maps and their states: nothing is kept as a running sum.
"""
import enum
import heapq
from collections import deque

from chainer_ooc.problem import Verdict
from chainer_ooc.schedule.chains import chain_peak_bytes
from chainer_ooc.simulate.timeline import Cause, Stall, Stream, Task, Timeline


class At(enum.Enum):
    UNBORN = 0
    NEAR = 1
    FAR = 2
    DEAD = 3
    PAGED = 4


class Work:
    """A computation that is asked for."""

    def __init__(self, seconds):
        self.seconds = seconds


class Copy:
    """One that is asked for; it begins no earlier than another has ended, if it is behind one."""

    def __init__(self, stream, map_id, seconds, behind=None):
        self.stream, self.map, self.seconds, self.behind = stream, map_id, seconds, behind
        self.start_seconds = self.end_seconds = None


class Server:
    """One direction: copies run one after the other."""

    def __init__(self, clock):
        self.clock, self.waiting, self.running = clock, deque(), None
        clock.servers.append(self)

    def submit(self, copy):
        self.waiting.append(copy)
        self._next()

    def _next(self):
        behind = self.waiting[0].behind if self.waiting else None
        if self.running is None and self.waiting and (behind is None or behind.end_seconds is not None):
            self.running = self.waiting.popleft()
            self.running.start_seconds = self.clock.now
            self.clock.at(self.clock.now + self.running.seconds, 0, self._end)

    def _end(self):
        self.running.end_seconds, self.running = self.clock.now, None
        for server in self.clock.servers:
            server._next()
        self.clock.look()


class Clock:
    def __init__(self):
        self.now, self.events, self.issued, self.look = 0.0, [], 0, lambda: None
        self.servers = []

    def at(self, time, priority, act):
        self.issued += 1
        heapq.heappush(self.events, (time, priority, self.issued, act))

    def run(self):
        while self.events:
            self.now, _, _, act = heapq.heappop(self.events)
            act()


class Reference:
    def __init__(self, problem, schedule):
        self.problem, self.schedule, self.trace = problem, schedule, problem.trace
        self.clock = Clock()
        self.out, self.back = Server(self.clock), Server(self.clock)
        self.issued, self.stalls, self.near = [], [], []
        self.swapped = [each for each, verdict in enumerate(schedule.verdicts) if verdict is Verdict.SWAP]
        self.place = {each: At.NEAR if self.trace.maps[each].producer is None else At.UNBORN for each in self.swapped}
        self.wanted = set()        # of those on their way out: who stays
        self.unnoticed = deque()   # swap-outs, oldest first
        self.coming = {}           # the swap-in of each map that has one
        self.pending = deque(schedule.swap_ins)
        self.waits_for = self.work = None

    def timeline(self):
        self.computation = self.compute()
        self.clock.look = self.look
        self.resume()
        self.clock.run()
        tasks = tuple(Task(each.stream, each.map, each.start_seconds, each.end_seconds) if isinstance(each, Copy)
                      else each for each in self.issued)
        ends = [each.end_seconds for each in tasks if each.stream is Stream.COMPUTE]
        return Timeline(max(ends, default=0.0), max(self.near, default=0), tasks, tuple(self.stalls), tuple(self.near))

    # --- the computation and what moves it ------------------------------------------------------------------------

    def resume(self):
        self.waits_for = None
        try:
            request = next(self.computation)
        except StopIteration:
            return
        if isinstance(request, Copy):
            self.waits_for = request
            self.look()
        elif isinstance(request, Work):
            self.work = request
            self.go_on()
        else:
            self.clock.at(self.clock.now + request, 1, self.resume)

    def is_copying(self):
        return any(server.running is not None for server in (self.out, self.back))

    def go_on(self):
        """Works at the speed of this moment, until the work is done or a copy ends; none begins meanwhile."""
        self.began, self.factor = self.clock.now, 1 + self.problem.costs.slowdown * self.is_copying()
        work = self.work
        self.clock.at(self.clock.now + work.seconds * self.factor, 1, lambda: self.done(work))

    def done(self, work):
        if work is self.work:
            self.work = None
            self.resume()

    def look(self):
        if self.work is not None:
            self.work = Work(self.work.seconds - (self.clock.now - self.began) / self.factor)
            self.go_on()
        if self.waits_for is not None and self.waits_for.end_seconds is not None:
            self.waits_for = None
            self.clock.at(self.clock.now, 1, self.resume)

    def compute(self):
        for position, seconds in enumerate(self.problem.costs.seconds):
            if position >= self.trace.backward_start:
                self.begin_swap_ins(position)
            yield 0.0  # whatever ends now has ended
            self.notice()
            for map_id in self.first_read(position):
                while self.schedule.mapped and self.is_leaving(map_id):
                    yield from self.wait(self.unnoticed[0], position, Cause.SWAP_OUT)
                    self.notice(1)
                if self.place[map_id] is At.FAR:
                    yield from self.wait_for_room(position)
                    self.swap_in(map_id)
                if map_id in self.coming:
                    yield from self.wait(self.coming[map_id], position, Cause.SWAP_IN)
                    self.notice()
            yield from self.wait_for_room(position)
            again = float(sum(self.problem.costs.seconds[call]
                              for call in self.schedule.chains.calls_at.get(position, ())))
            self.near.append(self.bytes_at(position))
            number, began = len(self.issued), self.clock.now
            self.issued.append(None)
            yield Work(again + seconds)
            self.issued[number] = Task(Stream.COMPUTE, position, began, self.clock.now, again)
            self.end(position)
            if self.schedule.synchronous and position + 1 < self.trace.positions:
                if self.unnoticed:
                    yield from self.wait(self.unnoticed[-1], position + 1, Cause.SWAP_OUT)
                if self.coming:
                    yield from self.wait(list(self.coming.values())[-1], position + 1, Cause.SWAP_IN)
                yield 0.0
                self.notice()

    def wait(self, copy, position, cause):
        began = self.clock.now
        if copy.end_seconds is None:
            yield copy
        if self.clock.now > began:
            self.stalls.append(Stall(position, copy.map, self.clock.now - began, cause))

    def wait_for_room(self, position):
        while self.bytes_at(position) > self.problem.budget_bytes and self.unnoticed:
            yield from self.wait(self.unnoticed[0], position, Cause.MEMORY)
            self.notice(1)

    def end(self, position):
        """What is born with a computation, leaves after it, or had its last use in it."""
        for map_id in self.swapped:
            row, uses = self.trace.maps[map_id], self.schedule.chains.uses[map_id]
            if row.producer == position:
                self.place[map_id] = At.NEAR
            if self.schedule.leaves[map_id] == position:
                copy = Copy(Stream.COPY_OUT, map_id, self.problem.costs.write_seconds(row.nbytes))
                self.issued.append(copy)
                self.unnoticed.append(copy)
                self.out.submit(copy)
            if uses and uses[-1] == position and not row.held:
                self.wanted.discard(map_id)
                if not self.is_leaving(map_id):
                    self.place[map_id] = At.DEAD

    # --- swap-ins -------------------------------------------------------------------------------------------------

    def first_read(self, position):
        return [each for each in self.swapped if self.schedule.chains.uses[each][:1] == (position,)]

    def begin_swap_ins(self, position):
        if not self.schedule.mapped:
            for map_id in self.first_read(position):
                if self.is_leaving(map_id):
                    self.want(map_id)
        while self.pending and self.pending[0].start <= position:
            map_id, use = self.pending[0].map, self.pending[0].use
            if use >= position:
                if self.is_leaving(map_id):
                    self.want(map_id)
                elif self.place[map_id] is At.FAR:
                    if not self.schedule.mapped and self.bytes_at(position, map_id) > self.problem.budget_bytes:
                        return
                    self.swap_in(map_id)
            self.pending.popleft()

    def want(self, map_id):
        """A map that is leaving: it stays, or it comes back behind its own swap-out, and keeps its memory."""
        self.wanted.add(map_id)
        if not self.problem.recalls and not self.schedule.mapped and map_id not in self.coming:
            self.swap_in(map_id, next(each for each in self.unnoticed if each.map == map_id))

    def swap_in(self, map_id, behind=None):
        copy = Copy(Stream.COPY_IN, map_id, self.problem.costs.read_seconds(self.trace.maps[map_id].nbytes), behind)
        self.coming[map_id], self.place[map_id] = copy, At.PAGED if self.schedule.mapped else At.NEAR
        self.issued.append(copy)
        self.back.submit(copy)

    # --- memory ---------------------------------------------------------------------------------------------------

    def is_leaving(self, map_id):
        return any(each.map == map_id for each in self.unnoticed)

    def notice(self, at_most=None):
        while self.unnoticed and self.unnoticed[0].end_seconds is not None and at_most != 0:
            map_id = self.unnoticed.popleft().map
            at_most = None if at_most is None else at_most - 1
            if self.schedule.mapped:
                self.place[map_id] = At.FAR
                if map_id in self.wanted:
                    self.swap_in(map_id)
            elif map_id not in self.wanted:
                self.place[map_id] = At.FAR

    def bytes_at(self, position, also=None):
        """What is near while a position computes, with what it still has to fetch, and with another map."""
        trace = self.trace
        start = trace.backward_start
        if position < start:
            call = trace.calls[position]
            total = self.problem.standing.forward_bytes + call.other_bytes + call.peak_bytes
        else:
            step = trace.steps[position - start]
            total = self.problem.standing.backward_bytes + step.other_bytes + max(
                step.peak_bytes, chain_peak_bytes(trace, self.schedule.chains, position))
        there = {each for each in self.swapped if self.place[each] is At.NEAR} | {also}
        there |= set() if self.schedule.mapped else set(self.first_read(position))
        return total + sum(row.nbytes for row in trace.maps
                           if (row.id in there if row.id in self.place else self.is_there(row, position)))

    def is_there(self, row, position):
        """Whether a map that is not swapped is there."""
        chains, uses = self.schedule.chains, self.schedule.chains.uses[row.id]
        if row.producer is not None and position <= row.producer:
            return False
        if row.foreign:
            return True
        if not row.retained:
            return position <= max(row.last_forward_use, row.last_alive)
        if self.schedule.verdicts[row.id] is Verdict.RECOMPUTE:
            made = chains.restored[row.id]
            return position <= row.last_forward_use or (bool(uses) and made <= position and (
                row.held or position <= uses[-1]))
        lives_on = not uses or row.nbytes < self.problem.min_bytes or row.reused or row.held
        return lives_on or position <= uses[-1]


def reference(problem, schedule):
    return Reference(problem, schedule).timeline()
