"""The few calls of CuPy that the allocators and the budget need, so that all their logic runs without a GPU.

`CupyCalls` in `cupy_calls` makes them; `tests/support/fake_device_memory.py` stands in where there is no device, and a
test holds the names and arguments of both against the installed CuPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from chainer_ooc.backends.cuda.allocators.allocator import DeviceMemory

#: What CuPy calls for memory: takes bytes, returns a `cupy.cuda.MemoryPointer`.
CupyAllocator = Callable[[int], Any]


class Pool(Protocol):
    """A caching pool that takes its regions from a `CupyAllocator`: `cupy.cuda.MemoryPool`."""

    def malloc(self, size: int) -> Any:
        """A pointer whose `mem` is the memory; what the `CupyAllocator` raises passes through."""

    def used_bytes(self) -> int:
        """What lives."""

    def free_bytes(self) -> int:
        """What is cached."""

    def total_bytes(self) -> int:
        """Both."""

    def free_all_blocks(self) -> None:
        """Drops each region that is free as a whole."""


class StreamOrderedPool(Protocol):
    """The pool of the driver that `Calls.stream_ordered_memory` takes from."""

    def used_bytes(self) -> int:
        """What lives."""

    def held_bytes(self) -> int:
        """What it has taken from the device."""

    def trim(self, keep_bytes: int) -> None:
        """Waits for the current stream, then gives back all but `keep_bytes` or what lives."""

    def keep_freed(self) -> None:
        """Has the pool give back nothing by itself."""

    def restore(self) -> None:
        """Has the pool keep as much free memory as before this program changed that."""


class Calls(Protocol):
    """See the module.

    Attributes:
        device_id: the device that was current when this was made.
    """

    device_id: int

    def pool(self, grow: CupyAllocator) -> Pool:
        """Makes a caching pool."""

    def stream_ordered_pool(self) -> StreamOrderedPool:
        """The driver's pool of the device.

        Raises:
            NoPoolError: the device has none.
        """

    def device_memory(self, nbytes: int) -> DeviceMemory:
        """`cudaMalloc`; raises NoRoomError when the device refuses."""

    def stream_ordered_memory(self, nbytes: int) -> DeviceMemory:
        """`cudaMallocAsync` on the current stream; raises NoRoomError when the device refuses."""

    def managed_memory(self, nbytes: int) -> DeviceMemory:
        """`cudaMallocManaged` and a prefetch to the device; raises NoRoomError when the system refuses."""

    def pointer(self, address: int, nbytes: int, owner: object) -> Any:
        """A `cupy.cuda.MemoryPointer` to memory that `owner` keeps alive."""

    def free_bytes(self) -> int:
        """What the driver would still give, to whichever program comes first."""

    def stream(self) -> Any:
        """CuPy's current stream of this thread, with its address as `ptr`."""

    def current_allocator(self) -> CupyAllocator:
        """What CuPy asks for memory, in this thread."""

    def set_allocator(self, allocator: CupyAllocator) -> None:
        """Has CuPy ask another, in all threads; raises ValueError within `cupy.cuda.using_allocator`."""

    def outside_bytes(self) -> int:
        """What CuPy's default pool holds: arrays that are older than the budget, such as the parameters."""

    def trim_outside(self) -> None:
        """Gives back what CuPy's default pool has cached."""
