"""'virtual': each array in addresses of its own, out of physical chunks that are all alike.

A pool that splits regions ends with free bytes that fit nothing. Here a large array is given a range of addresses, and
as many chunks are mapped into it as it needs, from anywhere in the device; what is lost is the rest of its last chunk.

Mapping costs calls of the driver, so it is put off until a request cannot do without::

    free a       range of a -> idle, still mapped; nothing is called
    malloc, the same number of chunks, the same stream -> the newest idle range of that size, as it is
    malloc, another size -> free chunks; else new ones from the driver; else the oldest idle ranges are unmapped

An idle range that goes to the same stream needs no wait: the stream's order is the order of its users. To unmap it,
all that the stream had been given when the array was freed must be over, and the driver does not wait by itself. So an
event is recorded, not by the finalizer (which may run at any moment, in any thread: it only appends to a deque) but at
the next request, once for all that was freed since the last one::

    compute   k1(a) k2(b)     k3       k4
    host             del a,b     malloc(c): records e after k3; a, b idle; chunks are short: waits for e, unmaps a

Requests below a chunk share chunks through CuPy's caching pool: a chunk for each would be mostly rounding. That pool
asks for exactly what it cannot find, so it is first made to take a whole chunk and to free it again, which it splits.

A chunk is a 512th of what the allocator may hold, between the least that the device can map and 38 MiB: an array that
is a tenth of the memory takes 51 calls to map, however much memory that is, and each large array loses a 1024th of the
memory on average. It is chosen while nothing lives here: other chunks for what lives would need memory for both.

Source: Window+VA section 4. What differs: ranges stay mapped until their chunks are needed (the paper unmaps at each
free), small arrays share chunks (of which the paper says nothing), and the paper took chunks of 40 MB within 16 GB.
Left out: CuPy's per-thread default stream, which is one address for many streams; other chunks for a limit that is
changed while arrays live.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from chainer_ooc.backends.cuda.allocators.allocator import Allocator, DeviceMemory, NoRoomError
from chainer_ooc.backends.cuda.allocators.calls import Calls
from chainer_ooc.backends.cuda.allocators.ledger import Ledger
from chainer_ooc.backends.cuda.allocators.mapping import MappingCalls
from chainer_ooc.backends.cuda.allocators.timestamps import Timestamp, Timestamps
from chainer_ooc.quantities import format_bytes

#: A chunk is so much of what the allocator may hold, and at most so large.
CHUNK_SHARE = 512
MOST_CHUNK_BYTES = 38 << 20


@dataclass(eq=False)
class Range:
    """Addresses with chunks behind them.

    Attributes:
        stream: whose work may use it; kept alive, as an event will be recorded on it.
        timestamp: when that work is over, since it was freed; None while it lives.
    """

    address: int
    size_bytes: int
    handles: list[Any]
    stream: Any
    timestamp: Timestamp | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Ranges of one key stand for each other, as they are."""
        return self.stream.ptr, self.size_bytes


class MappedMemory:
    """A live range; see `DeviceMemory`. When it dies its range joins the freed ones, and nothing else happens."""

    __slots__ = ('_freed', '_live', '_range', 'ptr', 'size')

    def __init__(self, range_: Range, freed: deque[Range], live: Ledger) -> None:
        self._range, self._freed, self._live = range_, freed, live
        self.ptr, self.size = range_.address, range_.size_bytes
        live.add(self.size)

    def __del__(self) -> None:
        self._freed.append(self._range)
        self._live.lower(self.size)


