"""Pinned memory as the system gives it: regions, each cut into blocks, and the thread that pins them beforehand.

A call to pin has a price of its own, beside that of its bytes, and meanwhile the thread that trains would queue no
kernels. So a thread of its own pins what copies will want, a gigabyte at once::

    caller    ask(r1) ask(r2)              lend: waits for r1      cuts r1, copies
    thread            [ pins r1, 1 GB ........................ ] [ pins r2 ................ ]

The thread and its caller share one deque, `Pinning.coming`: the caller appends regions and takes them off, the thread
takes the first one that nobody has begun, and says when it is over. All of that are single calls, so that there is no
lock which an interrupt could leave taken, and each region is known to the caller before it is pinned.

What is pinned outlives its backend (`KEPT`): the next one of the process would pin the same bytes once more.

The driver may have several threads touch a region's pages (see ``pages``).
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from chainer_ooc.backends.base import OWN_THREADS
from chainer_ooc.backends.cuda.driver import Driver, Event
from chainer_ooc.backends.spill.swap_thread import DRIVER_STACK_BYTES, SwapThread
from chainer_ooc.backends.spill.transfer import HostTransfer
from chainer_ooc.errors import SpillError

#: The thread pins so much at once, or one block that is larger.
REGION_BYTES = 1 << 30

#: Blocks begin at multiples of it, as what a device allocates does.
ALIGNMENT_BYTES = 512


class PinnedBlock:
    """A piece of pinned memory.

    Attributes:
        region: the address of its region.
        last: the event after which no copy uses it any more, or None if none has.
        settled: `last` is true. It is not while a copy is put on a stream, and stays so if that failed half-way.
        shown: tokens of the mappings that are alive; what drops one discards its token, in a single call of C.
        was_shown: computations may have used it.
        returned: it was the so-many-th block to be taken back.
    """

    __slots__ = ('address', 'last', 'nbytes', 'region', 'returned', 'settled', 'shown', 'was_shown')

    def __init__(self, address: int, nbytes: int, region: int = 0) -> None:
        self.address = address
        self.nbytes = nbytes
        self.region = region
        self.last: Event = None
        self.settled = True
        self.shown: set[object] = set()
        self.was_shown = False
        self.returned = 0


class Region:
    """What is pinned at once, for blocks of these sizes in bytes.

    Attributes:
        nbytes: its size.
        driver: pins it.
        address: 0 until it is pinned.
        blocks: what it was cut into; empty before.
        begun: the thread has taken it.
        pinning: ends when the thread has pinned it, or has failed.
    """

    __slots__ = ('address', 'begun', 'blocks', 'driver', 'nbytes', 'pinning', 'sizes')

    def __init__(self, driver: Driver, sizes: Sequence[int]) -> None:
        self.driver = driver
        self.sizes = tuple(sizes)
        self.nbytes = sum(map(aligned, self.sizes[:-1])) + self.sizes[-1]
        self.address = 0
        self.blocks: list[PinnedBlock] = []
        self.begun = False
        self.pinning = HostTransfer(self.nbytes)

    def pin(self) -> None:
        """Has the driver pin it; see `Driver.pin` for what it raises."""
        self.address = self.driver.pin(self.nbytes)

    def cut(self) -> None:
        """Makes the blocks, which nothing uses yet."""
        blocks, address = [], self.address
        for nbytes in self.sizes:
            blocks.append(PinnedBlock(address, nbytes, self.address))
            address += aligned(nbytes)
        self.blocks = blocks

    def is_shown(self) -> bool:
        """Whether an array shows some of it."""
        return any(block.shown for block in self.blocks)


class Pinning:
    """The thread, which begins with the first region that is asked for.

    Attributes:
        coming: regions that it will pin, is pinning or has pinned, in this order; the caller takes them off.
        can_run: there can be a thread, as far as is known.
    """

    def __init__(self) -> None:
        self.coming: deque[Region] = deque()
        self.can_run = True
        self._stopping = False
        self._thread = SwapThread(f'{OWN_THREADS}cuda-pin', DRIVER_STACK_BYTES)

    def ask(self, region: Region) -> None:
        """Has the thread pin a region; nothing if there can be no thread."""
        self.coming.append(region)
        self._wake()

    def wait(self, region: Region) -> None:
        """Waits until a region that is coming is pinned, has failed or was taken off, as there can be no thread."""
        self._wake()  # an interrupt may have come before that in `ask`
        if region in self.coming:
            region.pinning.wait()

    def stop(self) -> None:
        """Waits for the region that is being pinned; those after it are not pinned any more. Idempotent."""
        self._stopping = True
        self._thread.stop()

    def _wake(self) -> None:
        try:
            self._thread.submit(self._pin_next)
        except SpillError:
            self.can_run = False
            self.coming.clear()

    def _pin_next(self) -> None:
        """Pins the first region that is not begun, in the thread."""
        region = next((each for each in self.coming.copy() if not each.begun), None)
        if region is None or self._stopping:
            return
        region.begun = True
        with contextlib.suppress(MemoryError, RuntimeError):  # that it has no address tells
            region.driver.use()
            region.pin()
        region.pinning.end(0.0, None)


#: What backends that are closed have pinned, not cut; the next one begins with it.
KEPT: deque[Region] = deque()


def give_back() -> None:
    """Unpins what is kept.

    Raises:
        RuntimeError: CUDA cannot give it back. The rest can be given back by another call.
    """
    while KEPT:
        region = KEPT.pop()
        try:
            region.driver.unpin(region.address)
        except RuntimeError:
            KEPT.append(region)
            raise


def in_regions(driver: Driver, sizes: Iterable[int]) -> Iterator[Region]:
    """Regions for blocks of these sizes, in this order."""
    batch: list[int] = []
    for nbytes in sizes:
        if batch and sum(map(aligned, batch)) + nbytes > REGION_BYTES:
            yield Region(driver, batch)
            batch = []
        batch.append(nbytes)
    if batch:
        yield Region(driver, batch)


def aligned(nbytes: int) -> int:
    """The bytes that a block takes of its region."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES  # `rounded_up` would be a call more for each copy


os.register_at_fork(after_in_child=KEPT.clear)  # it is the parent's
