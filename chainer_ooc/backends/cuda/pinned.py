"""Host memory that the device copies to and from by itself: pinned once, of exact sizes, used again and again.

Pinning costs milliseconds for each ten megabytes, and a training iteration repeats its sizes; so a block that a copy
leaves is the next one's of the same size. When the limit is reached, unused blocks are unpinned first.

    lent  -- take_back -->  unused  -- lend(same size) -->  lent
                              |
                              +--- the limit is reached, oldest first ---> the system

A block may be lent again while the copy that used it last still runs: `PinnedBlock.last` is that copy's event, and the
stream of the next copy waits for it. Only unpinning has the host wait.

Pinned pages can neither be swapped nor dropped, so that a machine whose memory is all pinned ends processes instead of
slowing down. Without a limit given it is therefore a share of what the machine has for us; the rest is for batches, for
the page cache of the spill file, and for other programs. The machine is asked again when the limit is in the way, at
most once a second: other programs may have ended, and a virtual machine may be given memory as it uses it.

A refusal of the system is no limit for good either. For a second nothing is asked for, then for two, four, eight: a
refusal costs time, and most of what causes one passes::

    asked     refused . 1 s . refused . . 2 s . . granted
    limit     what is pinned . . . . . . . . . .  what it was

Only the caller's thread uses an instance.

Source: a peer reports 49.6 % overhead with pinning at each copy, and 22 % without. Left out: blocks that fit only
nearly, which would hold memory that is in no account.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import time
from collections.abc import Callable, Iterable

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.cuda.driver import Driver, Event
from chainer_ooc.backends.host import limits
from chainer_ooc.quantities import format_bytes

#: Of what is pinned and the host's free memory together; the limit where none is given.
SHARE_OF_FREE = 0.75

#: How long nothing is asked of the system after it had no more: at first, and at most.
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 64.0

_LOG = logging.getLogger('chainer_ooc')


class PinnedBlock:
    """A piece of pinned memory.

    Attributes:
        last: the event after which no copy uses it any more, or None if none has.
        settled: `last` is true. It is not while a copy is put on a stream, and stays so if that failed half-way.
        shown: tokens of the mappings that are alive; what drops one discards its token, in a single call of C.
        was_shown: computations may have used it.
    """

    __slots__ = ('address', 'last', 'nbytes', 'settled', 'shown', 'was_shown')

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.last: Event = None
        self.settled = True
        self.shown: set[object] = set()
        self.was_shown = False


class PinnedMemory:
    """All pinned blocks that hold far copies.

    Args:
        driver: pins them.
        limit_bytes: of all of them; None for a share of the machine's free memory.
        now: a monotonic clock.

    Attributes:
        limit_bytes: in force; lower than what was asked for while the system refuses more.
        refused: the system refused when it was asked last.
        refusals: how often it has.
    """

    def __init__(self, driver: Driver, limit_bytes: int | None, now: Callable[[], float] = time.monotonic) -> None:
        self._driver = driver
        self._given_bytes = limit_bytes
        self._now = now
        self.limit_bytes = int(limits.free_bytes() * SHARE_OF_FREE) if limit_bytes is None else limit_bytes
        self.refused = False
        self.refusals = 0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._ask_at = now() + FIRST_PAUSE_SECONDS
        self._addresses: list[int] = []  # of all that is pinned; pinned and noted by one line, so that none gets lost
        self._blocks: dict[int, PinnedBlock] = {}
        self._unused: list[PinnedBlock] = []  # the one that was taken back first is the first
        self._outliving: dict[int, PinnedBlock] = {}  # those whose mappings outlive this

    def held_bytes(self) -> int:
        """Bytes that are pinned."""
        return sum(block.nbytes for block in self._blocks.values())

    def free_bytes(self) -> int:
        """Bytes that can be lent beside what is lent now."""
        self._ask_again()
        return self._free_bytes()

    def lend(self, nbytes: int) -> PinnedBlock | None:
        """Returns a block of exactly `nbytes`, or None if there is no room for it or the system refuses.

        Raises:
            RuntimeError: CUDA cannot give back another block.
        """
        if not nbytes:
            return PinnedBlock(0, 0)
        for number, block in enumerate(self._unused):
            if block.nbytes == nbytes and block.settled:
                return self._unused.pop(number)
        if self._make_room(nbytes) or (self._ask_again() and self._make_room(nbytes)):
            return self._pin(nbytes)
        return None

    def take_back(self, block: PinnedBlock) -> None:
        """Makes a lent block another copy's."""
        if block.nbytes:
            self._unused.append(block)

    def show(self, block: PinnedBlock) -> ByteArray:
        """Shows a lent block as an array of the device. The block may be taken back once `shown` is empty.

        If this is closed before, the block stays pinned until the array's end.
        """
        token = object()
        block.shown.add(token)
        block.was_shown = True
        return self._driver.show(block.address, block.nbytes, functools.partial(self._hide, block, token))

    def trim(self) -> None:
        """Unpins what is not lent.

        Raises:
            RuntimeError: CUDA cannot give back a block.
        """
        for block in [block for block in self._unused if block.settled]:
            self._unpin(block)

    def close(self) -> None:
        """Unpins everything; no copy may run any more.

        Raises:
            RuntimeError: CUDA cannot give back a block; the others are given back.
        """
        failure = None
        try:
            self._finish_reading(self._blocks.values())
        except RuntimeError as error:
            failure = error
        self._unused.clear()
        for block in [block for block in self._blocks.values() if block.shown]:
            self._leave(block)
        self._blocks.clear()
        while self._addresses:
            try:
                self._driver.unpin(self._addresses.pop())
            except RuntimeError as error:
                failure = error
        if failure is not None:
            raise failure

    def _leave(self, block: PinnedBlock) -> None:
        """Leaves a block to the last of its mappings, which may go at any moment."""
        self._outliving[block.address] = block
        self._addresses.remove(block.address)
        if not block.shown:
            self._unpin_left(block)

    def _hide(self, block: PinnedBlock, token: object) -> None:
        """Called when a mapping is gone, by the garbage collector at any instruction."""
        block.shown.discard(token)
        if not block.shown:
            self._unpin_left(block)

    def _unpin_left(self, block: PinnedBlock) -> None:
        if self._outliving.pop(block.address, None) is not None:  # only one gets it
            with contextlib.suppress(Exception):  # at the end of the process the driver may be gone already
                self._driver.unpin(block.address)

    def _make_room(self, nbytes: int) -> bool:
        """Unpins unused blocks, the oldest first, as far as needed; False, and nothing changes, if it does not help."""
        if nbytes > self._free_bytes():
            return False
        for block in [block for block in self._unused if block.settled]:
            if self.held_bytes() + nbytes <= self.limit_bytes:
                break
            self._unpin(block)
        return True

    def _pin(self, nbytes: int) -> PinnedBlock | None:
        block = self._pinned(nbytes)
        if block is None:
            self.trim()
            block = self._pinned(nbytes)
        if block is None:
            self._refused(nbytes)
        else:
            self.refused, self._pause_seconds = False, FIRST_PAUSE_SECONDS
        return block

    def _free_bytes(self) -> int:
        lent_bytes = self.held_bytes() - sum(block.nbytes for block in self._unused if block.settled)
        return max(0, self.limit_bytes - lent_bytes)

    def _refused(self, nbytes: int) -> None:
        """Asks for no more for a while: each refusal takes time."""
        self.refused, self.refusals = True, self.refusals + 1
        self.limit_bytes = self.held_bytes()
        _LOG.warning('the system refused to pin %s beside the %s that are pinned; it is asked again in %g s',
                     format_bytes(nbytes), format_bytes(self.limit_bytes), self._pause_seconds)
        self._ask_at = self._now() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)

    def _ask_again(self) -> bool:
        """Sets the limit anew once that may help; whether it has grown."""
        if (self._given_bytes is not None and not self.refused) or self._now() < self._ask_at:
            return False
        before_bytes, held_bytes = self.limit_bytes, self.held_bytes()
        self.limit_bytes = self._given_bytes if self._given_bytes is not None else max(
            held_bytes, int((held_bytes + limits.free_bytes()) * SHARE_OF_FREE))
        self._ask_at = self._now() + FIRST_PAUSE_SECONDS
        return self.limit_bytes > before_bytes

    def _pinned(self, nbytes: int) -> PinnedBlock | None:
        try:
            self._addresses.append(self._driver.pin(nbytes))
        except (MemoryError, RuntimeError):
            return None
        block = PinnedBlock(self._addresses[-1], nbytes)
        self._blocks[block.address] = block
        return block

    def _finish_reading(self, blocks: Iterable[PinnedBlock]) -> None:
        """Waits for the computations that may use mappings, if there were any."""
        if any(block.was_shown for block in blocks):
            self._driver.synchronize(self._driver.record(self._driver.compute()))

    def _unpin(self, block: PinnedBlock) -> None:
        self._finish_reading([block])
        if block.last is not None:
            self._driver.synchronize(block.last)
        self._unused.remove(block)
        del self._blocks[block.address]
        self._driver.unpin(self._addresses.pop(self._addresses.index(block.address)))


def host_view(address: int, nbytes: int) -> memoryview:
    """The bytes at an address of the host, as files take them; the caller keeps the memory alive."""
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast('B')
