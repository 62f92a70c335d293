"""What every allocator of the device can do, so that one budget can stand before each of them.

An allocator gives each block an `Owner`: an address and a size, alive as long as the object is. Two sums differ by what
it keeps for the next request and by what it cannot give back: *used* is what lives, *held* is what was taken from the
driver. The limit is on *held*, because that is what another program, or the driver, sees::

    limit   |--------------------------------------------|
    held    |[####..][######      ][     ]|    .: rounding    blank: cached
    used       ####    ######

Left out: making room when the limit is reached (`budget`), and several devices: memory and figures are the current
device's.
"""

from __future__ import annotations

import abc
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from chainer_ooc.backends.cuda.allocators.ledger import Ledger, Owner
from chainer_ooc.errors import ReentryError

#: Sizes are rounded up to a multiple, as CuPy does.
UNIT_BYTES = 512

#: A function has some five large arrays at once, and each of them has two ends.
ENDS = 10


class DeviceMemory(Protocol):
    """Memory that lives as long as this object, such as CuPy's `BaseMemory`; `size` is rounded by its pool."""

    ptr: int
    size: int


class NoRoomError(MemoryError):
    """The device, or the limit, refuses. `AllocatorBudget` catches it and makes room, or raises with the next step.

    Attributes:
        missing_bytes: how much more would have to be free under the limit; 0 where nobody knows, as when a device
            refuses.
    """

    def __init__(self, message: str, missing_bytes: int = 0) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes


class UnavailableError(RuntimeError):
    """The device, or what is installed, lacks what an allocator needs; the message names it."""


def once(lock: threading.RLock) -> threading.RLock:
    """The lock of an allocator's books, to be taken by a thread that does not have it.

    A signal handler, or a finalizer, may ask for memory in the midst of a request: it would be given what that request
    is about to take.

    Raises:
        ReentryError: the thread has the lock.
    """
    if lock._is_owned():  # type: ignore[attr-defined]
        raise ReentryError('a signal handler or a finalizer asks for GPU memory in the middle of a request for some, '
                           'where none can be given; have it set a flag, and act on it between two functions')
    return lock


class Allocator(abc.ABC):
    """Takes memory from the driver and gives it in pieces.

    Args:
        device_id: of the device whose memory it is.

    Attributes:
        name: as in `chainer.config.ooc_allocator`.
        limit_bytes: `held_bytes` never passes it from now on; None: what the device has. Lowering it frees nothing by
            itself.
        live: the blocks that were given and live; its lock is that of all books here.
        waiting: goes around what takes long in `malloc`.
    """

    name: str
    limit_bytes: int | None = None

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self.live = Ledger()
        self.waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def malloc(self, nbytes: int) -> Owner:
        """Gives memory of at least `nbytes`, for work on CuPy's current stream.

        Raises:
            MemoryError: there is no room, not even when all that is cached is given back first.
            ReentryError: see `once`.

        If this fails: all live memory is where it was.
        """
        live = self.live
        if live.is_amid:  # once for each array: where nothing has begun, nobody is in its midst
            once(live.lock)
        with live.lock:
            if live.is_amid:
                self._recount()
            live.is_amid = True
            try:
                owner = self._malloc(nbytes)
            except NoRoomError:
                live.is_amid = False
                raise
            live.is_amid = False
            return owner

    def used_bytes(self) -> int:
        """What lives, rounded as the allocator rounds."""
        return self.live.total()

    @abc.abstractmethod
    def held_bytes(self) -> int:
        """What was taken from the driver and not given back."""

    def lost_bytes(self, limit_bytes: int) -> int:
        """What a limit has to have beside the arrays of one function, for which nothing can be evicted.

        At each end of a block there is a piece of what was taken from the driver that no other block has whole.
        """
        return 0

    @abc.abstractmethod
    def trim(self, keep_bytes: int) -> None:
        """Gives cached memory back to the driver if more than `keep_bytes` of it is cached; may wait for the device.

        An allocator that cannot give back a part gives back all that it can.
        """

    def open(self) -> None:  # noqa: B027 - nothing to do is a right answer
        """Called before it is used, also after `close`."""

    def close(self) -> None:
        """Gives all cached memory back. What lives stays; another `close` gives it back once it is freed."""
        self.trim(0)

    @abc.abstractmethod
    def _malloc(self, nbytes: int) -> Owner:
        """As `malloc`, which has the lock."""

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Goes around what changes the books; puts right before what an interrupt, or a failure, has left half done.

        Raises:
            ReentryError: see `once`.
        """
        with once(self.live.lock):
            if self.live.is_amid:
                self._recount()
            self.live.is_amid = True
            yield
            self.live.is_amid = False

    def _recount(self) -> None:
        """All that is counted, from what is known to live."""
        self.live.recount()

    def _given(self, memory: DeviceMemory, nbytes: int) -> Owner:
        """Owns memory of CuPy's from now on."""
        owner = Owner(memory.ptr, nbytes, self.device_id, memory.size, memory)
        self.live.begin(owner)
        return owner
