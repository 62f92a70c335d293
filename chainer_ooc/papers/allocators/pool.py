"""CuPy's default allocator, on paper: a best-fit pool that caches what is freed.

A request is rounded up to a multiple of 512 bytes. The smallest cached chunk that holds it is taken; what that chunk
has more is split off and goes back to the cache. Only if no chunk is large enough is the device asked (`cudaMalloc`),
for a region of exactly the request's size. A freed chunk is merged with its neighbours if these are free too, but never
beyond its region::

    region of 8        [0             8]
    malloc 2, 3        [0  2][2   5][5 8]     two splits
    free the first     [    ][2   5][5 8]     chunks of 2 and of 3 are cached: 5 bytes, but no request of 4 fits
    free the second    [0             8]      merges on both sides

When the device is full, regions that are free as a whole go back to it, and it is asked once more. A region of which
any part lives stays, and that is the fragmentation that keeps a schedule from using its memory: large chunks are cut
for small requests, and the remainders serve nothing that comes after.

Source: the behaviour of `cupy.cuda.MemoryPool` (cupy/cuda/memory.pyx); Window+VA section 4 calls such a pool the common
strategy of frameworks. What differs: among cached chunks of one size the one at the lowest address is taken, where CuPy
takes any, so that equal requests give equal results. CuPy gives free regions back when the device refuses; a limit set
with `set_limit` fails at once instead, and here the capacity is the device. Left out: an arena for each stream (all
blocks are the compute stream's), and fragmentation of the device below the regions (its driver maps pages).
"""

from __future__ import annotations

import bisect

from chainer_ooc.papers.allocators.allocator import AllocatorModel, DeviceFullError, ModelBlock
from chainer_ooc.quantities import rounded_up

UNIT_BYTES = 512


class PoolChunk:
    """A stretch of a region, linked with those beside it."""

    __slots__ = ('address', 'before', 'behind', 'is_free', 'size_bytes')

    def __init__(self, address: int, size_bytes: int):
        self.address, self.size_bytes = address, size_bytes
        self.before: PoolChunk | None = None
        self.behind: PoolChunk | None = None
        self.is_free = True

    @property
    def is_whole(self) -> bool:
        """It is all of its region."""
        return self.before is None and self.behind is None


class BestFitPool(AllocatorModel):
    """Caches freed chunks and gives the smallest that fits; see the module."""

    def __init__(self, capacity_bytes: int):
        super().__init__(capacity_bytes)
        self._next_address = 0
        self._cached: list[tuple[int, int]] = []  # size and address of each free chunk, ascending
        self._chunks: dict[int, PoolChunk] = {}

    @property
    def cached(self) -> tuple[tuple[int, int], ...]:
        """Address and size of each free chunk, by address."""
        return tuple(sorted((address, size_bytes) for size_bytes, address in self._cached))

    def _take(self, nbytes: int) -> ModelBlock:
        size_bytes = rounded_up(nbytes, UNIT_BYTES)
        best = bisect.bisect_left(self._cached, (size_bytes, -1))
        if best < len(self._cached):
            chunk = self._chunks[self._cached.pop(best)[1]]
            self._split(chunk, size_bytes)
        else:
            chunk = self._region(size_bytes)
        chunk.is_free = False
        return ModelBlock(chunk.address, nbytes, size_bytes)

    def _split(self, chunk: PoolChunk, size_bytes: int) -> None:
        """Cuts the chunk down to a size, and caches the rest."""
        if chunk.size_bytes == size_bytes:
            return
        rest = PoolChunk(chunk.address + size_bytes, chunk.size_bytes - size_bytes)
        rest.before, rest.behind = chunk, chunk.behind
        if chunk.behind is not None:
            chunk.behind.before = rest
        chunk.behind, chunk.size_bytes = rest, size_bytes
        self._chunks[rest.address] = rest
        self._cache(rest)

    def _region(self, size_bytes: int) -> PoolChunk:
        if self.reserved_bytes + size_bytes > self.capacity_bytes:
            self._give_regions_back()
        if self.reserved_bytes + size_bytes > self.capacity_bytes:
            raise DeviceFullError
        address, self._next_address = self._next_address, self._next_address + size_bytes
        return self._new_region(address, size_bytes)

    def _new_region(self, address: int, size_bytes: int) -> PoolChunk:
        self.reserved_bytes += size_bytes
        self._chunks[address] = PoolChunk(address, size_bytes)
        return self._chunks[address]

    def _give_regions_back(self) -> None:
        """Gives back what is free as a whole."""
        whole = [self._chunks[address] for _, address in self._cached if self._chunks[address].is_whole]
        self._cached = [each for each in self._cached if not self._chunks[each[1]].is_whole]
        for chunk in whole:
            self._drop_region(chunk)

    def _drop_region(self, chunk: PoolChunk) -> None:
        del self._chunks[chunk.address]
        self.reserved_bytes -= chunk.size_bytes

    def _give_back(self, block: ModelBlock) -> None:
        chunk = self._chunks[block.address]
        chunk.is_free = True
        if chunk.behind is not None and chunk.behind.is_free:
            self._uncache(chunk.behind)
            self._merge(chunk, chunk.behind)
        if chunk.before is not None and chunk.before.is_free:
            self._uncache(chunk.before)
            chunk = self._merge(chunk.before, chunk)
        self._cache(chunk)

    def _cache(self, chunk: PoolChunk) -> None:
        bisect.insort(self._cached, (chunk.size_bytes, chunk.address))

    def _uncache(self, chunk: PoolChunk) -> None:
        del self._cached[bisect.bisect_left(self._cached, (chunk.size_bytes, chunk.address))]

    def _merge(self, first: PoolChunk, second: PoolChunk) -> PoolChunk:
        first.size_bytes += second.size_bytes
        first.behind = second.behind
        if second.behind is not None:
            second.behind.before = first
        del self._chunks[second.address]
        return first
