"""'pool': CuPy's best-fit caching pools, one for each size of large arrays, with regions counted as the driver counts.

A best-fit pool that is short of memory gives a gradient of 9 MiB a part of what a map of 1 GiB left, and the rest is of
no use for the next such map until the gradient goes. In core the pool just grows; under a limit arrays have to leave
for it. A training repeats its sizes, so that a pool for each size of more than 1 MiB finds what it needs, and what it
has cached goes back to the driver whole: the size that was used longest ago first, and only as much as is missing.
Smaller arrays share one pool.

The pools are compiled code, keep an arena for each stream and take memory back from any thread. Their regions come from
here, for three reasons:

- The limit is checked where memory leaves the driver, so that what is cached counts too. CuPy's own `set_limit` runs
  the garbage collector each time it is reached, which costs a tenth of a second in a process with Chainer's graphs; out
  of core it is reached all the time, and an eviction has to come first.
- A refusal of the driver comes to `AllocatorBudget` at once, for the same reason.
- The driver gives memory in pages: a region of 3 MiB takes 4 MiB from the device. With hundreds of regions that is
  hundreds of MiB that `MemoryPool.total_bytes` does not count.

Left out: arrays whose sizes never come again, which have the driver take memory back each time; see `virtual`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from chainer_ooc.backends.cuda.allocators.allocator import ENDS, UNIT_BYTES, Allocator, DeviceMemory, NoRoomError
from chainer_ooc.backends.cuda.allocators.calls import CupyCalls, Pool
from chainer_ooc.backends.cuda.allocators.ledger import Ledger, Owner
from chainer_ooc.quantities import format_bytes, rounded_up

#: What the driver maps device memory in.
PAGE_BYTES = 2 << 20

#: Regions up to this size share a page, as far as the driver lets see; the pages of larger ones are theirs alone.
SHARED_BYTES = 1 << 20


def paged(nbytes: int) -> int:
    """What a region of `nbytes` takes from the device, in bytes."""
    return nbytes if nbytes <= SHARED_BYTES else rounded_up(nbytes, PAGE_BYTES)


class PoolAllocator(Allocator):
    """See the module."""

    name = 'pool'

    def __init__(self, calls: CupyCalls) -> None:
        super().__init__(calls.device_id)
        self._calls = calls
        self._held = Ledger(self.live.lock)  # the regions
        self._pools: OrderedDict[int, Pool] = OrderedDict()  # the one used longest ago is the first

    def _malloc(self, nbytes: int) -> Owner:
        return self._given(self._cached(nbytes), nbytes)

    def held_bytes(self) -> int:
        return self._held.total()

    def lost_bytes(self, limit_bytes: int) -> int:
        return ENDS * PAGE_BYTES

    def trim(self, keep_bytes: int) -> None:
        with self._changing():
            if sum(pool.free_bytes() for pool in self._pools.values()) > keep_bytes:
                self._give_back()

    def _recount(self) -> None:
        super()._recount()
        self._held.recount()
        self._held.is_amid = False

    def _cached(self, nbytes: int) -> DeviceMemory:
        for missing_bytes in (nbytes, None):
            try:
                return self._taken(nbytes)
            except MemoryError:
                pass  # and out of the handler, whose error keeps frames alive
            self._give_back(missing_bytes)
        return self._taken(nbytes)

    def _taken(self, nbytes: int) -> DeviceMemory:
        return self._pool_of(nbytes).malloc(nbytes).mem  # type: ignore[no-any-return]

    def _pool_of(self, nbytes: int) -> Pool:
        size_bytes = rounded_up(nbytes, UNIT_BYTES) if nbytes > SHARED_BYTES else 0
        if size_bytes not in self._pools:
            self._pools[size_bytes] = self._calls.pool(self._grow)
        self._pools.move_to_end(size_bytes)
        return self._pools[size_bytes]

    def _give_back(self, missing_bytes: int | None = None) -> None:
        """Gives back what is cached: all of it, or as much as a region of so many bytes lacks under the limit."""
        for size_bytes, pool in list(self._pools.items()):
            if missing_bytes is not None and self._has_room(missing_bytes):
                return
            pool.free_all_blocks()
            if not pool.total_bytes():
                del self._pools[size_bytes]

    def _has_room(self, nbytes: int) -> bool:
        limit_bytes = self.limit_bytes  # another thread may lift it
        return limit_bytes is not None and self._held.total() + paged(nbytes) <= limit_bytes

    def _grow(self, nbytes: int) -> Any:
        """Gives the pool a region; the pool calls it when nothing cached is large enough."""
        taken_bytes, limit_bytes = paged(nbytes), self.limit_bytes  # another thread may lift it
        if limit_bytes is not None and self._held.total() + taken_bytes > limit_bytes:
            raise NoRoomError(f'the limit of {format_bytes(limit_bytes)} leaves no room for a region of '
                              f'{format_bytes(taken_bytes)}', self._held.total() + taken_bytes - limit_bytes)
        memory = self._region(nbytes)
        owner = Owner(memory.ptr, nbytes, self.device_id, taken_bytes, memory)
        self._held.begin(owner)
        return self._calls.pointer(memory.ptr, nbytes, owner)

    def _region(self, nbytes: int) -> DeviceMemory:
        return self._calls.device_memory(nbytes)


class ManagedAllocator(PoolAllocator):
    """Managed memory, prefetched to the device, that never asks for more than the card has free: 'unified'.

    As in UM-Chainer, arrays lie in managed memory below a caching pool, and each region is moved to the device as a
    whole when it is made, instead of page by page when kernels first touch it. The host may read such arrays in place.

    More managed memory than the card has free would be legal: the driver then moves pages to and fro as they are
    touched. It is refused here, because on a card that several programs share that can stop all of them, each evicting
    the pages that the others are about to touch. To train beyond the card, set a policy that swaps or recomputes.

    The driver counts a managed page as used only once it is on the device, which a prefetch does some time later. So
    what is free now is not enough to know: all managed memory together also stays within what was free at the start.

    Source: OOC-Paleo 4.3. What differs: the limit.
    """

    name = 'unified'

    def __init__(self, calls: CupyCalls) -> None:
        super().__init__(calls)
        self._most_bytes = calls.free_bytes()

    def _region(self, nbytes: int) -> DeviceMemory:
        free_bytes = self._calls.free_bytes()
        if nbytes > free_bytes or self.held_bytes() + paged(nbytes) > self._most_bytes:
            raise NoRoomError(f'managed memory of {format_bytes(nbytes)} more would not fit the card '
                              f'(free {format_bytes(free_bytes)} now, {format_bytes(self._most_bytes)} at the start)')
        return self._calls.managed_memory(nbytes)
