"""'unified': managed memory, prefetched to the device, that never asks for more than the card has free.

As in UM-Chainer, arrays lie in managed memory below a caching pool, and each region is moved to the device as a whole
when it is made, instead of page by page when kernels first touch it. The host may read such arrays in place.

More managed memory than the card has free would be legal: the driver then moves pages to and fro as they are touched.
It is refused here, because on a card that several programs share that can stop all of them, each evicting the pages
that the others are about to touch. Whoever wants to train beyond the card sets a policy; that is what they are for.

The driver counts a managed page as used only once it is on the device, which a prefetch does some time later. So what
is free now is not enough to know: all managed memory together also stays within what was free at the start.

Source: OOC-Paleo 4.3. What differs: the limit.
"""

from __future__ import annotations

from chainer_ooc.backends.cuda.allocators.allocator import Memory, NoRoomError
from chainer_ooc.backends.cuda.allocators.calls import Calls
from chainer_ooc.backends.cuda.allocators.pool import PoolAllocator
from chainer_ooc.quantities import format_bytes


class ManagedAllocator(PoolAllocator):
    """See the module."""

    name = 'unified'

    def __init__(self, calls: Calls) -> None:
        super().__init__(calls)
        self._most_bytes = calls.free_bytes()

    def _region(self, nbytes: int) -> Memory:
        free_bytes = self._calls.free_bytes()
        # held_bytes counts this region already
        if nbytes > free_bytes or self.held_bytes() > self._most_bytes:
            raise NoRoomError(f'managed memory of {format_bytes(nbytes)} more would not fit the card '
                              f'(free {format_bytes(free_bytes)} now, {format_bytes(self._most_bytes)} at the start)')
        return self._calls.managed_memory(nbytes)
