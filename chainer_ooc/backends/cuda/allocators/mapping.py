"""Addresses, physical memory and the mappings between them, through cuda-bindings.

One class makes every call of the driver that `virtual` needs, so that its logic runs against a fake of
`cuda.bindings.driver` that checks the driver's rules. Each call of the bindings returns the `CUresult` first; where
it failed, RuntimeError names the call, the `CUresult` and the bytes.

Needs cuda-bindings 12.6 or newer (`cuda.bindings.driver`; the older `from cuda import cuda` is not tried), and a driver
that maps (CUDA 10.2, on devices with `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`). Before 12.9.1 the
bindings keep Python's lock in each call, so that no other thread goes on while one waits.

Left out: sharing with other processes and other devices, and compressible memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chainer_ooc.backends.cuda.allocators.allocator import NoRoomError, UnavailableError
from chainer_ooc.quantities import format_bytes


class MappingCalls:
    """The driver's calls for one device; `driver` is `cuda.bindings.driver`, or what stands in for it.

    Raises:
        UnavailableError: cuda-bindings is missing, or older than 12.6.
    """

    def __init__(self, device_id: int, driver: Any = None) -> None:
        self._driver: Any = driver if driver is not None else _bindings()
        where = self._driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._properties = self._driver.CUmemAllocationProp()
        self._properties.type = self._driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location.type = where
        self._properties.location.id = device_id
        self._access = self._driver.CUmemAccessDesc()
        self._access.location.type = where
        self._access.location.id = device_id
        self._access.flags = self._driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE

    def granularity_bytes(self) -> int:
        """What sizes of physical memory, and of mappings, are multiples of.

        Raises:
            UnavailableError: the device, or its driver, maps no memory.
        """
        flag = self._driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        try:
            return int(self._call(0, self._driver.cuMemGetAllocationGranularity, self._properties, flag))
        except RuntimeError as error:
            raise UnavailableError(
                f"the allocator 'virtual' needs a device whose memory can be mapped: {error}") from None

    def reserve(self, nbytes: int) -> int:
        """Sets addresses aside, with nothing behind them; returns the first."""
        return int(self._call(nbytes, self._driver.cuMemAddressReserve, nbytes, 0, 0, 0))

    def free_addresses(self, address: int, nbytes: int) -> None:
        """Gives back what `reserve` set aside, as a whole."""
        self._call(nbytes, self._driver.cuMemAddressFree, address, nbytes)

    def create(self, nbytes: int) -> Any:
        """Takes physical memory; returns its handle.

        Raises:
            NoRoomError: the device has none.
        """
        return self._call(nbytes, self._driver.cuMemCreate, nbytes, self._properties, 0)

    def release(self, handle: Any, nbytes: int) -> None:
        """Gives physical memory back, which nothing is mapped to."""
        self._call(nbytes, self._driver.cuMemRelease, handle)

    def map(self, address: int, nbytes: int, handle: Any) -> None:
        """Puts physical memory behind addresses; `allow` must follow."""
        self._call(nbytes, self._driver.cuMemMap, address, nbytes, 0, handle, 0)

    def allow(self, address: int, nbytes: int) -> None:
        """Lets the device read and write addresses that are all mapped."""
        self._call(nbytes, self._driver.cuMemSetAccess, address, nbytes, [self._access], 1)

    def unmap(self, address: int, nbytes: int) -> None:
        """Takes the physical memory from behind addresses; the driver does not wait for kernels that use them."""
        self._call(nbytes, self._driver.cuMemUnmap, address, nbytes)

    def new_event(self) -> Any:
        """An event without a time."""
        return self._call(0, self._driver.cuEventCreate, self._driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value)

    def record(self, event: Any, stream: int) -> None:
        """Has an event pass when the stream has done all that it was given so far."""
        self._call(0, self._driver.cuEventRecord, event, stream)

    def wait(self, event: Any) -> None:
        """Blocks until an event has passed."""
        self._call(0, self._driver.cuEventSynchronize, event)

    def synchronize(self) -> None:
        """Blocks until all that this process has given the device is over."""
        self._call(0, self._driver.cuCtxSynchronize)

    def destroy_event(self, event: Any) -> None:
        """Gives an event back."""
        self._call(0, self._driver.cuEventDestroy, event)

    def _call(self, nbytes: int, function: Callable[..., Any], *arguments: Any) -> Any:
        result, *values = function(*arguments)
        if result == self._driver.CUresult.CUDA_SUCCESS:
            return values[0] if values else None
        what = f'{function.__name__} of {format_bytes(nbytes)}' if nbytes else function.__name__
        if result == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise NoRoomError(f'{what} was refused by the device ({result.name})')
        raise RuntimeError(f"{what} failed with {result.name}; set chainer.config.ooc_allocator to 'async' or 'pool'")


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise UnavailableError("the allocator 'virtual' needs cuda-bindings 12.6 or newer; install the cuda-bindings "
                               'of your CUDA version') from error
    return driver
