"""'async': CUDA's own pool, in the order of a stream (`cudaMallocAsync`).

The driver puts memory together from its pages as `virtual` does, and knows when each stream is done with it. CuPy's
memory hooks never fire for it, so `AllocatorBudget` counts by itself, as for every allocator.

The driver has no limit for such a pool. What can be limited is what is asked of it, and since it takes from the device
in steps of its own (`STEP_BYTES`), whether it passed the limit shows only afterwards: then what is free in it is given
back, and if that does not help, the new block too.

Left out: a pool of our own. The device's current one is taken, so that whatever else in the process allocates in the
order of a stream shares what is cached; that memory counts against the limit.
"""

from __future__ import annotations

from chainer_ooc.backends.cuda.allocators.allocator import ENDS, UNIT_BYTES, Allocator, DeviceMemory, NoRoomError
from chainer_ooc.backends.cuda.allocators.calls import CupyCalls
from chainer_ooc.backends.cuda.allocators.ledger import Owner
from chainer_ooc.quantities import format_bytes, rounded_up

#: In which the driver's pool takes memory from the device, where that was seen (H100, CUDA 13).
STEP_BYTES = 32 << 20


class AsyncAllocator(Allocator):
    """See the module."""

    name = 'async'

    def __init__(self, calls: CupyCalls) -> None:
        super().__init__(calls.device_id)
        self._calls = calls
        self._pool = calls.stream_ordered_pool()

    def open(self) -> None:
        self._pool.keep_freed()

    def _malloc(self, nbytes: int) -> Owner:
        size_bytes = rounded_up(nbytes, UNIT_BYTES)
        memory = self._within_limit(size_bytes)
        if isinstance(memory, int):
            self._pool.trim(0)
            memory = self._within_limit(size_bytes)
        if isinstance(memory, int):
            self._pool.trim(0)  # what it took for the second try, too
            raise NoRoomError(f'no room for {format_bytes(size_bytes)} in the pool of the driver', memory)
        return self._given(memory, nbytes)

    def held_bytes(self) -> int:
        return self._pool.held_bytes()

    def lost_bytes(self, limit_bytes: int) -> int:
        return min(ENDS * STEP_BYTES, STEP_BYTES + limit_bytes)

    def trim(self, keep_bytes: int) -> None:
        with self._changing():
            used_bytes = self._pool.used_bytes()
            if self._pool.held_bytes() - used_bytes > keep_bytes:
                self._pool.trim(used_bytes + keep_bytes)

    def close(self) -> None:
        """See `Allocator.close`; the driver's pool keeps as much as it did before."""
        self.trim(0)
        self._pool.restore()

    def _within_limit(self, size_bytes: int) -> DeviceMemory | int:
        """Takes memory, or says by how much the limit would be passed; 0 where the device refuses."""
        limit_bytes = self.limit_bytes
        needed_bytes = self._pool.used_bytes() + size_bytes
        if limit_bytes is not None and needed_bytes > limit_bytes:
            return rounded_up(needed_bytes, STEP_BYTES) - limit_bytes
        try:
            memory = self._calls.stream_ordered_memory(size_bytes)
        except NoRoomError:
            return 0
        if limit_bytes is not None and self._pool.held_bytes() > limit_bytes:
            self._pool.trim(0)
            if (missing_bytes := self._pool.held_bytes() - limit_bytes) > 0:
                return missing_bytes
        return memory
