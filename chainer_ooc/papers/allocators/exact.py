"""The reference: a memory that loses nothing, neither by rounding nor by fragmentation.

It is what the planner's demand and the simulator's timeline count with: a request succeeds exactly if the bytes are
there. Each block gets addresses that no block before it had, as if memory could be moved together at no cost.
"""

from __future__ import annotations

from chainer_ooc.papers.allocators.allocator import AllocatorModel, DeviceFullError, ModelBlock


class ExactAllocator(AllocatorModel):
    """Counts bytes."""

    _next_address = 0

    def _take(self, nbytes: int) -> ModelBlock:
        if self.reserved_bytes + nbytes > self.capacity_bytes:
            raise DeviceFullError
        self.reserved_bytes += nbytes
        address, self._next_address = self._next_address, self._next_address + nbytes
        return ModelBlock(address, nbytes, nbytes)

    def _give_back(self, block: ModelBlock) -> None:
        self.reserved_bytes -= block.size_bytes
