"""CUDA's calls through CuPy, 13 and 14.

Pinned memory comes from `hostAlloc` itself, since CuPy's pool of it rounds up to powers of two.

Whether an event has passed is asked of `eventQuery`, and not of `Event.done`: that one takes an error of the device for
"not yet", for ever. And CUDA leaves "not ready" behind as the thread's last error, where the next kernel of CUB (CuPy's
sums and sorts) would find it and take it for its own. CuPy's `check_status` clears it and raises what it was.

Left out: several devices. A backend works on the device that was current when it was made.

Source: that a query leaves its result behind, from PyTorch's caching allocator, which clears it as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.cuda import arrays, preparations
from chainer_ooc.backends.cuda.budget import AllocatorBudget, budget_of
from chainer_ooc.backends.cuda.driver import DeviceFacts, Event, Stream
from chainer_ooc.backends.cuda.owner import Guest, Owner

_SUCCESS = 0
_NOT_READY = 600


class CupyDriver:
    """The device that is current where this is made.

    Raises:
        RuntimeError: CUDA finds no device or no driver.
    """

    def __init__(self) -> None:
        self._runtime = self.host = cupy.cuda.runtime
        self._number: int = self._runtime.getDevice()
        preparations.watch_compiler(cupy.cuda.compiler)

    def use(self) -> None:
        self._runtime.setDevice(self._number)

    def facts(self) -> DeviceFacts:
        properties = self._runtime.getDeviceProperties(self._number)
        name = properties['name']
        return DeviceFacts(
            name=name.decode() if isinstance(name, bytes) else name,
            number=self._number,
            total_bytes=int(properties['totalGlobalMem']),
            compute_capability=f'{properties["major"]}.{properties["minor"]}',
            driver_version=version(self._runtime.driverGetVersion()),
            runtime_version=version(self._runtime.runtimeGetVersion()))

    def free_bytes(self) -> int:
        free_bytes, _ = self._runtime.memGetInfo()
        return int(free_bytes)

    def preparations(self) -> int:
        return preparations.total()

    def budget(self, allocator: str) -> AllocatorBudget:
        return budget_of(allocator)

    def empty(self, nbytes: int) -> ByteArray:
        array: ByteArray = cupy.empty((nbytes,), np.uint8)
        return array

    def manages(self, root: Any) -> bool:
        return isinstance(root, Owner) and root.device_id == self._number

    def address(self, array: ByteArray) -> int:
        device_array: Any = array
        return int(device_array.data.ptr)

    def compute(self) -> Stream:
        return cupy.cuda.get_current_stream()

    def new_stream(self) -> Stream:
        return cupy.cuda.Stream(non_blocking=True)

    def finish(self, stream: Stream) -> None:
        stream.synchronize()

    def record(self, stream: Stream, timed: bool = False) -> Event:
        # block: a thread that waits sleeps, and leaves the core to threads that load data.
        event = cupy.cuda.Event(block=True, disable_timing=not timed)
        stream.record(event)
        return event

    def wait_event(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def passed(self, event: Event) -> bool:
        status = self._runtime.eventQuery(event.ptr)
        if status == _SUCCESS:
            return True
        try:
            self._runtime.check_status(status)
        except self._runtime.CUDARuntimeError as error:
            if error.status != _NOT_READY:
                raise
        return False

    def synchronize(self, event: Event) -> None:
        event.synchronize()

    def seconds_between(self, start: Event, end: Event) -> float:
        return float(cupy.cuda.get_elapsed_time(start, end)) / 1000

    def copy_out(self, host_address: int, device_address: int, nbytes: int, stream: Stream) -> None:
        self._runtime.memcpyAsync(
            host_address, device_address, nbytes, self._runtime.memcpyDeviceToHost, stream.ptr)

    def copy_in(self, device_address: int, host_address: int, nbytes: int, stream: Stream) -> None:
        self._runtime.memcpyAsync(
            device_address, host_address, nbytes, self._runtime.memcpyHostToDevice, stream.ptr)

    def pin(self, nbytes: int) -> int:
        return int(self._runtime.hostAlloc(nbytes, self._runtime.hostAllocPortable))

    def show(self, address: int, nbytes: int, gone: Callable[[], None]) -> ByteArray:
        # With unified addressing, which every 64-bit CUDA has, the device knows pinned memory by its host address.
        return arrays.flat_bytes(Guest(address, nbytes, self._number, gone))

    def unpin(self, address: int) -> None:
        self._runtime.freeHost(address)


def version(number: int) -> str:
    """``'13.0'`` of CUDA's 13000."""
    return f'{number // 1000}.{number % 1000 // 10}'
