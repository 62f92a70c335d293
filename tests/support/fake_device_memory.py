"""A device without a device: its memory as CuPy and the driver give it, with their rules checked.

`FakeCalls` stands in for `calls.CupyCalls`, `FakeDriver` for the module `cuda.bindings.driver`. Both take from one
`FakeDevice` of fixed size that refuses what it has not. Work on a `FakeStream` is done late: only when an event is
waited for. Whatever a kernel that has not run yet may touch must stay mapped, and be nobody else's.

Every broken rule raises `RuleBrokenError`. Addresses are numbers with nothing behind them.
"""
from __future__ import annotations

import collections
import contextlib
import enum
import itertools
from types import SimpleNamespace

from chainer_ooc.backends.cuda.allocators import ALLOCATORS, VirtualAllocator
from chainer_ooc.backends.cuda.allocators.allocator import NoRoomError
from chainer_ooc.backends.cuda.allocators.ledger import Owner
from chainer_ooc.backends.cuda.allocators.mapping import MappingCalls

MIB = 1 << 20


@contextlib.contextmanager
def installed_budget(budget):
    """Has CuPy ask a budget meanwhile, and restores whatever happens."""
    budget.install()
    try:
        yield
    finally:
        budget.uninstall()


def allocator_of(name, calls, driver=None):
    """The allocator of that name over `calls`, and for 'virtual' over `driver`, or one that is made for it."""
    if name == 'virtual':
        return VirtualAllocator(calls, MappingCalls(0, driver or FakeDriver(calls.device)))
    return ALLOCATORS[name](calls)


class RuleBrokenError(AssertionError):
    """What the driver forbids, or leaves undefined."""


def check(rule, message):
    if not rule:
        raise RuleBrokenError(message)


class FakeDevice:
    """Bytes of a device, and addresses that are never given twice."""

    def __init__(self, capacity_bytes):
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = 0
        self.most_bytes = 0
        self._next_address = 1 << 32

    def take(self, nbytes):
        if self.taken_bytes + nbytes > self.capacity_bytes:
            return False
        self.taken_bytes += nbytes
        self.most_bytes = max(self.most_bytes, self.taken_bytes)
        return True

    def addresses(self, nbytes):
        address, self._next_address = self._next_address, self._next_address + nbytes + 4096
        return address


class FakeMemory:
    """Memory of the device; given back when it dies, as CuPy's is."""

    def __init__(self, device, nbytes, kind='device'):
        if not device.take(nbytes):
            raise NoRoomError(f'{nbytes} bytes')
        self.ptr = device.addresses(nbytes) if nbytes else 0
        self.size, self.device_id, self.kind = nbytes, 0, kind
        self._device = device

    def __del__(self):
        if hasattr(self, '_device'):
            self._device.taken_bytes -= self.size


class FakePointer:
    """`cupy.cuda.MemoryPointer`: what it points to lives as long as `mem`."""

    def __init__(self, mem):
        self.mem, self.ptr, self.device_id = mem, mem.ptr, mem.device_id


class Unowned:
    """`cupy.cuda.UnownedMemory`."""

    def __init__(self, ptr, size, owner):
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, 0


