"""Far memory of a GPU: pinned host memory first, the spill file behind it.

A copy goes to pinned memory if a block can be lent for it, else to the spill file, and stays there. Nothing moves from
one to the other, which would take the disk's time: a training repeats its copies in the same order, so that the same
ones find room again.

A failure of CUDA while a copy is put on its stream is raised when the copy is waited for (C2), as one of the copy.

A KeyboardInterrupt may come where a block is nobody's: it was lent and no place has it yet, or a place that is taken
back has it no more. The next swap-out looks for such blocks.

Left out: choosing what goes to the disk by when it is read again (the policy does not know of the two tiers).
"""

from __future__ import annotations

import collections
import contextlib
import errno
import weakref
from collections.abc import Callable, Iterator

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.cuda.disk import DiskTier
from chainer_ooc.backends.cuda.driver import Driver, Event, Stream
from chainer_ooc.backends.cuda.pinned import PinnedMemory
from chainer_ooc.backends.cuda.regions import PinnedBlock
from chainer_ooc.backends.cuda.tiers import Tiers
from chainer_ooc.backends.cuda.transfer import CudaTransfer, TransferQueue, copy_failed
from chainer_ooc.backends.owned import OwnedCopy, Place
from chainer_ooc.backends.spill.transfer import Space
from chainer_ooc.errors import SpillError
from chainer_ooc.quantities import format_bytes


class PinnedPlace(Place):
    """A copy's place in pinned memory; `block` is None before it has one and once that was taken back."""

    __slots__ = ('__weakref__', 'block')

    def __init__(self, block: PinnedBlock | None) -> None:
        super().__init__()
        self.block = block


class CudaCopy(OwnedCopy):
    """A far copy of a GPU's memory, which `swap_out` fills; if that was refused, `place` has no block."""

    __slots__ = ('swap_out',)

    place: PinnedPlace | Space

    def __init__(self, place: PinnedPlace | Space, swap_out: CudaTransfer,
                 unwanted: collections.deque[PinnedPlace] | collections.deque[Space]) -> None:
        self.swap_out = swap_out
        super().__init__(swap_out.nbytes, place, unwanted)


