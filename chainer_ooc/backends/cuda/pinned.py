"""Host memory that the device copies to and from by itself: pinned once, of exact sizes, used again and again.

Pinning costs half a millisecond to several for each ten megabytes, and a training iteration repeats its sizes; so a
block that a copy leaves is the next one's of the same size. What copies will want is pinned before they begin, by a
thread, many blocks at once. When the limit is reached, regions none of whose blocks is lent are unpinned first.

    prepare(sizes)  -- thread --> region  -- cut -->  unused  -- lend(same size) -->  lent
                                    |                   ^                              |
                                    |                   '--------- take_back ----------'
                                    +--- the limit is reached, oldest first ---> the system
                                    '--- close ---> kept, for the next backend of the process

A block may be lent again while the copy that used it last still runs: `PinnedBlock.last` is that copy's event, and the
stream of the next copy waits for it. Only unpinning has the host wait.

Pinned pages can neither be swapped nor dropped: where all memory is pinned, processes are ended. So without a limit
given it is a share of what the machine has for us. The machine is asked again when the limit is in the way, at most
once a second: other programs may have ended, and a virtual machine may be given memory as it uses it.

After a refusal of the system nothing is asked for during a second, then two, four, eight: a refusal costs time, and
most of what causes one passes::

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
import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.cuda.driver import Driver
from chainer_ooc.backends.cuda.regions import KEPT, PinnedBlock, Pinning, Region, aligned, in_regions
from chainer_ooc.backends.host import limits
from chainer_ooc.quantities import format_bytes

#: Of what is pinned and the host's free memory together; the limit where none is given.
SHARE_OF_FREE = 0.75

#: How long nothing is asked of the system after it had no more: at first, and at most.
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 64.0

_LOG = logging.getLogger('chainer_ooc')


class PinnedMemory:
    """Blocks of pinned memory, of at most `limit_bytes` in all.

    Args:
        driver: the device.
        limit_bytes: None for a share of what the machine has.
        now: seconds of a monotonic clock.

    Attributes:
        limit_bytes: in force; lower than what was asked for while the system refuses more.
        refused: the system refused when it was asked last.
        refusals: how often it has.
    """

    def __init__(self, driver: Driver, limit_bytes: int | None, now: Callable[[], float] = time.monotonic) -> None:
        self._driver = driver
        self._given_bytes = limit_bytes
        self._now = now
        self.refused = False
        self.refusals = 0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._ask_at = now() + FIRST_PAUSE_SECONDS
        self._pinning = Pinning()
        self._regions: list[Region] = []  # each is here, or in `coming`, before it is pinned, so that none gets lost
        self._unused: dict[int, deque[PinnedBlock]] = {}  # by size; the one that was taken back first is the first
        self._returned = itertools.count()
        self._outliving: dict[int, Region] = {}  # those whose mappings outlive this
        self.limit_bytes = 0
        try:
            self._take_over()
            self.limit_bytes = self._share_bytes() if limit_bytes is None else limit_bytes
            self._keep_within_limit()
        except BaseException:
            KEPT.extend(self._regions)
            raise

    def held_bytes(self) -> int:
        """Bytes that are pinned, or will be soon."""
        return sum(region.nbytes for region in (*self._regions, *self._pinning.coming))

    def free_bytes(self) -> int:
        """Bytes that can be lent beside what is lent now."""
        self._look()
        self._ask_again()
        unused_bytes = sum(block.nbytes for block in self._idle())
        coming_bytes = sum(region.nbytes for region in self._pinning.coming)
        return max(0, self.limit_bytes - self.held_bytes() + unused_bytes + coming_bytes)

    def prepare(self, sizes: Iterable[int]) -> None:
        """Has the thread pin what `lend` will be asked for, in this order, as far as the limit allows.

        What is unused, or will be pinned soon, counts. Nothing is unpinned for it.
        """
        self._look()
        there = Counter({nbytes: len(blocks) for nbytes, blocks in self._unused.items()})
        for region in self._pinning.coming:
            there.update(region.sizes)
        missing = []
        for nbytes in filter(None, sizes):
            there[nbytes] -= 1
            if there[nbytes] < 0:
                missing.append(nbytes)
        if missing and not self._fits(sum(map(aligned, missing))):
            self._ask_again()
        ends = itertools.accumulate(map(aligned, missing))
        fitting = [nbytes for nbytes, end in zip(missing, ends, strict=True) if self._fits(end)]
        for region in in_regions(self._driver, fitting):
            self._pinning.ask(region)

    def is_prepared(self, nbytes: int) -> bool:
        """Whether `lend` would not have to wait until a block is pinned, or whether that cannot be helped."""
        self._look()
        if not nbytes or any(block.settled for block in self._unused.get(nbytes, ())):
            return True
        return self._coming_with(nbytes) is None and not (self._pinning.can_run and self._fits(aligned(nbytes)))

    def lend(self, nbytes: int) -> PinnedBlock | None:
        """Returns a block of exactly `nbytes`, or None if there is no room for it or the system refuses.

        Waits for a block that will be pinned soon; without one it pins it.

        Raises:
            RuntimeError: CUDA cannot give back another block.
        """
        if not nbytes:
            return PinnedBlock(0, 0)
        self._look()
        while (block := self._unused_block(nbytes)) is None and (region := self._coming_with(nbytes)) is not None:
            self._pinning.wait(region)
            self._look()
        if block is not None:
            return block
        if self._make_room(nbytes) or (self._ask_again() and self._make_room(nbytes)):
            return self._pin(nbytes)
        return None

    def take_back(self, block: PinnedBlock) -> None:
        """Makes a lent block another copy's."""
        if block.nbytes:
            block.returned = next(self._returned)
            self._unused.setdefault(block.nbytes, deque()).append(block)

    def take_back_all_but(self, held: set[int]) -> None:
        """Makes all blocks another copy's that are neither unused nor shown nor held, given by their ids.

        No copy may use them any more.
        """
        unused = {*map(id, itertools.chain(*self._unused.values()))}
        for block in [block for region in self._regions for block in region.blocks]:
            if id(block) not in unused and id(block) not in held and not block.shown:
                block.settled = True
                self.take_back(block)

    def show(self, block: PinnedBlock) -> ByteArray:
        """Shows a lent block as an array of the device. The block may be taken back once `shown` is empty.

        If this is closed before, its region stays pinned until the array's end.
        """
        token = object()
        block.shown.add(token)
        block.was_shown = True
        try:
            return self._driver.show(block.address, block.nbytes, functools.partial(self._hide, block, token))
        except BaseException:
            block.shown.discard(token)
            raise

    def trim(self) -> None:
        """Unpins regions none of whose blocks is lent.

        Raises:
            RuntimeError: CUDA cannot give back a region.
        """
        for region in self._idle_regions():
            self._unpin(region)

    def close(self) -> None:
        """Leaves what is pinned to the next backend of the process; no copy may run any more. Idempotent.

        Raises:
            RuntimeError: the device failed.
        """
        self._pinning.stop()
        failure = None
        try:
            self._finish_reading(block for region in self._regions for block in region.blocks)
        except RuntimeError as error:
            failure = error
        self._unused.clear()
        for region in [region for region in self._regions if region.is_shown()]:
            self._leave(region)
        kept = {*map(id, KEPT)}
        for regions in (self._regions, self._pinning.coming):
            while regions:
                region = regions[-1]
                if region.address and id(region) not in kept:  # else an interrupt came before it was in one place
                    KEPT.append(region)
                    kept.add(id(region))
                regions.pop()
        if failure is not None:
            raise failure

    # --- regions ---------------------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Takes what closed backends have left."""
        for _ in range(len(KEPT)):
            try:
                self._regions.append(KEPT.popleft())
            except IndexError:  # another thread has it
                return
            if self._regions[-1].driver.host is self._driver.host:
                self._cut(self._regions[-1])
            else:
                KEPT.append(self._regions.pop())

    def _keep_within_limit(self) -> None:
        while self.held_bytes() > self.limit_bytes:
            self._unpin(self._idle_regions()[-1])

    def _cut(self, region: Region) -> None:
        region.cut()
        for block in region.blocks:
            self.take_back(block)

    def _look(self) -> None:
        """Cuts what the thread has pinned."""
        coming = self._pinning.coming
        while coming and coming[0].pinning.done:
            region = coming[0]
            if not region.address:
                coming.popleft()
                self._refused(region.nbytes)
                continue
            if region in self._regions:  # an interrupt came; nothing of it was lent
                for block in region.blocks:
                    with contextlib.suppress(KeyError, ValueError):
                        self._unused[block.nbytes].remove(block)
            else:
                self._regions.append(region)
            self._cut(region)
            coming.popleft()

    def _coming_with(self, nbytes: int) -> Region | None:
        return next((region for region in self._pinning.coming if nbytes in region.sizes), None)

    def _unused_block(self, nbytes: int) -> PinnedBlock | None:
        blocks = self._unused.get(nbytes, deque())
        for _ in range(len(blocks)):
            if blocks[0].settled:
                return blocks.popleft()
            blocks.rotate(-1)
        return None

    def _idle(self) -> Iterable[PinnedBlock]:
        return (block for block in itertools.chain(*self._unused.values()) if block.settled)

    def _idle_regions(self) -> list[Region]:
        """Regions none of whose blocks is lent, the one that was used longest ago first."""
        idle = set(map(id, self._idle()))
        found = [region for region in self._regions if region.blocks and idle.issuperset(map(id, region.blocks))]
        return sorted(found, key=lambda region: max(block.returned for block in region.blocks))

    def _fits(self, nbytes: int) -> bool:
        return self.held_bytes() + nbytes <= self.limit_bytes

    def _make_room(self, nbytes: int) -> bool:
        """Unpins idle regions, the oldest first, as far as needed; False, and nothing changes, if it does not help."""
        if self._fits(nbytes):
            return True
        regions = self._idle_regions()
        if not self._fits(nbytes - sum(region.nbytes for region in regions)):
            return False
        for region in regions:
            self._unpin(region)
            if self._fits(nbytes):
                break
        return True

    def _pin(self, nbytes: int) -> PinnedBlock | None:
        if not self._pinned(nbytes):
            self.trim()
            if not self._pinned(nbytes):
                self._refused(nbytes)
                return None
        self.refused, self._pause_seconds = False, FIRST_PAUSE_SECONDS
        return self._unused_block(nbytes)

    def _pinned(self, nbytes: int) -> bool:
        self._regions[:] = [region for region in self._regions if region.address]  # else an interrupt came here
        region = Region(self._driver, [nbytes])
        self._regions.append(region)
        try:
            region.pin()
        except (MemoryError, RuntimeError):
            self._regions.remove(region)
            return False
        self._cut(region)
        return True

    def _refused(self, nbytes: int) -> None:
        """Asks for no more for a while: each refusal takes time."""
        self.refused, self.refusals = True, self.refusals + 1
        self.limit_bytes = self.held_bytes()
        _LOG.warning('the system refused to pin %s beside the %s that are pinned; it is asked again in %g s',
                     format_bytes(nbytes), format_bytes(self.limit_bytes), self._pause_seconds)
        self._ask_at = self._now() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)

    def _share_bytes(self) -> int:
        return int((self.held_bytes() + limits.free_bytes()) * SHARE_OF_FREE)

    def _ask_again(self) -> bool:
        """Sets the limit anew once that may help; whether it has grown."""
        if (self._given_bytes is not None and not self.refused) or self._now() < self._ask_at:
            return False
        before_bytes = self.limit_bytes
        self.limit_bytes = self._given_bytes if self._given_bytes is not None else max(
            self.held_bytes(), self._share_bytes())
        self._ask_at = self._now() + FIRST_PAUSE_SECONDS
        return self.limit_bytes > before_bytes

    # --- giving back -----------------------------------------------------------------------------------------------

    def _finish_reading(self, blocks: Iterable[PinnedBlock]) -> None:
        """Waits for the computations that may use mappings, if there were any."""
        if any(block.was_shown for block in blocks):
            self._driver.synchronize(self._driver.record(self._driver.compute()))

    def _unpin(self, region: Region) -> None:
        self._finish_reading(region.blocks)
        for block in region.blocks:
            if block.last is not None:
                self._driver.synchronize(block.last)
        for block in region.blocks:
            self._unused[block.nbytes].remove(block)
        self._regions.remove(region)  # first: an interrupt may leave it pinned, but it is not lent
        try:
            self._driver.unpin(region.address)
        except RuntimeError:
            self._regions.append(region)
            for block in region.blocks:
                self.take_back(block)
            raise

    def _leave(self, region: Region) -> None:
        """Leaves a region to the last of its mappings, which may go at any moment."""
        self._outliving[region.address] = region
        self._regions.remove(region)
        if not region.is_shown():
            self._unpin_left(region)

    def _hide(self, block: PinnedBlock, token: object) -> None:
        """Called when a mapping is gone, by the garbage collector at any instruction."""
        block.shown.discard(token)
        region = self._outliving.get(block.region)
        if region is not None and not region.is_shown():
            self._unpin_left(region)

    def _unpin_left(self, region: Region) -> None:
        if self._outliving.pop(region.address, None) is not None:  # only one gets it
            with contextlib.suppress(Exception):  # at the end of the process the driver may be gone already
                if any(block.was_shown for block in region.blocks):
                    self._driver.finish_all()  # what was queued before the last mapping's end may read it
                self._driver.unpin(region.address)


def host_view(address: int, nbytes: int) -> memoryview:
    """The bytes at an address of the host, as files take them; the caller keeps the memory alive."""
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast('B')
