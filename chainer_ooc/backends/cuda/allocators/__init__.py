"""The device's allocators: `pool`, `virtual`, `async` and `unified`, each behind `allocator.Allocator`.

`calls` and `mapping` are the only ways to the device; `ledger` counts what may be freed at any moment.
"""

from __future__ import annotations

from collections.abc import Callable

from chainer_ooc.backends.cuda.allocators.allocator import Allocator
from chainer_ooc.backends.cuda.allocators.async_pool import AsyncAllocator
from chainer_ooc.backends.cuda.allocators.calls import Calls
from chainer_ooc.backends.cuda.allocators.managed import ManagedAllocator
from chainer_ooc.backends.cuda.allocators.mapping import Mapping
from chainer_ooc.backends.cuda.allocators.pool import PoolAllocator
from chainer_ooc.backends.cuda.allocators.virtual import VirtualAllocator


def _virtual(calls: Calls) -> Allocator:
    return VirtualAllocator(calls, Mapping(calls.device_id))


#: By their names in `chainer.config.ooc_allocator`.
ALLOCATORS: dict[str, Callable[[Calls], Allocator]] = {
    'pool': PoolAllocator,
    'virtual': _virtual,
    'async': AsyncAllocator,
    'unified': ManagedAllocator,
}
