"""A stand-in for CUDA over NumPy's memory: as late, and in as unlucky an order, as CUDA allows.

Each stream is a queue of copies, records of events and waits for them. Nothing runs when it is put there. When
somebody waits for an event, what has to come before it runs, and by the seed some of the other stream too; a poll runs
what the seed says, and finds its event passed after a bounded number of times. Compute is NumPy, which computes at
once: an event recorded there has passed, and when compute waits for an event that one passes now.

Beside the order that comes true in a run, the order that is *guaranteed* is followed: each stream, and the host, knows
how far it comes after the others (vector clocks). What is not guaranteed is noted in `misuses`, whether or not the seed
makes it go wrong:

    a copy that is not after a record of compute made since its array was allocated or handed over
    two copies that use the same memory, one of them writing, in no order
    an array freed, or pinned memory unpinned, while a copy of it is pending
    pinned memory unpinned twice, a copy to memory that is not pinned
    a call from a thread that did not say which device it works on
    seconds between events that were made without timing

What nobody may rely on is poison (NaN in every float): targets of copies that have not run, new and unpinned memory.

Left out: kernels that run late, but for what `launch` puts on a stream. A wait that compute lacks shows all the same,
since the copy has not run by then.
"""
import collections
import contextlib
import ctypes
import functools
import random
import threading
import time
import weakref

import numpy as np

from chainer_ooc.backends.cuda.driver import DeviceFacts, StreamOrder
from chainer_ooc.backends.cuda.regions import KEPT
from chainer_ooc.backends.host.block import HeapBlock
from chainer_ooc.backends.owned import RoomMakers
from support.chaos.memory import POISON, poisoned

STRAYING = (0.0, 0.3, 0.9)
ON_A_POLL = (0, 0, 0, 1, 3)
MOST_PATIENCE = 8
BYTES_PER_SECOND = 1e9
LATENCY_SECONDS = 1e-6


class Operation:
    """Something on a stream; `waits_for` is another stream's operation that must have run before."""

    def __init__(self, stream, act, waits_for=None):
        self.stream, self.act, self.waits_for = stream, act, waits_for
        self.index, self.clock = 0, {}
        self.ran = False
        self.failure = None
        self.handed_over = False
        self.patience = 0
        self.seconds = time.perf_counter()  # from now on it may run; once it has, when it ended


class FakeStream:
    def __init__(self, name):
        self.name = name
        self.queue = collections.deque()
        self.clock = {}  # how many operations of each stream come before what is put here next
        self.seconds = 0.0
        self.failure = None


class FakeEvent:
    def __init__(self, operation, timed):
        self.operation, self.timed = operation, timed


class Range:
    """A piece of memory, and the copies that used it."""

    def __init__(self, start, nbytes, owner=None, known_since=1):
        self.start, self.nbytes = start, nbytes
        self.owner = owner  # a weak reference; None for pinned memory
        self.known_since = known_since  # copies must come after this record of compute
        self.uses = []  # (operation, start, end, it writes)

    def holds(self, address):
        alive = self.owner is None or self.owner() is not None
        return alive and self.start <= address < self.start + max(1, self.nbytes)


def locked(method):
    """Each call comes from a thread that works on the device, one at a time."""
    @functools.wraps(method)
    def call(self, *args, **kwargs):
        with self.lock:
            if threading.get_ident() not in self.threads:
                self.misuse(f'{method.__name__} was called in a thread that works on another device')
            return method(self, *args, **kwargs)
    return call


