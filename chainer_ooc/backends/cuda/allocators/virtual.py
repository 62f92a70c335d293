"""'virtual': blocks at addresses of one wide range, over physical chunks that are all alike and can be anywhere.

A pool that splits regions ends with free bytes that fit nothing. Here a block is placed wherever addresses are free
(`space`), those with usable memory behind them first: free neighbours are one extent, so what several blocks left
serves one, and nothing is called. Where no such extent is large enough, chunks come behind addresses that lack them:
new ones from the driver, or those that nobody has, the longest idle first. These stay behind the other addresses too,
for blocks that will be there when the chunk is idle again::

    free a, free b (neighbours)     one extent; nothing is called
    malloc within it, same stream   as it is: the stream's order is the order of its users
    malloc that fits none           chunks from the driver, within the limit; else idle ones, mapped once more

So an iteration that is like the one before finds most chunks where it needs them. Of two blocks that live, no two have
the same chunk, and what one left is used by another after it, in the stream's order, as in any pool: which address that
is by makes no difference to kernels that do not run at once.

While the driver still gives chunks, what was freed is kept as it is for a request of the same size, which most are. A
request of another size has all that is kept joined with its neighbours, if there is no room for it beside that.

Before another chunk is mapped behind a page, the old one is unmapped, and all that the stream had been given when the
page's last block was freed must be over: the driver does not wait by itself. So an event is recorded, not at a block's
end (which may come at any moment, in any thread, and only appends to a deque) but at the next request, once for all
that was freed since the last one::

    compute   k1(a) k2(b)     k3       k4
    host             del a,b     malloc(c): records e after k3; a page of a needs another chunk: waits for e

Nothing is recorded while the driver would still give new chunks; for what was freed before, an event of the moment at
which a page is needed is waited for. Nor is anything once a second stream has asked for memory: functions on one may
read what another had, and its own order says nothing of theirs, so that the device is waited for then.

Small requests are cut from blocks of `REGION_BYTES` by CuPy's caching pool, which takes less of the host's time.

A chunk is a 512th of what the allocator may hold, from the least that the device can map to 64 MiB. To put one behind
other addresses takes 55 microseconds (an H100 without work), whatever its size; larger ones leave more idle behind the
ends of blocks. It is chosen while nothing lives here: other chunks for what lives would need memory for both.

Source: Window+VA section 4. What differs: the paper gives each array addresses of its own and unmaps at each free; here
addresses are used again as they are mapped, and chunks are behind several. PyTorch's expandable segments move chunks
too, within one segment that grows. CUDA's programming guide, "Virtual Aliasing Support", says what holds for memory
with several addresses: what one kernel writes, kernels that begin after its end read by all of them.
Left out: CuPy's per-thread default stream, which is one address for many streams; other chunks for a limit that is
changed while arrays live.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from chainer_ooc.backends.cuda.allocators.address_space import AddressSpace, BlockPlace
from chainer_ooc.backends.cuda.allocators.allocator import ENDS, UNIT_BYTES, Allocator, NoRoomError
from chainer_ooc.backends.cuda.allocators.calls import CupyCalls
from chainer_ooc.backends.cuda.allocators.chunks import Chunks
from chainer_ooc.backends.cuda.allocators.ledger import Owner
from chainer_ooc.backends.cuda.allocators.mapping import MappingCalls
from chainer_ooc.quantities import format_bytes, rounded_up

#: A chunk is so much of what the allocator may hold, and at most so large.
CHUNK_SHARE = 512
MOST_CHUNK_BYTES = 64 << 20

#: A space has so many times the addresses of what the allocator may hold: chunks are behind several of them.
WIDTH = 4

#: So many spaces there are before another stream has those of streams that have no blocks any more given back.
MANY_SPACES = 8

#: Requests below are cut from blocks of this size.
SMALL_BYTES = 1 << 20
REGION_BYTES = 4 << 20


class VirtualAllocator(Allocator):
    """See the module; `calls` are of CuPy, `mapping` of the driver."""

    name = 'virtual'

    def __init__(self, calls: CupyCalls, mapping: MappingCalls) -> None:
        super().__init__(calls.device_id)
        self._settled: deque[Any] = deque()  # places, and ends of what was in regions
        self.live.settled = self._settled
        self._unit_bytes = mapping.granularity_bytes()
        self._calls, self._mapping = calls, mapping
        self._chunks = Chunks(mapping, self._unit_bytes, self._join_all, lambda: self.waiting())
        self._chunks.chunk_bytes = self._suitable_bytes(self._may_hold_bytes())
        self._kept: dict[tuple[int, int], list[BlockPlace]] = {}  # freed, by stream and size
        self._spaces: dict[int, list[AddressSpace]] = {}  # by the address of their stream
        self._small = calls.pool(self._region)

    @property
    def chunk_bytes(self) -> int:
        """Of a physical chunk; a multiple of what the device can map."""
        return self._chunks.chunk_bytes

    def _malloc(self, nbytes: int) -> Owner:
        if self.limit_bytes != self._chunks.limit_bytes:
            self._calls.stream()  # as in `trim`
            self._suit()
        if nbytes < SMALL_BYTES:
            return self._malloc_small(nbytes)
        return self._placed(nbytes, is_array=True)

    def lost_bytes(self, limit_bytes: int) -> int:
        chunk_bytes = self._suitable_bytes(limit_bytes + ENDS * self._suitable_bytes(limit_bytes))  # of what is named
        return ENDS * chunk_bytes + (self.chunk_bytes if self.used_bytes() and self.chunk_bytes > chunk_bytes else 0)

    def held_bytes(self) -> int:
        return self._chunks.held_bytes

    def trim(self, keep_bytes: int) -> None:
        """See `Allocator.trim`; waits for the work that may use what is unmapped."""
        self._calls.stream()  # for events, in whatever thread: it needs a context
        with self._changing():
            self._trim(keep_bytes)

    def close(self) -> None:
        self._calls.stream()
        with self._changing():
            self._trim(0)
            self._give_addresses_back()
            self._chunks.timestamps.close()

    def _recount(self) -> None:
        super()._recount()
        spaces = [space for spaces in self._spaces.values() for space in spaces]
        self._chunks.recount(spaces)
        self._kept = {}
        for space in spaces:
            for place in space.owned.values():
                place.is_kept = place() is None
                if place.is_kept:
                    self._kept.setdefault((space.stream.ptr, place.size_bytes), []).append(place)

    def _trim(self, keep_bytes: int) -> None:
        if self.held_bytes() - self.used_bytes() <= keep_bytes:
            return
        self._join_all()
        surplus = -(-(self.held_bytes() - self.used_bytes() - keep_bytes) // self.chunk_bytes)
        self._chunks.release(max(0, surplus))

    def _suit(self) -> None:
        """Chooses the chunk anew for another limit, if nothing lives; what is cached goes back first."""
        self._chunks.limit_bytes = self.limit_bytes
        self._chunks.is_full = False
        if self.limit_bytes is not None and self.held_bytes() > self.limit_bytes:
            self._trim(max(0, self.limit_bytes - self.used_bytes()))  # who has lowered it may have been refused that
        chunk_bytes = self._suitable_bytes(self._may_hold_bytes())
        if chunk_bytes == self.chunk_bytes or self.used_bytes():
            return
        self._trim(0)
        if not self.held_bytes():
            self._give_addresses_back()
            self._chunks.chunk_bytes = chunk_bytes

    def _suitable_bytes(self, limit_bytes: int) -> int:
        """Of a chunk, see the module."""
        return rounded_up(max(min(limit_bytes // CHUNK_SHARE, MOST_CHUNK_BYTES), 1), self._unit_bytes)

    def _may_hold_bytes(self) -> int:
        return self._calls.free_bytes() + self._chunks.held_bytes if self.limit_bytes is None else self.limit_bytes

    def _malloc_small(self, nbytes: int) -> Owner:
        try:
            return self._given(self._small.malloc(nbytes).mem, nbytes)
        except NoRegionError:
            pass
        # Dropped at once: cached, for the next request to split. Where a region has no room, what is asked for may.
        try:
            self._small.malloc(REGION_BYTES)
        except NoRoomError:
            return self._placed(nbytes, is_array=True)
        return self._given(self._small.malloc(nbytes).mem, nbytes)

    def _region(self, nbytes: int) -> Any:
        """Gives the small pool a region, and only a region."""
        if nbytes != REGION_BYTES:
            raise NoRegionError(f'the pool of small arrays has no {format_bytes(nbytes)}')
        region = self._placed(nbytes, is_array=False)
        return self._calls.pointer(region.pointer, nbytes, region)

    def _placed(self, nbytes: int, is_array: bool) -> Owner:
        size_bytes = -(-nbytes // UNIT_BYTES) * UNIT_BYTES
        stream = self._calls.stream()
        key = stream.ptr, size_bytes
        if self.live.ended or self._settled:
            self._settle()
        alike = self._kept.get(key)
        space, offset = (alike[-1].space, alike[-1].offset) if alike else self._found(key, stream)
        block = Owner(space.address + offset, nbytes, self.device_id, size_bytes)
        place = BlockPlace(block, self.live.note_end)
        place.is_kept, place.size_bytes, place.offset, place.space = False, size_bytes, offset, space
        if alike:
            space.owned[offset] = place
            alike.pop()
        else:
            space.take(place)
        if is_array:
            self.live.add(place)
        return block

    def _found(self, key: tuple[int, int], stream: Any) -> tuple[AddressSpace, int]:
        """Where a block lacks no chunk any more, and nobody has any of it."""
        found = self._backed(key) if self._kept else None
        if found is None:
            self._join()
            found = self._place(key, stream)
            self._chunks.back(found[0], found[0].pages(found[1], key[1]))
        return found

    def _backed(self, key: tuple[int, int]) -> tuple[AddressSpace, int] | None:
        """Where a block lacks no chunk, without what is kept for others; or None."""
        pointer, size_bytes = key
        for space in self._spaces.get(pointer, ()):
            offset = space.place(size_bytes)
            if offset is not None:
                pages = space.pages(offset, size_bytes)
                if not space.missing(pages, 1) and not space.shared(pages):
                    return space, offset
        return None

    def _place(self, key: tuple[int, int], stream: Any) -> tuple[AddressSpace, int]:
        """Where a block lacks the fewest chunks."""
        pointer, size_bytes = key
        for space in self._spaces.get(pointer, ()):
            found = space.place(size_bytes)
            if found is not None:
                return space, found
        if sum(map(len, self._spaces.values())) >= MANY_SPACES:
            self._leave_streams()
        may_hold_bytes = self._may_hold_bytes()
        if size_bytes > may_hold_bytes:
            raise NoRoomError(f'{format_bytes(size_bytes)} of chunks are needed, of {format_bytes(may_hold_bytes)}',
                              self.used_bytes() + size_bytes - may_hold_bytes)
        width_bytes = rounded_up(WIDTH * may_hold_bytes, self.chunk_bytes)
        address = self._mapping.reserve(width_bytes)
        space = AddressSpace(address, width_bytes, self.chunk_bytes, stream, self._chunks.idle)
        self._chunks.has_streams |= bool(self._spaces) and pointer not in self._spaces
        self._spaces.setdefault(pointer, []).append(space)
        return space, 0

    def _settle(self) -> None:
        """Keeps what was freed since the last call for requests of the same sizes."""
        self.live.settle()
        settled = self._settled
        while settled:
            end = settled.popleft()
            space = getattr(end, 'space', None)  # else it was in a region, or an interrupt came before it was anywhere
            if space is not None and not end.is_kept and space.owned.get(end.offset) is end:
                end.is_kept = True
                key = space.stream.ptr, end.size_bytes
                alike = self._kept.get(key)
                if alike is None:
                    alike = self._kept[key] = []
                alike.append(end)
        if self._chunks.is_full:
            self._join()

    def _join(self) -> None:
        """Makes the addresses of what was freed free; nothing uses them after the moment of their streams now."""
        arrived: dict[int, list[tuple[AddressSpace, range]]] = {}
        for (pointer, _), places in self._kept.items():
            for place in places:
                space = place.space
                pages = space.give(place)
                if pages:
                    space.note(pages, None)
                    arrived.setdefault(pointer, []).append((space, pages))
        self._kept = {}
        if not self._chunks.is_full or self._chunks.has_streams:
            return
        # Now that all of them are known: another thread may launch work and free what it uses meanwhile, and that work
        # comes after the moment.
        for each in arrived.values():
            moment = self._chunks.timestamps.record(each[0][0].stream)
            for space, pages in each:
                space.note(pages, moment)

    def _join_all(self) -> None:
        """As `_join`, with the regions that no small array needs."""
        self._small.free_all_blocks()
        self._settle()
        self._join()

    def _leave_streams(self) -> None:
        """Unmaps what streams without blocks have left, when their work is over, and lets go of them."""
        self._join_all()  # what was freed there, and regions that no small array needs, are no blocks
        left = [space for spaces in self._spaces.values() for space in spaces if not space.owned]
        self._chunks.detach([chunk for chunk in self._chunks.idle if chunk.space in left])
        self._give_addresses_back()

    def _give_addresses_back(self) -> None:
        """Of spaces that nothing is mapped behind."""
        for pointer, spaces in [*self._spaces.items()]:
            for space in [*spaces]:
                if space.is_empty:
                    spaces.remove(space)  # first: after an interrupt nothing is mapped there
                    try:
                        self._mapping.free_addresses(space.address, space.size_bytes)
                    except (MemoryError, RuntimeError):
                        spaces.append(space)
                        raise
            if not spaces:
                del self._spaces[pointer]
        self._chunks.has_streams &= bool(self._spaces)


class NoRegionError(MemoryError):
    """The pool of small arrays has nothing cached; it is to be given a region first."""