class FakePool:
    """`cupy.cuda.MemoryPool`: best fit, splits, merges within a region, keeps free ones for their stream.

    Regions are lists of `[offset, size, free]` behind an owner that dies when the region is given back.
    """

    UNIT_BYTES = 512

    def __init__(self, grow, stream):
        self._grow, self._stream = grow, stream
        self._regions = {}  # address -> (memory of the region, its pieces)
        self._streams = {}  # address -> stream

    def malloc(self, size):
        size = -(-size // self.UNIT_BYTES) * self.UNIT_BYTES
        if not size:
            return FakePointer(Unowned(0, 0, None))
        found = [(piece[1], address, piece) for address, (_, pieces) in self._regions.items()
                 for piece in pieces
                 if piece[2] and piece[1] >= size and self._streams[address] == self._stream().ptr]
        if found:
            _, address, piece = min(found, key=lambda each: each[:2])
        else:
            memory = self._grow(size).mem
            address, piece = memory.ptr, [0, size, True]
            self._regions[address] = memory, [piece]
            self._streams[address] = self._stream().ptr
        pieces = self._regions[address][1]
        if piece[1] > size:
            pieces.insert(pieces.index(piece) + 1, [piece[0] + size, piece[1] - size, True])
            piece[1] = size
        piece[2] = False
        return FakePointer(_Pooled(self, address, piece))

    def free(self, address, piece):
        pieces = self._regions[address][1]
        piece[2] = True
        index = pieces.index(piece)
        for first in (index, index - 1):
            if 0 <= first < len(pieces) - 1 and pieces[first][2] and pieces[first + 1][2]:
                pieces[first][1] += pieces.pop(first + 1)[1]

    def used_bytes(self):
        return sum(piece[1] for _, pieces in self._regions.values() for piece in pieces if not piece[2])

    def free_bytes(self):
        return sum(piece[1] for _, pieces in self._regions.values() for piece in pieces if piece[2])

    def total_bytes(self):
        return self.used_bytes() + self.free_bytes()

    def free_all_blocks(self):
        for address, (_, pieces) in list(self._regions.items()):
            if len(pieces) == 1 and pieces[0][2]:
                del self._regions[address]


class _Pooled:
    def __init__(self, pool, address, piece):
        self._of = pool, address, piece
        self.ptr, self.size, self.device_id = address + piece[0], piece[1], 0

    def __del__(self):
        pool, address, piece = self._of
        pool.free(address, piece)


class FakeStreamOrderedPool:
    """The driver's pool: takes in steps, and frees only when it is told or a threshold says so."""

    STEP_BYTES = 32 * MIB

    def __init__(self, device):
        self._device, self._used_bytes, self._held_bytes = device, 0, 0
        self.keeps = False

    def take(self, nbytes):
        more_bytes = -(-max(0, self._used_bytes + nbytes - self._held_bytes) // self.STEP_BYTES) * self.STEP_BYTES
        if not self._device.take(more_bytes):
            raise NoRoomError(f'{nbytes} bytes')
        self._held_bytes += more_bytes
        self._used_bytes += nbytes

    def give_back(self, nbytes):
        self._used_bytes -= nbytes

    def used_bytes(self):
        return self._used_bytes

    def held_bytes(self):
        return self._held_bytes

    def trim(self, keep_bytes):
        kept_bytes = -(-max(keep_bytes, self._used_bytes) // self.STEP_BYTES) * self.STEP_BYTES
        if kept_bytes < self._held_bytes:
            self._device.taken_bytes -= self._held_bytes - kept_bytes
            self._held_bytes = kept_bytes

    def keep_freed(self):
        self.keeps = True

    def restore(self):
        self.keeps = False


class _StreamOrdered:
    def __init__(self, device, pool, nbytes):
        self._pool = None
        pool.take(nbytes)
        self._pool = pool
        self.ptr, self.size, self.device_id = device.addresses(nbytes), nbytes, 0

    def __del__(self):
        if self._pool is not None:
            self._pool.give_back(self.size)


class FakeCalls:
    """`calls.CupyCalls` over a `FakeDevice`."""

    def __init__(self, device):
        self.device, self.device_id, self.current_device = device, 0, 0
        self.default_pool = FakePool(lambda nbytes: FakePointer(FakeMemory(device, nbytes)), self.stream)
        self.allocator = self.default_pool.malloc
        self.within_using_allocator = None
        self.ordered = FakeStreamOrderedPool(device)
        self.current_stream = FakeStream(0)
        self.prefetched = []

    def pool(self, grow):
        return FakePool(grow, self.stream)

    def stream_ordered_pool(self):
        return self.ordered

    def device_memory(self, nbytes):
        return FakeMemory(self.device, nbytes)

    def stream_ordered_memory(self, nbytes):
        return _StreamOrdered(self.device, self.ordered, nbytes)

    def managed_memory(self, nbytes):
        memory = FakeMemory(self.device, nbytes, 'managed')
        self.prefetched.append(nbytes)
        return memory

    def pointer(self, address, nbytes, owner):
        return FakePointer(Unowned(address, nbytes, owner))

    def is_current(self):
        return self.current_device == self.device_id

    def free_bytes(self):
        return self.device.capacity_bytes - self.device.taken_bytes

    def stream(self):
        return self.current_stream

    def current_allocator(self):
        return self.within_using_allocator or self.allocator

    def set_allocator(self, allocator):
        if self.within_using_allocator:
            raise ValueError('within using_allocator')
        self.allocator = allocator

    @contextlib.contextmanager
    def using_allocator(self, allocator):
        self.within_using_allocator = allocator
        try:
            yield
        finally:
            self.within_using_allocator = None

    def outside_bytes(self):
        return self.default_pool.total_bytes()

    def trim_outside(self):
        self.default_pool.free_all_blocks()


class FakeStream:
    """Kernels that wait for somebody to wait for them."""

    def __init__(self, ptr):
        self.ptr = ptr
        self.queue = []  # (first address, behind the last)
        self.begun = 0
        self.done = 0

    def launch(self, driver, memory, nbytes):
        """A kernel that touches memory, as an allocator or a budget gives it, some time later."""
        address = memory.pointer if isinstance(memory, Owner) else memory.ptr
        used = address, address + nbytes
        driver.streams[self.ptr] = self
        driver.check_accessible(*used)
        for other in driver.streams.values():
            check(other is self or not any(driver.overlap(used, queued) for queued in other.queue),
                  'a kernel of another stream still uses this memory')
        self.queue.append(used)
        self.begun += 1

    def touches(self, first, behind):
        return any(low < behind and first < high for low, high in self.queue)

    def run_to(self, position, driver):
        while self.done < position:
            driver.check_accessible(*self.queue.pop(0))
            self.done += 1


class FakeResult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2


class _Reservation:
    def __init__(self, size):
        self.size = size
        self.mapped = {}  # offset -> (size, handle)
        self.allowed = set()  # offsets of those that may be used

    def within(self, offset, size):
        """Offsets of what is mapped there, all of which must be."""
        found, end = [], offset + size
        while offset < end:
            check(offset in self.mapped, 'not all of this is mapped, or it begins within a chunk')
            found.append(offset)
            offset += self.mapped[offset][0]
        check(offset == end, 'this ends within a chunk')
        return found


class FakeDriver:
    """`cuda.bindings.driver`: its functions with the arguments that it has, and the rules of mapping.

    Attributes:
        calls: names of the functions called, in order.
        failing: name of a function -> the result that it gives at its next call, once.
    """

    GRANULARITY_BYTES = 2 * MIB
    CUresult = FakeResult
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE='device')
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED='pinned')
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE='readwrite')
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM='minimum')
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=SimpleNamespace(value=2))

    def __init__(self, device):
        self.device = device
        self.calls = []
        self.failing = {}
        self.streams = {}
        self.reservations = {}
        self.handles = {}
        self._mappings = collections.Counter()
        self.events = {}
        self._numbers = itertools.count(1)

    @staticmethod
    def CUmemAllocationProp():  # noqa: N802 - the driver's name
        return SimpleNamespace(type=None, location=SimpleNamespace(type=None, id=None))

    @staticmethod
    def CUmemAccessDesc():  # noqa: N802 - the driver's name
        return SimpleNamespace(flags=None, location=SimpleNamespace(type=None, id=None))

    def cuMemGetAllocationGranularity(self, prop, option):  # noqa: N802 - the driver's name
        self._check_properties(prop)
        check(option == 'minimum', option)
        return self._result('cuMemGetAllocationGranularity', self.GRANULARITY_BYTES)

    def cuMemAddressReserve(self, size, alignment, addr, flags):  # noqa: N802 - the driver's name
        check(size > 0 and size % self.GRANULARITY_BYTES == 0 and not (alignment or addr or flags), 'reserve')
        result = self._result('cuMemAddressReserve', 0)
        if result[0]:
            return result
        address = -(-self.device.addresses(size + self.GRANULARITY_BYTES) // self.GRANULARITY_BYTES)
        address *= self.GRANULARITY_BYTES
        self.reservations[address] = _Reservation(size)
        return FakeResult.CUDA_SUCCESS, address

    def cuMemAddressFree(self, ptr, size):  # noqa: N802 - the driver's name
        check(ptr in self.reservations and self.reservations[ptr].size == size, 'frees what was not reserved as such')
        check(not self.reservations[ptr].mapped, 'frees addresses that are mapped')
        result = self._result('cuMemAddressFree')
        if not result[0]:
            del self.reservations[ptr]
        return result

    def cuMemCreate(self, size, prop, flags):  # noqa: N802 - the driver's name
        self._check_properties(prop)
        check(size > 0 and size % self.GRANULARITY_BYTES == 0 and not flags, 'create')
        result = self._result('cuMemCreate', 0)
        if result[0]:
            return result
        if not self.device.take(size):
            return FakeResult.CUDA_ERROR_OUT_OF_MEMORY, 0
        handle = next(self._numbers)
        self.handles[handle] = size
        return FakeResult.CUDA_SUCCESS, handle

    def cuMemRelease(self, handle):  # noqa: N802 - the driver's name
        check(handle in self.handles, 'releases what is not its own')
        check(not self._is_mapped(handle), 'releases what is mapped: the driver would keep it, unseen')
        result = self._result('cuMemRelease')
        if not result[0]:
            self.device.taken_bytes -= self.handles.pop(handle)
        return result

    def cuMemMap(self, ptr, size, offset, handle, flags):  # noqa: N802 - the driver's name
        start, reservation = self._around(ptr, size)
        check(self.handles.get(handle) == size and not (offset or flags), 'maps what is no whole chunk')
        check(ptr - start not in reservation.mapped, 'maps addresses twice')
        result = self._result('cuMemMap')
        if not result[0]:
            reservation.mapped[ptr - start] = size, handle
            self._mappings[handle] += 1
        return result

    def cuMemSetAccess(self, ptr, size, desc, count):  # noqa: N802 - the driver's name
        start, reservation = self._around(ptr, size)
        check(len(desc) == count == 1 and desc[0].flags == 'readwrite' and desc[0].location.id == 0, 'access')
        found = reservation.within(ptr - start, size)
        result = self._result('cuMemSetAccess')
        if not result[0]:
            reservation.allowed.update(found)
        return result

    def cuMemUnmap(self, ptr, size):  # noqa: N802 - the driver's name
        start, reservation = self._around(ptr, size)
        if not any(ptr - start <= offset < ptr - start + size for offset in reservation.mapped):
            return (FakeResult.CUDA_ERROR_INVALID_VALUE,)
        found = reservation.within(ptr - start, size)
        for stream in self.streams.values():
            check(not stream.touches(ptr, ptr + size), 'unmaps what a kernel has yet to use')
        result = self._result('cuMemUnmap')
        for offset in found if not result[0] else ():
            self._mappings[reservation.mapped.pop(offset)[1]] -= 1
            reservation.allowed.discard(offset)
        return result

    def cuEventCreate(self, Flags):  # noqa: N802, N803 - the driver's names
        check(Flags == 2, 'an event that nobody asks for its time needs none')
        result = self._result('cuEventCreate', next(self._numbers))
        if not result[0]:
            self.events[result[1]] = None
        return result

    def cuEventRecord(self, hEvent, hStream):  # noqa: N802, N803 - the driver's names
        check(hEvent in self.events, 'records what is no event')
        result = self._result('cuEventRecord')
        if not result[0]:
            stream = self.streams.get(hStream)
            self.events[hEvent] = (stream, stream.begun) if stream else None
        return result

    def cuEventSynchronize(self, hEvent):  # noqa: N802, N803 - the driver's names
        check(hEvent in self.events, 'waits for what is no event')
        result = self._result('cuEventSynchronize')
        if not result[0] and self.events[hEvent]:
            stream, position = self.events[hEvent]
            stream.run_to(position, self)
        return result

    def cuEventDestroy(self, hEvent):  # noqa: N802, N803 - the driver's names
        check(hEvent in self.events, 'destroys what is no event')
        del self.events[hEvent]
        return self._result('cuEventDestroy')

    def cuCtxSynchronize(self):  # noqa: N802 - the driver's name
        result = self._result('cuCtxSynchronize')
        for stream in self.streams.values() if not result[0] else ():
            stream.run_to(stream.begun, self)
        return result

    def check_accessible(self, first, behind):
        start, reservation = self._around(first, behind - first)
        touched = [(offset, size) for offset, (size, _) in reservation.mapped.items()
                   if offset < behind - start and first - start < offset + size]
        reached = sum(min(offset + size, behind - start) - max(offset, first - start) for offset, size in touched)
        check(reached == behind - first, 'a kernel touches addresses with nothing behind them')
        check(all(offset in reservation.allowed for offset, _ in touched), 'a kernel touches memory without access')

    def check_empty(self):
        """Nothing of the driver's is left."""
        check(not self.reservations, 'addresses are left')
        check(not self.handles and not self.device.taken_bytes, 'chunks are left')
        check(not self.events, 'events are left')

    def _around(self, ptr, size):
        for start, reservation in self.reservations.items():
            if start <= ptr and ptr + size <= start + reservation.size:
                return start, reservation
        raise RuleBrokenError('addresses that are not reserved')

    def physical(self, first, behind):
        """What memory is behind addresses: (handle, begin in it, end in it) each."""
        start, reservation = self._around(first, behind - first)
        return [(handle, max(0, first - start - offset), min(size, behind - start - offset))
                for offset, (size, handle) in reservation.mapped.items()
                if offset < behind - start and first - start < offset + size]

    def overlap(self, some, others):
        """Whether two stretches of addresses have memory in common."""
        theirs = self.physical(*others)
        return any(handle == other and low < other_high and other_low < high
                   for handle, low, high in self.physical(*some) for other, other_low, other_high in theirs)

    def _is_mapped(self, handle):
        return self._mappings[handle] > 0

    def _check_properties(self, prop):
        check((prop.type, prop.location.type, prop.location.id) == ('pinned', 'device', 0), 'properties')

    def _result(self, name, *values):
        self.calls.append(name)
        return (self.failing.pop(name, FakeResult.CUDA_SUCCESS), *values)