class FakeDriver:
    """One device.

    Args:
        seed: decides everything that is left open.
        near_bytes: the device's memory.
        pinned_bytes: what the system pins in all.
        enforces: limits hold. Not so where NumPy allocates beside the device, which knows of a part only.
    """

    def __init__(self, seed=0, near_bytes=1 << 36, pinned_bytes=1 << 40, enforces=True):
        self.misuses = []
        self.host = self
        self.lock = threading.RLock()
        self.threads = {threading.get_ident()}
        self.near_bytes, self.pinned_bytes, self.enforces = near_bytes, pinned_bytes, enforces
        self.pins = 0  # how often memory was pinned
        self.current = None  # what the program computes on, if not on the stream whose kernels run at once
        self.pageable = False  # copies to memory that is not pinned are meant
        self.budgets = []
        self._random = random.Random(seed)
        self._compute = FakeStream('compute')
        self._order = StreamOrder()
        self._streams = []
        self._host_clock = {}
        self._near = []
        self._pinned = {}
        self._unpinned = []  # kept, so that a late access is no crash
        self._doomed = collections.Counter()

    # What tests ask for.

    def fail_next(self, act, count=1):
        """Has the next calls fail: 'copy_out', 'copy_in', 'pin', or 'copy_out late' for one that fails as it runs."""
        self._doomed[act] += count

    def left_behind(self):
        """What should not be there once a backend is closed."""
        pending = sum(not operation.ran for stream in self._streams for operation in stream.queue)
        return [f'{what}: {count}' for what, count in {
            'pinned bytes': sum(found.nbytes for found in self._pinned.values()) - sum(
                region.nbytes for region in KEPT if region.driver is self), 'operations': pending,
            'budgets': sum(budget.installed for budget in self.budgets)}.items() if count]

    def launch(self, stream, kernel):
        """Puts on a stream what runs when its turn comes."""
        with self.lock:
            self._put(Operation(stream, lambda: kernel() or 0.0))

    def misuse(self, text):
        self.misuses.append(text)

    def memory_for(self, nbytes):
        """What is pinned: an array right over its memory."""
        return np.ndarray(nbytes, np.uint8, buffer=HeapBlock(-1, nbytes))

    # The driver.

    def use(self):
        with self.lock:
            self.threads.add(threading.get_ident())

    @contextlib.contextmanager
    def on_this_device(self):
        own = threading.get_ident()
        was_here = own in self.threads
        self.use()
        try:
            yield
        finally:
            if not was_here:
                self.threads.discard(own)

    def facts(self):
        return DeviceFacts('Fake GPU', 0, self.near_bytes, '0.0', '13.0', '13.0')

    @locked
    def free_bytes(self):
        return self.near_bytes - sum(found.nbytes for found in self._living() if found.known_since)

    def budget(self, allocator):
        self.budgets.append(FakeBudget(self, allocator))
        return self.budgets[-1]

    @locked
    def empty(self, nbytes):
        for budget in self.budgets:
            budget.check_room(nbytes)
        if nbytes > self.free_bytes():
            raise MemoryError(f'cudaErrorMemoryAllocation: out of memory ({nbytes} bytes)')
        array = poisoned(nbytes)
        self._near.append(Range(array.ctypes.data, nbytes, weakref.ref(array), self._now()))
        return array

    def manages(self, root):
        return isinstance(root, np.ndarray)

    @locked
    def address(self, array):
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if not any(found.owner() is owner for found in self._near):
            # NumPy's own: compute has had it for some time. It takes none of the device's memory.
            self._near.append(Range(owner.ctypes.data, owner.nbytes, weakref.ref(owner), 0))
        return array.ctypes.data

    def compute(self):
        return self._order.followed(self, self.current or self._compute)

    @locked
    def new_stream(self):
        self._streams.append(FakeStream(f'stream {len(self._streams)}'))
        return self._streams[-1]

    @locked
    def finish(self, stream):
        while stream.queue:
            self._run_until(stream.queue[-1])
        self._host_learns(stream.clock)
        if stream.failure is not None:
            failure, stream.failure = stream.failure, None
            raise RuntimeError(failure)

    @locked
    def finish_all(self):
        for stream in self._streams:
            self.finish(stream)

    @locked
    def record(self, stream, timed=False):
        operation = self._put(Operation(stream, act=None))
        if stream is self._compute:
            operation.ran = True
        return FakeEvent(operation, timed)

    @locked
    def wait_event(self, stream, event):
        operation = event.operation
        _join(stream.clock, operation.clock)
        if stream is self._compute:
            self._run_until(operation)
            self._hand_over(operation.clock, to_compute=True)
            self._check_failure(operation)
        elif not operation.ran:
            self._put(Operation(stream, act=None, waits_for=operation))

    @locked
    def passed(self, event):
        operation = event.operation
        if not operation.ran:
            operation.patience -= 1
            if operation.patience < 0:
                self._run_until(operation)
            for _ in range(self._random.choice(ON_A_POLL)):
                self._run_any()
        if operation.ran:
            self._host_learns(operation.clock)
            self._check_failure(operation)
        return operation.ran

    @locked
    def synchronize(self, event):
        self._run_until(event.operation)
        self._host_learns(event.operation.clock)
        self._check_failure(event.operation)

    @locked
    def seconds_between(self, start, end):
        if not (start.timed and end.timed):
            self.misuse('seconds between events that have no times')
        if not (start.operation.ran and end.operation.ran):
            raise RuntimeError('cudaErrorNotReady: device not ready')
        return end.operation.seconds - start.operation.seconds

    @locked
    def copy_out(self, host_address, device_address, nbytes, stream):
        self._refuse('copy_out')
        near, far = self._near_at(device_address), self._pinned_at(host_address)
        operation = Operation(stream, functools.partial(
            self._move, near, host_address, device_address, nbytes, outward=True))
        self._put_copy(operation, near, far, device_address, host_address, nbytes, outward=True)
        if far is None:  # CUDA returns when such a copy is over
            self._run_until(operation)

    @locked
    def copy_in(self, device_address, host_address, nbytes, stream):
        self._refuse('copy_in')
        near, far = self._near_at(device_address), self._pinned_at(host_address)
        if far is None:  # CUDA has read the host's side when it returns
            kept = np.frombuffer(ctypes.string_at(host_address, nbytes), np.uint8)
            operation = Operation(stream, lambda: self._move(
                near, kept.ctypes.data, device_address, nbytes, outward=False))
        else:
            operation = Operation(stream, functools.partial(
                self._move, near, host_address, device_address, nbytes, outward=False))
        self._put_copy(operation, near, far, device_address, host_address, nbytes, outward=False)
        if near is not None:
            ctypes.memset(device_address, POISON, nbytes)

    @locked
    def pin(self, nbytes):
        self.pageable = self.pageable or self._doomed['pin'] > 0
        self._refuse('pin')
        if sum(found.nbytes for found in self._pinned.values()) + nbytes > self.pinned_bytes:
            self.pageable = True
            raise RuntimeError('cudaErrorMemoryAllocation: out of memory')
        memory = self.memory_for(nbytes)
        memory.fill(POISON)
        found = Range(memory.ctypes.data, nbytes)
        found.memory = memory
        self._pinned[found.start] = found
        self.pins += 1
        return found.start

    @locked
    def show(self, address, nbytes, gone):
        found = self._pinned_at(address)
        if address + nbytes > found.start + found.nbytes:
            self.misuse('more was shown than is pinned')
        if any(not operation.ran and writes and start < address + nbytes and address < end
               for operation, start, end, writes in found.uses):
            self.misuse('pinned memory was shown while a copy wrote to it')
        array = np.ndarray(nbytes, np.uint8, buffer=found.memory.base, offset=address - found.start)
        weakref.finalize(array, gone).atexit = False
        return array

    def unpin(self, address):
        with self.lock:  # a mapping may end in any thread
            self._unpin(address)

    def _unpin(self, address):
        found = self._pinned.pop(address, None)
        if found is None:
            self.misuse('memory was unpinned that is not pinned')
            return
        if any(not operation.ran for operation, *_ in found.uses):
            self.misuse('pinned memory was unpinned while a copy used it')
        found.memory.fill(POISON)
        self._unpinned.append(found)

    # Streams.

    def _put(self, operation):
        stream = operation.stream
        operation.index = stream.clock[stream.name] = stream.clock.get(stream.name, 0) + 1
        if stream is not self._compute:
            _join(stream.clock, self._host_clock)
            stream.queue.append(operation)
        operation.clock = dict(stream.clock)
        operation.patience = self._random.randrange(MOST_PATIENCE)
        return operation

    def _run_until(self, operation):
        straying = self._random.choice(STRAYING)
        while not operation.ran:
            if self._random.random() < straying:
                self._run_any()
            else:
                self._step_towards(operation)

    def _step_towards(self, operation):
        if operation.ran:
            return
        first = operation.stream.queue[0]
        if first.waits_for is not None and not first.waits_for.ran:
            self._step_towards(first.waits_for)
        else:
            self._run_first(operation.stream)

    def _run_any(self):
        ready = [stream for stream in self._streams if stream.queue
                 and (stream.queue[0].waits_for is None or stream.queue[0].waits_for.ran)]
        if ready:
            self._run_first(self._random.choice(ready))

    def _run_first(self, stream):
        operation = stream.queue.popleft()
        before = operation.waits_for.seconds if operation.waits_for is not None else 0.0
        took = operation.act() if operation.act is not None else 0.0
        operation.seconds = stream.seconds = max(stream.seconds, operation.seconds, before) + took
        operation.failure = stream.failure
        operation.ran = True

    def _host_learns(self, clock):
        _join(self._host_clock, clock)
        self._hand_over(clock, to_compute=False)

    def _check_failure(self, operation):
        if operation.failure is not None:
            operation.stream.failure = None
            raise RuntimeError(operation.failure)

    # Memory.

    def _now(self):
        """The next record of compute."""
        return self._compute.clock.get('compute', 0) + 1

    def _living(self):
        self._near = [found for found in self._near if found.owner() is not None]
        return self._near

    def _near_at(self, address):
        found = next((found for found in self._living() if found.holds(address)), None)
        if found is None:
            self.misuse('a copy of memory that no array owns')
        return found

    def _pinned_at(self, address):
        found = next((found for found in self._pinned.values() if found.holds(address)), None)
        if found is None and not self.pageable:
            self.misuse('a copy to or from host memory that is not pinned')
        return found

    def _refuse(self, act):
        if self._doomed[act]:
            self._doomed[act] -= 1
            raise RuntimeError(f'cudaErrorUnknown: {act} failed, as the test wanted')

    def _put_copy(self, operation, near, far, device_address, host_address, nbytes, outward):
        self._put(operation)
        if near is not None:
            if operation.clock.get('compute', 0) < max(1, near.known_since):
                self.misuse('a copy was not ordered after what compute did with its array')
            self._use(near, operation, device_address, nbytes, writes=not outward)
        if far is not None:
            self._use(far, operation, host_address, nbytes, writes=outward)

    def _use(self, found, operation, start, nbytes, writes):
        end = start + nbytes
        for other, other_start, other_end, other_writes in found.uses:
            ordered = operation.clock.get(other.stream.name, 0) >= other.index
            if (writes or other_writes) and start < other_end and other_start < end and not ordered:
                kind = 'pinned' if found.owner is None else 'near'
                self.misuse(f'two copies used the same {kind} memory in no order')
        found.uses = [use for use in found.uses if not use[0].ran or use[0].stream is not operation.stream]
        found.uses.append((operation, start, end, writes))

    def _hand_over(self, clock, to_compute):
        """Compute or the host has waited: what was copied in before is the caller's, and compute's, from now on."""
        for found in self._living():
            for use, _, _, writes in found.uses:
                if writes and not use.handed_over and use.index <= clock.get(use.stream.name, 0):
                    use.handed_over = True
                    if to_compute and found.known_since:
                        found.known_since = self._now()

    def _move(self, near, host_address, device_address, nbytes, outward):
        """Carries out a copy; returns the seconds that it takes."""
        act = 'copy_out' if outward else 'copy_in'
        if self._doomed[f'{act} late']:
            self._doomed[f'{act} late'] -= 1
            stream = self._streams[0 if outward else 1]
            stream.failure = f'cudaErrorUnknown: {act} failed while it ran, as the test wanted'
            return 0.0
        owner = near and near.owner()
        if owner is None:
            self.misuse(f'the {"source" if outward else "target"} of a copy was freed before it was made')
        elif outward:
            ctypes.memmove(host_address, device_address, nbytes)
        else:
            ctypes.memmove(device_address, host_address, nbytes)
        if owner is None and outward:
            ctypes.memset(host_address, POISON, nbytes)
        return LATENCY_SECONDS + nbytes / BYTES_PER_SECOND


