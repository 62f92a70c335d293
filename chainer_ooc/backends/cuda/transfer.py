"""Copies in flight on two streams beside the one that computes, and why each of them sees the bytes that it should.

Chainer computes on CuPy's current stream ("compute"; `driver.StreamOrder` makes one of several). Two streams of our own
copy, "out" and "in". Each arrow below is an event that one stream waits for; the host waits for none of them::

    compute  [kernels that write a] .                       .[kernels of others]           . [kernels that read b]
                                    |                       |(b allocated)                 ^
    out                             +-> [ a -> far ] done   |                              |
                                              |             |                              |
    in                                        +-------------+-> [ far -> b ] passed -------+ wait()

*swap-out*: "out" waits for what compute was given before. The caller keeps `a` until the transfer is done, so that
nothing writes to it; then it is freed, and its memory may go to any later computation: the copy is over.

*swap-in*: the memory of `b` comes from an allocator in the order of compute, where earlier kernels may still use it for
what it was before. So "in" waits for all of compute up to the call, that is up to after the allocation, and for the
copy's own swap-out (C4). `wait` has compute wait for the copy and returns at once. From then on the transfer counts as
done, and the backend drops `b`: whatever the memory is used for on compute comes after the copy.

What follows from that, for memory that is freed early and used again:

    b was waited for, then swapped out                 "out" waits for a moment of compute that is after that wait
    b was never waited for                             the caller and `TransferQueue` keep it until the event has passed
    a pinned block, unpinned or given to the disk      the host waits for the block's last event

A transfer by way of the spill file (`disk`) is made by a thread, which ends it when all is copied; it has no events.

Only the caller's thread looks at transfers. One that an interrupt left half-begun is ended at the next look, once its
stream has run dry.

Left out: what the program computes outside of functions, on a stream that it changes to just for that. It has to order
that with what comes before and after, as with every array of CuPy's.
"""

from __future__ import annotations

import collections
import contextlib
import errno

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.cuda.driver import Driver, Event, Stream
from chainer_ooc.backends.cuda.regions import PinnedBlock
from chainer_ooc.backends.owned import OwnedTransfer
from chainer_ooc.backends.spill.transfer import HostTransfer
from chainer_ooc.errors import SpillError

#: Why a forked child cannot use the device.
ELSEWHERE = ("a GPU is of no use to a process that was forked from the one that uses it; train in that process, or "
             "start the other with multiprocessing's 'spawn' or before chainer.config.ooc is set")


class CudaTransfer(OwnedTransfer):
    """One copy; made by `TransferQueue.begin`.

    Attributes:
        start: timed event before the copy, or None.
        end: timed event after it; None until it is on its stream, and for copies by way of the spill file.
        by_disk: what the thread of the spill file ends, or None.
        refusal: why it never came onto its stream, or None.
        block: the pinned block that it uses, or None.
        after: the copy's own swap-out, of a swap-in that began before that was over: it ends later (C3, C4).
    """

    __slots__ = ('_array', '_queue', '_seconds', 'after', 'block', 'by_disk', 'end', 'refusal', 'start')

    elsewhere = ELSEWHERE

    def __init__(self, queue: TransferQueue, array: ByteArray) -> None:
        super().__init__(array.nbytes)
        self.start: Event = None
        self.end: Event = None
        self.by_disk: HostTransfer | None = None
        self.refusal: SpillError | None = None
        self.block: PinnedBlock | None = None
        self.after: CudaTransfer | None = None
        self._queue = queue
        self._array: ByteArray | None = array
        self._seconds = 0.0

    @property
    def done(self) -> bool:
        if not self._done and self._is_here():
            self._queue.advance()
        return self._done

    @property
    def seconds(self) -> float:
        if not self._done or self._failure is not None:
            return 0.0
        if self.by_disk is not None:
            return self.by_disk.seconds
        if not self._seconds and self._is_here():
            self._seconds = self._queue.seconds_of(self)
        return self._seconds

    @property
    def moments(self) -> tuple[Event, Event] | None:
        return (self.start, self.end) if self.by_disk is None and self.seconds else None

    def finish(self, failure: SpillError | None) -> None:
        """Drops the array, then ends the transfer (C5)."""
        self._array = self.after = None
        self._failure = failure
        self._done = True

    def stay(self) -> None:
        """Keeps the array for good: a device that failed may write to it whenever it likes."""
        _STAYING.append(self._array)

    def _wait(self) -> None:
        self._queue.wait_for(self)


#: Arrays that copies may still write to when the device has failed.
_STAYING: list[ByteArray | None] = []


