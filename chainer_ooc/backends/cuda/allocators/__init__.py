"""The device's allocators: `pool`, `virtual`, `async` and `unified`, each behind `allocator.Allocator`.

    allocator.py       what an allocator is, and how it refuses
    pool.py            'pool', CuPy's best fit, and 'unified' behind it
    virtual.py         'virtual': chunks that are moved behind the addresses that lack them
    address_space.py   which addresses are free, and which are mapped
    chunks.py          physical memory in pieces that are all alike
    timestamps.py      when the last use of what is idle is over
    async_pool.py      'async', the driver's own pool
    ledger.py          which blocks live, whenever and wherever they end; what computations allocate
    calls.py           what is asked of CuPy
    mapping.py         what is asked of the driver for 'virtual'
"""

from __future__ import annotations

from collections.abc import Callable

from chainer_ooc.backends.cuda.allocators.allocator import Allocator
from chainer_ooc.backends.cuda.allocators.async_pool import AsyncAllocator
from chainer_ooc.backends.cuda.allocators.calls import CupyCalls
from chainer_ooc.backends.cuda.allocators.mapping import MappingCalls
from chainer_ooc.backends.cuda.allocators.pool import ManagedAllocator, PoolAllocator
from chainer_ooc.backends.cuda.allocators.virtual import VirtualAllocator

#: By their names in `chainer.config.ooc_allocator`.
ALLOCATORS: dict[str, Callable[[CupyCalls], Allocator]] = {
    'pool': PoolAllocator,
    'virtual': lambda calls: VirtualAllocator(calls, MappingCalls(calls.device_id)),
    'async': AsyncAllocator,
    'unified': ManagedAllocator,
}