class VirtualAllocator(Allocator):
    """See the module.

    Args:
        calls, mapping: of CuPy and of the driver.

    Attributes:
        chunk_bytes: of a physical chunk; a multiple of what the device can map.
    """

    name = 'virtual'

    def __init__(self, calls: Calls, mapping: MappingCalls) -> None:
        self._unit_bytes = mapping.granularity_bytes()
        self._calls, self._mapping = calls, mapping
        self._suited_bytes = self.limit_bytes
        self.chunk_bytes = self._suitable_bytes()
        self._free: list[Any] = []  # handles of the chunks that are mapped nowhere; the last is taken first
        self._held_bytes = 0  # of all chunks
        self._timestamps = Timestamps(mapping)
        self._freed: deque[Range] = deque()
        self._arriving: list[Range] = []  # freed, and not idle yet
        self._idle: dict[Range, None] = {}  # the oldest first
        self._alike: dict[tuple[int, int], list[Range]] = {}
        self._live = Ledger()
        self._small = calls.pool(self._share)
        # Reentrant: the small pool asks for its regions from within `malloc`. Finalizers never take it.
        self._lock = threading.RLock()

    def malloc(self, nbytes: int) -> DeviceMemory:
        with self._lock:
            if self.limit_bytes != self._suited_bytes:
                self._suit()
            if nbytes < self.chunk_bytes:
                return self._malloc_small(nbytes)
            return self._mapped(nbytes)

    def used_bytes(self) -> int:
        """See `Allocator.used_bytes`; regions of the small pool count by what lives in them."""
        return self._live.total() - int(self._small.free_bytes())

    def held_bytes(self) -> int:
        return self._held_bytes

    def trim(self, keep_bytes: int) -> None:
        """See `Allocator.trim`; waits for the work that may use what is unmapped."""
        with self._lock:
            if self.held_bytes() - self.used_bytes() <= keep_bytes:
                return
            self._small.free_all_blocks()
            self._settle()
            while self.held_bytes() - self._live.total() > keep_bytes and (self._free or self._unmap_oldest()):
                self._mapping.release(self._free[-1], self.chunk_bytes)
                self._free.pop()
                self._held_bytes -= self.chunk_bytes

    def close(self) -> None:
        with self._lock:
            self.trim(0)
            self._timestamps.close()

    def _suit(self) -> None:
        """Chooses the chunk anew for another limit, if nothing lives; what is cached goes back first."""
        self._suited_bytes = self.limit_bytes
        chunk_bytes = self._suitable_bytes()
        if chunk_bytes == self.chunk_bytes or self.used_bytes():
            return
        self.trim(0)
        if not self.held_bytes():
            self.chunk_bytes, self._free = chunk_bytes, []

    def _suitable_bytes(self) -> int:
        """See the module."""
        may_hold_bytes = self._calls.free_bytes() if self.limit_bytes is None else self.limit_bytes
        count = min(may_hold_bytes // CHUNK_SHARE, MOST_CHUNK_BYTES) // self._unit_bytes
        return max(count, 1) * self._unit_bytes

    def _malloc_small(self, nbytes: int) -> DeviceMemory:
        try:
            return self._small.malloc(nbytes).mem  # type: ignore[no-any-return]
        except NoRegionError:
            pass
        self._small.malloc(self.chunk_bytes)  # dropped at once: cached, for the next request to split
        return self._small.malloc(nbytes).mem  # type: ignore[no-any-return]

    def _share(self, nbytes: int) -> Any:
        """Gives the small pool a chunk, and only a chunk."""
        if nbytes != self.chunk_bytes:
            raise NoRegionError(f'the pool of small arrays has no {format_bytes(nbytes)}')
        memory = self._mapped(nbytes)
        return self._calls.pointer(memory.ptr, nbytes, memory)

    def _mapped(self, nbytes: int) -> MappedMemory:
        self._settle()
        count, stream = -(-nbytes // self.chunk_bytes), self._calls.stream()
        alike = self._alike.get((stream.ptr, count * self.chunk_bytes))
        range_ = self._revive(alike[-1]) if alike else self._new_range(count, stream)
        return MappedMemory(range_, self._freed, self._live)

    def _settle(self) -> None:
        """Makes what was freed since the last call idle, after the moment that its streams are at now."""
        # All of them are taken before a moment is recorded: another thread may launch work and free what it uses
        # meanwhile, and that work comes after the moment. They are kept, should the recording fail.
        for _ in range(len(self._freed)):
            self._arriving.append(self._freed.popleft())
        now: dict[int, Timestamp] = {}
        while self._arriving:
            range_ = self._arriving[-1]
            stream = range_.stream
            if stream.ptr not in now:
                now[stream.ptr] = self._timestamps.record(stream)
            range_.timestamp = now[stream.ptr].shared()
            self._arriving.pop()
            self._idle[range_] = None
            self._alike.setdefault(range_.key, []).append(range_)

    def _revive(self, range_: Range) -> Range:
        """Takes a range out of the idle ones."""
        del self._idle[range_]
        alike = self._alike[range_.key]
        alike.remove(range_)
        if not alike:
            del self._alike[range_.key]
        self._timestamps.drop(range_.timestamp)
        range_.timestamp = None
        return range_

    def _new_range(self, count: int, stream: Any) -> Range:
        self._gather(count)
        size_bytes = count * self.chunk_bytes
        address = self._mapping.reserve(size_bytes)
        handles = [self._free.pop() for _ in range(count)]
        mapped_bytes = 0
        try:
            for handle in handles:
                self._mapping.map(address + mapped_bytes, self.chunk_bytes, handle)
                mapped_bytes += self.chunk_bytes
            self._mapping.allow(address, size_bytes)
        except BaseException:
            if mapped_bytes:
                self._mapping.unmap(address, mapped_bytes)
            self._free.extend(reversed(handles))
            self._mapping.free_addresses(address, size_bytes)
            raise
        return Range(address, size_bytes, handles, stream)

    def _gather(self, count: int) -> None:
        """Has `count` chunks free: those that are, new ones, those of idle ranges, those that small arrays left.

        Raises:
            NoRoomError: there are too few.
        """
        while len(self._free) < count:
            if self._create() or self._unmap_oldest():
                continue
            self._small.free_all_blocks()
            self._settle()
            if not self._idle:
                raise NoRoomError(f'{format_bytes(count * self.chunk_bytes)} of chunks are needed, '
                                  f'{format_bytes(len(self._free) * self.chunk_bytes)} are free')

    def _create(self) -> bool:
        """Takes one more chunk from the driver; False if the limit or the device refuses."""
        if self.limit_bytes is not None and self._held_bytes + self.chunk_bytes > self.limit_bytes:
            return False
        try:
            self._free.append(self._mapping.create(self.chunk_bytes))
        except NoRoomError:
            return False
        self._held_bytes += self.chunk_bytes
        return True

    def _unmap_oldest(self) -> bool:
        """Frees the chunks of the range that is idle for longest; False if there is none."""
        if not self._idle:
            return False
        range_ = next(iter(self._idle))
        self._timestamps.wait(range_.timestamp)  # a failed wait leaves the range idle
        # Out of the idle ones first: should anything go wrong now, chunks are lost, and no unmapped range is given out.
        self._revive(range_)
        self._mapping.unmap(range_.address, range_.size_bytes)
        self._free.extend(reversed(range_.handles))
        self._mapping.free_addresses(range_.address, range_.size_bytes)
        return True


class NoRegionError(MemoryError):
    """The pool of small arrays has nothing cached; it is to be given a chunk first."""
