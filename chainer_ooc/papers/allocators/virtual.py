"""Virtual addresses over physical chunks of one size, on paper: fragmentation without an outside.

A request reserves a range of addresses and maps as many physical chunks into it as it needs. A free unmaps them and
caches them. As chunks are alike, any cached ones serve any request, in any order; what is lost is the rest of the last
chunk of each block, less than one chunk::

    chunk          0     1     2     3     4
    block a, 2.5  [a    |a    |a  .]                  three chunks mapped
    block b, 1.0                    [b    ]
    free a        (     |     |     )                 three unmapped, cached
    block c, 4.0  [c    |c    |c    ]     [c    ]     three remapped, one new: its addresses are in one piece

Source: Window+VA section 4, equations 1 and 2. The chunk is 40 MB there, at least 2 MB on their device; CUDA wants a
multiple of 2 MiB, which is not checked here. What differs: by equation 2 each small array takes a chunk too, and a
network has hundreds (statistics, indices, biases), of which the paper says nothing. Requests below `small_bytes` share
chunks instead, in a best-fit pool whose regions are single chunks. By default none do, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from chainer_ooc.papers.allocators.allocator import AllocatorModel, DeviceFullError, ModelBlock
from chainer_ooc.papers.allocators.pool import BestFitPool, PoolChunk

SMALLEST_CHUNK_BYTES = 2 << 20
CHUNK_BYTES = 40 << 20


@dataclass(frozen=True)
class MappedBlock(ModelBlock):
    """A block with the physical chunks behind its addresses, in order."""

    chunks: tuple[int, ...]


class VirtualModel(AllocatorModel):
    """Maps chunks; see the module.

    Args:
        capacity_bytes: of the device; what is left of it beside whole chunks is never used.
        chunk_bytes: of a physical chunk.
        small_bytes: smaller requests share chunks; if any do it is at most `chunk_bytes`, a multiple of 512 then.
    """

    def __init__(self, capacity_bytes: int, chunk_bytes: int = CHUNK_BYTES, small_bytes: int = 0):
        super().__init__(capacity_bytes)
        self.chunk_bytes, self.small_bytes = chunk_bytes, small_bytes
        self._most = capacity_bytes // chunk_bytes
        self._made = 0
        self._cached: list[int] = []
        self._next_address = 0
        self._shared = _SharedChunks(self)

    def map_chunks(self, nbytes: int) -> tuple[int, tuple[int, ...]]:
        """Reserves addresses and puts chunks behind them: the address, and the chunks.

        Raises:
            DeviceFullError: there are too few.
        """
        count = -(-nbytes // self.chunk_bytes)
        if count > len(self._cached) + self._most - self._made:
            raise DeviceFullError
        reused = self._cached[-count:]
        del self._cached[-count:]
        made = range(self._made, self._made + count - len(reused))
        self._made += len(made)
        self.reserved_bytes = self._made * self.chunk_bytes
        address, self._next_address = self._next_address, self._next_address + count * self.chunk_bytes
        return address, (*reused, *made)

    def unmap(self, chunks: tuple[int, ...]) -> None:
        """Takes chunks from their addresses, and caches them."""
        self._cached.extend(reversed(chunks))

    def _take(self, nbytes: int) -> ModelBlock:
        if nbytes < self.small_bytes:
            return self._shared.malloc(nbytes)
        address, chunks = self.map_chunks(nbytes)
        return MappedBlock(address, nbytes, len(chunks) * self.chunk_bytes, chunks)

    def _give_back(self, block: ModelBlock) -> None:
        if isinstance(block, MappedBlock):
            self.unmap(block.chunks)
        else:
            self._shared.free(block)


class _SharedChunks(BestFitPool):
    """The pool of small requests: its regions are chunks, which go back as soon as they are free."""

    def __init__(self, owner: VirtualModel):
        super().__init__(owner.capacity_bytes)
        self._owner = owner
        self._behind: dict[int, tuple[int, ...]] = {}

    def _region(self, size_bytes: int) -> PoolChunk:
        address, chunks = self._owner.map_chunks(self._owner.chunk_bytes)
        self._behind[address] = chunks
        chunk = self._new_region(address, self._owner.chunk_bytes)
        self._split(chunk, size_bytes)
        return chunk

    def _cache(self, chunk: PoolChunk) -> None:
        if chunk.is_whole:
            self._drop_region(chunk)
            self._owner.unmap(self._behind.pop(chunk.address))
        else:
            super()._cache(chunk)
