"""The few calls of CuPy, 13 or 14, that the allocators and the budget need, so that their logic runs without a GPU.

``tests/support/fake_device_memory.py`` stands in where there is no device, and a test holds the names and arguments of
both against the installed CuPy. Nothing else in the folder imports CuPy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from chainer_ooc.backends.cuda.allocators.allocator import DeviceMemory, NoRoomError, UnavailableError
from chainer_ooc.quantities import format_bytes

#: What CuPy calls for memory: takes bytes, returns a `cupy.cuda.MemoryPointer`.
CupyAllocator = Callable[[int], Any]

#: `cupy.cuda.MemoryPool`, which caches.
Pool = Any

#: `cudaErrorMemoryAllocation`, for which CuPy has no name.
_MEMORY_ALLOCATION = 2

#: What `cudaMemPoolAttrReleaseThreshold` is set to, so that a pool gives nothing back by itself: the largest uint64.
_KEEP_ALL_BYTES = 2**64 - 1


class _Thread(threading.local):
    has_context = False


class CupyCalls:
    """See the module. Making it needs a driver and a device.

    Attributes:
        device_id: the device that was current when this was made.
    """

    def __init__(self) -> None:
        import cupy

        self._cuda = cupy.cuda
        self._default_pool = cupy.get_default_memory_pool
        self._memory = cupy.cuda.memory
        self._runtime = cupy.cuda.runtime
        self._thread = _Thread()
        self.device_id: int = self._runtime.getDevice()
        # Managed memory cannot be prefetched where the host may not touch it while the device does.
        self._prefetches = bool(self._runtime.deviceGetAttribute(
            self._runtime.cudaDevAttrConcurrentManagedAccess, self.device_id))

    def pool(self, grow: CupyAllocator) -> Pool:
        """Makes a pool that takes its regions from `grow`, whose errors pass through."""
        return self._cuda.MemoryPool(grow)

    def stream_ordered_pool(self) -> StreamOrderedPool:
        """The driver's pool of the device.

        Raises:
            UnavailableError: the device has none.
        """
        return StreamOrderedPool(self.device_id)

    def device_memory(self, nbytes: int) -> DeviceMemory:
        """`cudaMalloc`; raises NoRoomError when the device refuses."""
        return self._taken('cudaMalloc', nbytes, self._memory.Memory)

    def stream_ordered_memory(self, nbytes: int) -> DeviceMemory:
        """`cudaMallocAsync` on the current stream; raises NoRoomError when the device refuses."""
        return self._taken('cudaMallocAsync', nbytes, lambda nbytes: self._memory.malloc_async(nbytes).mem)

    def managed_memory(self, nbytes: int) -> DeviceMemory:
        """`cudaMallocManaged` and a prefetch to the device; raises NoRoomError when the system refuses."""
        memory: Any = self._taken('cudaMallocManaged', nbytes, self._memory.ManagedMemory)
        if self._prefetches and nbytes:
            memory.prefetch(self.stream())
        return cast(DeviceMemory, memory)

    def pointer(self, address: int, nbytes: int, owner: object) -> Any:
        """A `cupy.cuda.MemoryPointer` to memory that `owner` keeps alive."""
        # With the device given, CuPy asks the driver nothing.
        return self._memory.MemoryPointer(self._memory.UnownedMemory(address, nbytes, owner, self.device_id), 0)

    def is_current(self) -> bool:
        """Whether the calling thread works on the device now."""
        return bool(self._runtime.getDevice() == self.device_id)

    def free_bytes(self) -> int:
        """What the driver would still give, to whichever program comes first."""
        return int(self._runtime.memGetInfo()[0])

    def stream(self) -> Any:
        """CuPy's current stream of this thread, with its address as `ptr`."""
        if not self._thread.has_context:
            self._runtime.memGetInfo()  # the driver's own calls, unlike the runtime's, need a context in the thread
            self._thread.has_context = True
        return self._cuda.get_current_stream()

    def current_allocator(self) -> CupyAllocator:
        """What CuPy asks for memory, in this thread."""
        return cast(CupyAllocator, self._cuda.get_allocator())

    def set_allocator(self, allocator: CupyAllocator) -> None:
        """Has CuPy ask another, in all threads; raises ValueError within `cupy.cuda.using_allocator`."""
        self._cuda.set_allocator(allocator)

    def outside_bytes(self) -> int:
        """What CuPy's default pool holds: arrays that are older than the budget, such as the parameters."""
        return int(self._default_pool().total_bytes())

    def trim_outside(self) -> None:
        """Gives back what CuPy's default pool has cached."""
        self._default_pool().free_all_blocks()

    def _taken(self, what: str, nbytes: int, take: Callable[[int], DeviceMemory]) -> DeviceMemory:
        try:
            return take(nbytes)
        except self._runtime.CUDARuntimeError as error:
            if error.status != _MEMORY_ALLOCATION:
                raise
        # Raised out here: an error that hangs on CuPy's would keep its frames, and what they hold, alive.
        raise NoRoomError(f'{what} of {format_bytes(nbytes)} was refused by the device')


class StreamOrderedPool:
    """The device's current memory pool of the driver, which `CupyCalls.stream_ordered_memory` takes from.

    It is the driver's, shared by all that call `cudaMallocAsync` in this process: its figures count theirs too.
    """

    def __init__(self, device_id: int) -> None:
        import cupy

        self._runtime = runtime = cupy.cuda.runtime
        self._current_stream = cupy.cuda.get_current_stream
        if not runtime.deviceGetAttribute(runtime.cudaDevAttrMemoryPoolsSupported, device_id):
            raise UnavailableError(f'device {device_id} has no stream-ordered memory pools (cudaMallocAsync)')
        self._pool = runtime.deviceGetMemPool(device_id)
        self._kept_bytes: int | None = None

    def used_bytes(self) -> int:
        """What lives."""
        return self._get(self._runtime.cudaMemPoolAttrUsedMemCurrent)

    def held_bytes(self) -> int:
        """What it has taken from the device."""
        return self._get(self._runtime.cudaMemPoolAttrReservedMemCurrent)

    def trim(self, keep_bytes: int) -> None:
        """Waits for the current stream, then gives back all but `keep_bytes` or what lives."""
        self._current_stream().synchronize()  # what was freed in the stream's order is free only when it got there
        self._runtime.memPoolTrimTo(self._pool, keep_bytes)

    def keep_freed(self) -> None:
        """Has the pool give back nothing by itself."""
        if self._kept_bytes is None:
            self._kept_bytes = self._get(self._runtime.cudaMemPoolAttrReleaseThreshold)
            self._set_kept(_KEEP_ALL_BYTES)

    def restore(self) -> None:
        """Has the pool keep as much free memory as before this program changed that."""
        if self._kept_bytes is not None:
            self._set_kept(self._kept_bytes)
            self._kept_bytes = None

    def _get(self, attribute: int) -> int:
        return int(self._runtime.memPoolGetAttribute(self._pool, attribute))

    def _set_kept(self, nbytes: int) -> None:
        self._runtime.memPoolSetAttribute(self._pool, self._runtime.cudaMemPoolAttrReleaseThreshold, nbytes)
