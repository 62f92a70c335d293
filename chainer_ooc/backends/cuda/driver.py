"""What the CUDA backend asks of CUDA, and nothing more.

The rest of the backend is tested without a GPU, with a stand-in for these calls whose copies end as late and in any
order that CUDA allows (``tests/support/fake_driver.py``). `cupy_driver`, which makes them, is a line or two for each,
and a test holds it to the wheels' signatures.

Streams and events are opaque here. An event is always made and recorded in one step: CUDA says of one that was never
recorded that it has passed.

Errors: a call that CUDA refuses raises RuntimeError, whose text has CUDA's name for it; memory that cannot be had
raises MemoryError, but for `pin`, which may raise either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.cuda.budget import AllocatorBudget

Stream = Any
Event = Any


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
    driver_version: str
    runtime_version: str


class Driver(Protocol):
    """One device.

    Attributes:
        host: what pins for it; what was pinned by one driver serves all that have the same.
    """

    host: Any

    def use(self) -> None:
        """Has the calling thread work on this device; each new thread starts with the first one."""

    def facts(self) -> DeviceFacts:
        """Describes the device."""

    def free_bytes(self) -> int:
        """Bytes of the device's memory that no program has taken."""

    def preparations(self) -> int:
        """How many kernels and plans were made or loaded in this process, see ``preparations``."""

    def budget(self, allocator: str) -> AllocatorBudget:
        """Makes the allocator of the name, see `chainer.config.ooc_allocator`, with a budget around it."""

    def empty(self, nbytes: int) -> ByteArray:
        """New near memory: uint8, one-dimensional, that owns its memory.

        Raises:
            MemoryError: there is none.
        """

    def manages(self, root: Any) -> bool:
        """Whether a block of memory, as `arrays.root_of` gives it, is this device's and came from its budget."""

    def address(self, array: ByteArray) -> int:
        """Where a contiguous array lies on the device."""

    def compute(self) -> Stream:
        """The stream that the calling thread computes on now."""

    def new_stream(self) -> Stream:
        """Makes a stream that runs beside all others."""

    def finish(self, stream: Stream) -> None:
        """Blocks until all that was put on the stream has run."""

    def record(self, stream: Stream, timed: bool = False) -> Event:
        """Makes an event that passes when all that was put on the stream so far has run."""

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Has what is put on the stream from now on wait for an event; does not block."""

    def passed(self, event: Event) -> bool:
        """Whether an event has passed; does not block."""

    def synchronize(self, event: Event) -> None:
        """Blocks until an event has passed."""

    def seconds_between(self, start: Event, end: Event) -> float:
        """Seconds between two timed events that have passed."""

    def copy_out(self, host_address: int, device_address: int, nbytes: int, stream: Stream) -> None:
        """Puts a copy from the device to the host on a stream."""

    def copy_in(self, device_address: int, host_address: int, nbytes: int, stream: Stream) -> None:
        """Puts a copy from the host to the device on a stream."""

    def pin(self, nbytes: int) -> int:
        """Returns the address of new host memory that the device reads and writes by itself, of exactly that size.

        Raises:
            RuntimeError: the system gives no more of it; or MemoryError.
        """

    def show(self, address: int, nbytes: int, gone: Callable[[], None]) -> ByteArray:
        """Shows what `pin` gave, 1 byte or more, as an array of the device, which reads and writes it over the link.

        `gone` is called once when nothing refers to the memory through the array any more; from any thread, also within
        the garbage collector.
        """

    def unpin(self, address: int) -> None:
        """Gives back what `pin` gave; no copy may be using it."""