class FakeBudget:
    """Counts and limits what `FakeDriver.empty` gives."""

    def __init__(self, driver, allocator):
        self.driver, self.name = driver, allocator
        self.limit_bytes = None
        self.installed = False
        self.room_makers = RoomMakers()
        self.trims = []
        self._alone = 0

    def lost_bytes(self, limit_bytes):
        return 0

    def install(self):
        self.installed = True

    def close(self):
        self.installed, self.limit_bytes = False, None
        self.room_makers.clear()

    def ask(self, owner, on_out_of_memory, waiting=contextlib.nullcontext):
        self.room_makers.set(owner, on_out_of_memory)

    def lent(self, owner):
        return self.room_makers.lent(owner)

    def used_bytes(self):
        return self.driver.near_bytes - self.driver.free_bytes()

    def counted_bytes(self):
        return self.used_bytes() if self.driver.enforces else 0

    def free_bytes(self):
        free_bytes = self.driver.free_bytes()
        if self.limit_bytes is None or not self.driver.enforces:
            return free_bytes
        return min(free_bytes, self.limit_bytes - self.used_bytes())

    def unlimited_bytes(self):
        return self.driver.free_bytes()

    def trim(self, keep_bytes=0):
        self.trims.append(keep_bytes)

    @contextlib.contextmanager
    def no_relief(self):
        self._alone += 1
        try:
            yield
        finally:
            self._alone -= 1

    def meter(self):
        from chainer_ooc.backends.host.meter import HostMeter

        return HostMeter()

    def check_room(self, nbytes):
        while self.installed and nbytes > self.free_bytes():
            on_out_of_memory = self.room_makers.of_this_thread()
            if self._alone or on_out_of_memory is None or not on_out_of_memory(nbytes - self.free_bytes()):
                raise MemoryError(f'no {nbytes} bytes within the limit of {self.limit_bytes}')


def _join(clock, other):
    for name, count in other.items():
        clock[name] = max(clock.get(name, 0), count)