class FarMemory:
    """Both tiers, `pinned` and `disk`, the two directions of copies, and `tiers`, which counts what went to which tier.

    `folder` is that of `DiskTier`, `limit_bytes` that of `PinnedMemory`.

    Raises:
        SpillError: no file can be made in `folder`.
    """

    def __init__(self, driver: Driver, folder: str | None, limit_bytes: int | None) -> None:
        self.tiers = Tiers()
        self._driver = driver
        self._out, self._in = TransferQueue(driver, outward=True), TransferQueue(driver, outward=False)
        self.disk = DiskTier(driver, folder, self._out.stream, self._in.stream)
        self._unwanted: collections.deque[PinnedPlace] = collections.deque()
        self._places: weakref.WeakSet[PinnedPlace] = weakref.WeakSet()
        self._is_amid = False  # blocks change hands, or did so as an interrupt came
        self.pinned = PinnedMemory(driver, limit_bytes)  # last: it has what closed backends have left

    def owns(self, copy: CudaCopy) -> bool:
        """Whether it was made here."""
        return copy.unwanted is self._unwanted or copy.unwanted is self.disk.unwanted

    def free_bytes(self) -> int:
        """Bytes that can still be copied out."""
        self._take_back()
        self._is_amid = False
        return self.pinned.free_bytes() + max(0, self.disk.free_bytes())

    def swap_out(self, source: ByteArray) -> CudaCopy:
        """Starts a swap-out."""
        self._take_back()
        self._out.advance()
        transfer = self._out.begin(source)
        place: PinnedPlace | Space = PinnedPlace(None)
        try:
            transfer.block = self.pinned.lend(source.nbytes)
            if transfer.block is None:
                place = space = self.disk.swap_out(source, transfer)
                self.tiers.to_file(space.swap_out, self.disk.folder, self.pinned.limit_bytes)
            else:
                place = PinnedPlace(transfer.block)
                self._places.add(place)
                self._put(transfer, self._out.stream, transfer.block, transfer.block.last,
                          self._driver.copy_out, transfer.block.address, self._driver.address(source))
                self.tiers.to_pinned(source.nbytes)
        except (SpillError, RuntimeError) as error:
            transfer.refusal = _refusal(error)
        copy = CudaCopy(place, transfer, self.disk.unwanted if isinstance(place, Space) else self._unwanted)
        self._is_amid = False
        return copy

    def swap_in(self, copy: CudaCopy, into: ByteArray) -> CudaTransfer:
        """Starts a swap-in."""
        self._in.advance()
        transfer = self._in.begin(into)
        transfer.after = None if copy.swap_out.ended else copy.swap_out
        try:
            self._check_whole(copy)
            if isinstance(copy.place, Space):
                self.tiers.from_file(self.disk.swap_in(copy.place, into, transfer))
            else:
                transfer.block = copy.place.block
                assert transfer.block is not None, 'a copy that was written has no place'
                self._put(transfer, self._in.stream, transfer.block,
                          None if copy.swap_out.ended else copy.swap_out.end,
                          self._driver.copy_in, self._driver.address(into), transfer.block.address)
        except (SpillError, RuntimeError) as error:
            transfer.refusal = _refusal(error)
        return transfer

    def map(self, copy: CudaCopy) -> ByteArray:
        """Shows a copy where it is; see `Backend.map`.

        Raises:
            SpillError: it has no bytes, or they are in the spill file.
        """
        copy.swap_out.wait()
        if isinstance(copy.place, Space):
            raise SpillError(errno.ENOMEM, f'a GPU cannot read the {format_bytes(copy.nbytes)} that lie in the spill '
                             f'file (pinned {format_bytes(self.pinned.held_bytes())} of '
                             f'{format_bytes(self.pinned.limit_bytes)})')
        assert copy.place.block is not None, 'a copy that was written has no place'
        return self.pinned.show(copy.place.block) if copy.nbytes else self._driver.empty(0)

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leaves out of `tiers` what is copied meanwhile, such as samples."""
        tiers, self.tiers = self.tiers, Tiers(warns=False)
        try:
            yield
        finally:
            self.tiers = tiers

    def close(self) -> None:
        """Ends all copies and gives everything back. Idempotent.

        Raises:
            RuntimeError: the device failed. Everything is given back that could be.

        If this fails: a KeyboardInterrupt may pass through; call it again.
        """
        self.tiers.log()
        failure = None
        for step in (self.disk.stop, self._out.drain, self._in.drain, self._unwanted.clear, self.pinned.close,
                     self.disk.close):
            try:
                step()
            except RuntimeError as error:
                failure = error
        if failure is not None:
            raise failure

    def _put(self, transfer: CudaTransfer, stream: Stream, block: PinnedBlock, after: Event | None,
             copy: Callable[[int, int, int, Stream], None], to: int, source: int) -> None:
        """Puts a copy on a stream: after what compute was given until now, and after an event if there is one."""
        driver = self._driver
        block.settled = False
        driver.wait_event(stream, driver.record(driver.compute()))
        if after is not None:
            driver.wait_event(stream, after)
        transfer.start = driver.record(stream, timed=True)
        if block.nbytes:
            copy(to, source, block.nbytes, stream)
        transfer.end = block.last = driver.record(stream, timed=True)
        block.settled = True

    def _check_whole(self, copy: CudaCopy) -> None:
        """Raises SpillError if a copy is known to have no bytes."""
        swap_out = copy.swap_out
        failure = swap_out.failure if swap_out.ended else swap_out.refusal
        if failure is not None:
            raise SpillError(*failure.args)

    def _take_back(self) -> None:
        """Has released blocks lent again, once no mapping shows them; their next copies wait for their last ones.

        A place may be in the list twice (see `OwnedCopy.release`), hence the block is taken from it. The caller says
        when no more blocks change hands.
        """
        if self._is_amid:
            self._find_lost()
        self._is_amid = True
        for _ in range(len(self._unwanted)):
            place = self._unwanted.popleft()
            place.unwanted = True
            if place.block is not None and place.block.shown:
                self._unwanted.append(place)
                continue
            block, place.block = place.block, None
            if block is not None:
                self.pinned.take_back(block)

    def _find_lost(self) -> None:
        """Takes back what an interrupt has left with nobody, when no copy uses it any more."""
        for line in (self._out, self._in):
            self._driver.finish(line.stream)
        waiting = {*map(id, self._unwanted)}
        held = {id(place.block) for place in self._places if not place.unwanted or id(place) in waiting}
        self.pinned.take_back_all_but(held)


def _refusal(error: Exception) -> SpillError:
    """The same, without the frames that refer to the array (C5)."""
    return SpillError(*error.args) if isinstance(error, SpillError) else copy_failed(error)
