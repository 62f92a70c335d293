"""'pool': CuPy's best-fit caching pool, with regions that are counted as the driver counts them.

The pool is compiled code and as good as any: it splits, merges, keeps an arena for each stream and takes memory back
from any thread. It is given its regions by us, for three reasons:

- The limit is checked where memory leaves the driver, so that what is cached counts too. CuPy's own `set_limit` runs
  the garbage collector each time it is reached, which costs a tenth of a second in a process with Chainer's graphs; out
  of core it is reached all the time, and an eviction has to come first.
- A refusal of the driver comes to `Budget` at once, for the same reason.
- The driver gives memory in pages: a region of 3 MiB takes 4 MiB from the device. With hundreds of regions that is
  hundreds of MiB that `MemoryPool.total_bytes` knows nothing of.

Left out: the fragments. A region of which a part lives stays, whatever is asked; see `virtual`.
"""

from __future__ import annotations

from typing import Any

from chainer_ooc.backends.cuda.allocators.allocator import Allocator, Memory, NoRoomError
from chainer_ooc.backends.cuda.allocators.calls import Calls
from chainer_ooc.backends.cuda.allocators.ledger import Ledger
from chainer_ooc.quantities import format_bytes

#: What the driver maps device memory in.
PAGE_BYTES = 2 << 20

#: Regions up to this size share a page, as far as the driver lets see; the pages of larger ones are theirs alone.
SHARED_BYTES = 1 << 20


def paged(nbytes: int) -> int:
    """What a region of `nbytes` takes from the device, in bytes."""
    return nbytes if nbytes <= SHARED_BYTES else -(-nbytes // PAGE_BYTES) * PAGE_BYTES


class PoolAllocator(Allocator):
    """See the module."""

    name = 'pool'

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._held = Ledger()
        self._pool = calls.pool(self._grow)

    def malloc(self, nbytes: int) -> Memory:
        try:
            return self._pool.malloc(nbytes).mem  # type: ignore[no-any-return]
        except MemoryError:
            pass  # and out of the handler, whose error keeps frames alive
        self._pool.free_all_blocks()
        return self._pool.malloc(nbytes).mem  # type: ignore[no-any-return]

    def used_bytes(self) -> int:
        return self._pool.used_bytes()

    def held_bytes(self) -> int:
        return self._held.total()

    def trim(self, keep_bytes: int) -> None:
        if self._pool.free_bytes() > keep_bytes:
            self._pool.free_all_blocks()

    def _grow(self, nbytes: int) -> Any:
        """Gives the pool a region; the pool calls it when nothing cached is large enough."""
        taken_bytes = paged(nbytes)
        if not self._held.add(taken_bytes, self.limit_bytes):
            raise NoRoomError(f'the limit of {format_bytes(self.limit_bytes or 0)} leaves no room for a region of '
                              f'{format_bytes(taken_bytes)}')
        try:
            memory = self._region(nbytes)
        except BaseException:
            self._held.lower(taken_bytes)
            raise
        return self._calls.pointer(memory.ptr, nbytes, Region(memory, taken_bytes, self._held))

    def _region(self, nbytes: int) -> Memory:
        return self._calls.device_memory(nbytes)


class Region:
    """Keeps a region for the pool, and books its end whenever the pool drops it."""

    __slots__ = ('_held', '_memory', '_taken_bytes')

    def __init__(self, memory: Memory, taken_bytes: int, held: Ledger) -> None:
        self._memory: Memory | None = memory
        self._taken_bytes, self._held = taken_bytes, held

    def __del__(self) -> None:
        self._memory = None  # first back to the driver, then out of the sum: never held unseen
        self._held.lower(self._taken_bytes)
