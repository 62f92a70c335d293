"""What the CUDA backend asks of CUDA, and nothing more, through CuPy 13 or 14.

Each call is a line or two, since the rest of the backend is tested without a GPU: with a stand-in for this class whose
copies end as late and in any order that CUDA allows (``tests/support/fake_driver.py``). A test holds it to the wheels'
signatures.

Streams and events are opaque here. An event is always made and recorded in one step: CUDA says of one that was never
recorded that it has passed.

Pinned memory comes from `pages`, since CuPy's pool of it rounds up to powers of two and pins by one thread.

Whether an event has passed is asked of `eventQuery`, and not of `Event.done`: that one takes an error of the device for
"not yet", for ever. And CUDA leaves "not ready" behind as the thread's last error, where the next kernel of CUB (CuPy's
sums and sorts) would find it and take it for its own. CuPy's `check_status` clears it and raises what it was.

Errors: a call that CUDA refuses raises RuntimeError, whose text has CUDA's name for it; memory that cannot be had
raises MemoryError, but for `pin`, which may raise either.

Left out: several devices. A backend works on the device that was current when it was made.

Source: that a query leaves its result behind, from PyTorch's caching allocator, which clears it as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.cuda import arrays, pages, preparations
from chainer_ooc.backends.cuda.allocators.ledger import Guest, Owner
from chainer_ooc.backends.cuda.budget import AllocatorBudget, budget_of
from chainer_ooc.backends.cuda.presence import cuda_version, gpu_of

Stream = Any
Event = Any

_SUCCESS = 0
_NOT_READY = 600


@dataclass(frozen=True)
class DeviceFacts:
    """What a GPU is called, and what it runs under.

    Attributes:
        name: such as ``'NVIDIA H100 80GB HBM3'``.
        number: by which this process knows it, from 0.
        total_bytes: its memory.
        compute_capability: such as ``'9.0'``.
        driver_version: the newest CUDA that the driver supports, such as ``'13.0'``.
        runtime_version: the CUDA that CuPy was built for, such as ``'13.0'``.
    """

    name: str
    number: int
    total_bytes: int
    compute_capability: str
    driver_version: str | None
    runtime_version: str | None


class StreamOrder:
    """The streams that a program computes on by turns: each comes after all that the one before it was given.

    What leaves or enters near memory is ordered with the stream that is current then. What it was computed on, or will
    be, may be another, and the program cannot know when copies are made. So branches that were put on streams of their
    own run one after the other.
    """

    __slots__ = ('_last',)

    def __init__(self) -> None:
        self._last: Stream = None

    def followed(self, driver: Any, stream: Stream) -> Stream:
        """Returns the stream that is current now, ordered after the one of the last call."""
        last = self._last
        if stream is not last and stream != last:
            if last is not None:
                driver.wait_event(stream, driver.record(last))
            self._last = stream
        return stream


class Driver:
    """The device that is current where this is made.

    Attributes:
        host: what pins for it; what was pinned by one driver serves all that have the same.

    Raises:
        RuntimeError: CUDA finds no device or no driver.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy: Any = cupy
        self._runtime = cupy.cuda.runtime
        self.host = pages.of(self._runtime)
        self._number: int = self._runtime.getDevice()
        self._order = StreamOrder()
        preparations.watch_compiler(cupy.cuda.compiler)

    def use(self) -> None:
        """Has the calling thread work on this device; each new thread starts with the first one."""
        self._runtime.setDevice(self._number)

    @contextlib.contextmanager
    def on_this_device(self) -> Iterator[None]:
        """Has the calling thread work on this device for a while."""
        before = self._runtime.getDevice()
        self.use()
        try:
            yield
        finally:
            self._runtime.setDevice(before)

    def facts(self) -> DeviceFacts:
        """Describes the device."""
        return DeviceFacts(
            **gpu_of(self._runtime.getDeviceProperties(self._number)),
            number=self._number,
            driver_version=cuda_version(self._runtime.driverGetVersion()),
            runtime_version=cuda_version(self._runtime.runtimeGetVersion()))

    def free_bytes(self) -> int:
        """Bytes of the device's memory that no program has taken."""
        free_bytes, _ = self._runtime.memGetInfo()
        return int(free_bytes)

    def budget(self, allocator: str) -> AllocatorBudget:
        """Makes the allocator of the name, see `chainer.config.ooc_allocator`, with a budget around it."""
        return budget_of(allocator)

    def empty(self, nbytes: int) -> ByteArray:
        """New near memory: uint8, one-dimensional, that owns its memory.

        Raises:
            MemoryError: there is none.
        """
        array: ByteArray = self._cupy.empty((nbytes,), 'u1')
        return array

    def manages(self, root: Any) -> bool:
        """Whether a block of memory, as `arrays.root_of` gives it, is this device's and came from its budget."""
        return isinstance(root, Owner) and root.device_id == self._number

    def address(self, array: ByteArray) -> int:
        """Where a contiguous array lies on the device."""
        device_array: Any = array
        return int(device_array.data.ptr)

    def compute(self) -> Stream:
        """The stream that the calling thread computes on now, after what it computed on before."""
        return self._order.followed(self, self._cupy.cuda.get_current_stream())

    def new_stream(self) -> Stream:
        """Makes a stream that runs beside all others."""
        return self._cupy.cuda.Stream(non_blocking=True)

    def finish(self, stream: Stream) -> None:
        """Blocks until all that was put on the stream has run."""
        stream.synchronize()

    def finish_all(self) -> None:
        """Blocks until all that the device was given, on any stream and by any thread, has run."""
        self._cupy.cuda.Device(self._number).synchronize()

    def record(self, stream: Stream, timed: bool = False) -> Event:
        """Makes an event that passes when all that was put on the stream so far has run."""
        # block: a thread that waits sleeps, and leaves the core to threads that load data.
        event = self._cupy.cuda.Event(block=True, disable_timing=not timed)
        stream.record(event)
        return event

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Has what is put on the stream from now on wait for an event; does not block."""
        stream.wait_event(event)

    def passed(self, event: Event) -> bool:
        """Whether an event has passed; does not block."""
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
        """Blocks until an event has passed."""
        event.synchronize()

    def seconds_between(self, start: Event, end: Event) -> float:
        """Seconds between two timed events that have passed."""
        return float(self._cupy.cuda.get_elapsed_time(start, end)) / 1000

    def copy_out(self, host_address: int, device_address: int, nbytes: int, stream: Stream) -> None:
        """Puts a copy from the device to the host on a stream."""
        self._runtime.memcpyAsync(
            host_address, device_address, nbytes, self._runtime.memcpyDeviceToHost, stream.ptr)

    def copy_in(self, device_address: int, host_address: int, nbytes: int, stream: Stream) -> None:
        """Puts a copy from the host to the device on a stream."""
        self._runtime.memcpyAsync(
            device_address, host_address, nbytes, self._runtime.memcpyHostToDevice, stream.ptr)

    def pin(self, nbytes: int) -> int:
        """Returns the address of new host memory that the device reads and writes by itself; see `HostPages.pin`.

        Raises:
            RuntimeError: the system gives no more of it; or MemoryError.
        """
        return self.host.pin(nbytes)

    def show(self, address: int, nbytes: int, gone: Callable[[], None]) -> ByteArray:
        """Shows what `pin` gave, 1 byte or more, as an array of the device, which reads and writes it over the link.

        `gone` is called once when nothing refers to the memory through the array any more; from any thread, also within
        the garbage collector.
        """
        # With unified addressing, which every 64-bit CUDA has, the device knows memory of `hostAlloc` by its host
        # address; `pages` registers memory of its own where the same holds for that.
        return arrays.flat_bytes(Guest(address, nbytes, self._number, gone))

    def unpin(self, address: int) -> None:
        """Gives back what `pin` gave; no copy may be using it.

        Raises:
            RuntimeError: CUDA does not let go of it.
        """
        self.host.unpin(address)