class TransferQueue:
    """The transfers of one direction, ended in the order in which they began (C3).

    Args:
        driver: the device.
        outward: they are swap-outs: waiting for one blocks until it is over, as its source is freed then.
    """

    def __init__(self, driver: Driver, outward: bool) -> None:
        self.stream: Stream = driver.new_stream()
        self._driver = driver
        self._outward = outward
        self._pending: collections.deque[CudaTransfer] = collections.deque()

    def begin(self, array: ByteArray) -> CudaTransfer:
        """Queues a transfer, which keeps its array until it ends; to be put on the stream by the caller."""
        transfer = CudaTransfer(self, array)
        self._pending.append(transfer)
        return transfer

    def advance(self) -> None:
        """Ends what is over; blocks for nothing but what was never begun."""
        while self._pending and self._look_at(self._pending[0]):
            self._pending.popleft()  # only now, in case of an interrupt

    def wait_for(self, transfer: CudaTransfer) -> None:
        """Ends a transfer with all that come before it, once all that follows is ordered after them."""
        while not transfer.ended:
            self._wait_for_first()
            self._pending.popleft()

    def seconds_of(self, transfer: CudaTransfer) -> float:
        """Seconds between its events; 0.0 before both have passed, and where CUDA cannot tell."""
        try:
            over = transfer.start is not None and transfer.end is not None and self._driver.passed(transfer.end)
            return max(self._driver.seconds_between(transfer.start, transfer.end), 1e-9) if over else 0.0
        except RuntimeError:
            return 0.0

    def drain(self) -> None:
        """Ends all transfers, well or not, once the stream has run dry.

        Raises:
            RuntimeError: the device failed. All have ended.

        If this fails: a KeyboardInterrupt may pass through; call it again.
        """
        failure = None
        try:
            self._driver.finish(self.stream)
        except RuntimeError as error:
            failure = error
        while self._pending:
            first = self._pending[0]
            if not self._look_at(first):
                first.finish(copy_failed(failure or RuntimeError('the device did not finish it')))
            self._pending.popleft()
        if failure is not None:
            raise failure

    def _look_at(self, first: CudaTransfer) -> bool:
        if first.ended:  # an interrupt came before it left
            return True
        if first.after is not None and not first.after.done:
            return False
        if first.by_disk is not None:
            return first.by_disk.done and self._end_by_disk(first, first.by_disk)
        if first.end is None:
            return self._end_half_begun(first)
        try:
            if not self._driver.passed(first.end):
                return False
        except RuntimeError as error:
            self._fail(first, error)
        else:
            first.finish(None)
        return True

    def _wait_for_first(self) -> None:
        first = self._pending[0]
        if first.ended:
            return
        if first.after is not None:
            with contextlib.suppress(SpillError):  # then this one fails too, and says so
                first.after.wait()
        if first.by_disk is not None:
            self._end_by_disk(first, first.by_disk)
        elif first.end is None:
            self._end_half_begun(first)
        else:
            self._wait_for_event(first)

    def _wait_for_event(self, first: CudaTransfer) -> None:
        try:
            if self._outward:
                self._driver.synchronize(first.end)
            else:
                self._driver.wait_event(self._driver.compute(), first.end)
        except RuntimeError as error:
            self._fail(first, error)
        else:
            first.finish(None)

    def _fail(self, first: CudaTransfer, error: RuntimeError) -> None:
        """Ends a transfer of which the device does not say whether it is over, once its stream has run dry."""
        try:
            self._driver.finish(self.stream)
        except RuntimeError:
            first.stay()
        first.finish(copy_failed(error))

    def _end_by_disk(self, first: CudaTransfer, by_disk: HostTransfer) -> bool:
        first.finish(by_disk.outcome())
        return True

    def _end_half_begun(self, first: CudaTransfer) -> bool:
        """An error or an interrupt came while it was put on the stream: some of it may run."""
        refusal = first.refusal or SpillError(errno.EINTR, 'the copy was interrupted before it had begun; try it again')
        try:
            self._driver.finish(self.stream)
        except RuntimeError as error:
            first.stay()
            refusal = copy_failed(error)
        else:
            if first.block is not None:
                first.block.settled = True
        first.finish(refusal)
        return True


def copy_failed(error: Exception) -> SpillError:
    """The error of a copy that CUDA refused or gave up."""
    return SpillError(errno.EIO, f'a copy between the GPU and pinned memory failed: {error}; the array is still whole '
                      'in the other tier; if it happens again, see what the GPU reports (nvidia-smi, dmesg)')
