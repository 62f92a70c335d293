r"""Far copies that pinned memory has no room for: in the spill file, by way of a few pinned blocks.

Two threads, one a direction, move a copy piece by piece through two staging blocks, so that the disk and the device
work at the same time::

    swap-out   "out"   [piece 0 -> A] [piece 1 -> B]                 [piece 2 -> A]
               disk                   [A -> file   ] [B -> file    ]                [A -> file]
    swap-in    disk    [file -> A]    [file -> B   ]                 [file -> A]
               "in"                   [A -> piece 0] [B -> piece 1 ]                [A -> piece 2]

A thread ends a transfer when all pieces have been copied, by the device too, so that it has no event to wait for.
Copies that fit pinned memory run on the same streams meanwhile.

Where not even the staging blocks can be pinned, ordinary memory stands in for them: CUDA copies from there as well, but
makes the thread wait.

Left out: GPUDirect Storage, which needs a file system and a driver of its own.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Iterator

import numpy as np

from chainer_ooc.backends.base import OWN_THREADS, ByteArray
from chainer_ooc.backends.cuda.driver import Driver, Event, Stream
from chainer_ooc.backends.cuda.pinned import host_view
from chainer_ooc.backends.cuda.transfer import CudaTransfer, copy_failed
from chainer_ooc.backends.host.headroom import Headroom
from chainer_ooc.backends.spill import filesystem
from chainer_ooc.backends.spill.spill_file import PIECE_BYTES, SpillFile, free_before
from chainer_ooc.backends.spill.store import SpillStore
from chainer_ooc.backends.spill.swap_thread import DRIVER_STACK_BYTES
from chainer_ooc.backends.spill.transfer import HostTransfer, Space

_STAGING_BLOCKS = 2


class Job:
    """The near side of a copy, as a thread takes it over; `array` lives as long as this."""

    def __init__(self, driver: Driver, array: ByteArray) -> None:
        self.array = array
        self.address = driver.address(array)
        self.ready: Event = driver.record(driver.compute())  # what compute does with the memory until now comes first


class Staging:
    """Two blocks of host memory that pieces pass through, by turns."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pinned: list[int] = []
        self._ordinary: list[ByteArray] = []

    def addresses(self) -> list[int]:
        """Where the blocks lie; each has `PIECE_BYTES`."""
        while len(self._pinned) + len(self._ordinary) < _STAGING_BLOCKS:
            try:
                self._pinned.append(self._driver.pin(PIECE_BYTES))
            except (MemoryError, RuntimeError):
                self._ordinary.append(np.empty(PIECE_BYTES, np.uint8))
        return [*self._pinned, *(block.ctypes.data for block in self._ordinary)]

    def close(self) -> None:
        """Gives the blocks back; no copy may run any more."""
        self._ordinary.clear()
        while self._pinned:
            self._driver.unpin(self._pinned.pop())


class DiskTier:
    """The spill file behind pinned memory.

    Args:
        driver: the device.
        folder: of the spill file. One that is named is opened at once, so that a wrong name fails at once; the default
            one (None) when pinned memory is full.
        out, into: the streams of the two directions.

    Attributes:
        unwanted: released copies, appended from any thread.

    Raises:
        SpillError: no file can be made in `folder`.
    """

    def __init__(self, driver: Driver, folder: str | None, out: Stream, into: Stream) -> None:
        self._driver = driver
        self._out, self._in = out, into
        self._staging_out, self._staging_in = Staging(driver), Staging(driver)
        self._store = SpillStore(functools.partial(SpillFile, folder, Headroom().dirty_bytes), f'{OWN_THREADS}cuda',
                                 self._write, self._read, DRIVER_STACK_BYTES)
        self.unwanted = self._store.unwanted
        if folder is not None:
            self._store.open()

    @property
    def folder(self) -> str:
        """Where the spill file is, or will be."""
        return self._store.open().folder if self._store.is_open else filesystem.default_folder()

    def held_bytes(self) -> int:
        """Size of the spill file."""
        return self._store.end_bytes

    def free_bytes(self) -> int:
        """What the file can still take beside what is there and what is queued."""
        return self._store.free_bytes() if self._store.is_open else free_before(self.folder)

    def swap_out(self, source: ByteArray, transfer: CudaTransfer) -> Space:
        """Has the thread write an array.

        Raises:
            SpillError: no file or no thread can be made. Nothing has started.
            RuntimeError: CUDA refuses. Nothing has started.
        """
        space = Space(source.nbytes)
        self._store.swap_out(space, Job(self._driver, source))
        transfer.by_disk = space.swap_out
        return space

    def swap_in(self, space: Space, into: ByteArray, transfer: CudaTransfer) -> HostTransfer:
        """Has the thread read a copy, once that is written; returns what the thread ends.

        Raises:
            SpillError: no thread can be made. Nothing has started.
            RuntimeError: CUDA refuses. Nothing has started.
        """
        read = self._store.swap_in(space, Job(self._driver, into))
        transfer.by_disk = read
        return read

    def stop(self) -> None:
        """Waits until the threads have made all copies, and ends them. Idempotent."""
        self._store.stop()

    def close(self) -> None:
        """Gives back the file and the staging blocks; the threads have stopped. Idempotent."""
        self.part()
        self._staging_out.close()
        self._staging_in.close()

    def part(self) -> None:
        """In a forked child: closes its copy of the descriptor, which would hold the file's space."""
        self._store.close()

    # What follows runs in the threads.

    def _write(self, space: Space, near: Job, start: int) -> None:
        file = self._store.open()
        on_the_way: collections.deque[tuple[Event, memoryview, int]] = collections.deque()
        with self._on_stream(self._out, near):
            staging = self._staging_out.addresses()
            for number, (offset, nbytes) in enumerate(_pieces(space.nbytes)):
                address = staging[number % _STAGING_BLOCKS]
                if len(on_the_way) == _STAGING_BLOCKS:
                    self._write_piece(file, space, *on_the_way.popleft())
                if space.useless():
                    break
                self._driver.copy_out(address, near.address + offset, nbytes, self._out)
                event = self._driver.record(self._out)
                on_the_way.append((event, host_view(address, nbytes), start + offset))
            while on_the_way:
                self._write_piece(file, space, *on_the_way.popleft())

    def _write_piece(self, file: SpillFile, space: Space, event: Event, piece: memoryview, start: int) -> None:
        self._driver.synchronize(event)
        file.write(piece, start, space.useless)

    def _read(self, space: Space, near: Job, start: int) -> None:
        file = self._store.open()
        last: list[Event] = [None] * _STAGING_BLOCKS
        with self._on_stream(self._in, near):
            staging = self._staging_in.addresses()
            for number, (offset, nbytes) in enumerate(_pieces(space.nbytes)):
                turn = number % _STAGING_BLOCKS
                self._synchronize(last[turn])
                file.read(host_view(staging[turn], nbytes), start + offset)
                self._driver.copy_in(near.address + offset, staging[turn], nbytes, self._in)
                last[turn] = self._driver.record(self._in)
            for event in last:
                self._synchronize(event)

    def _synchronize(self, event: Event) -> None:
        if event is not None:
            self._driver.synchronize(event)

    @contextlib.contextmanager
    def _on_stream(self, stream: Stream, near: Job) -> Iterator[None]:
        """Puts copies on a stream after what compute did; when they fail, none of them runs any more afterwards.

        Raises:
            SpillError: the disk or CUDA failed.
        """
        try:
            self._driver.use()
            self._driver.wait_event(stream, near.ready)
            yield
        except BaseException as error:
            with contextlib.suppress(RuntimeError):
                self._driver.finish(stream)
            if isinstance(error, RuntimeError):
                raise copy_failed(error) from None
            raise


def _pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    """Offset and size of each piece."""
    for offset in range(0, nbytes, PIECE_BYTES):
        yield offset, min(PIECE_BYTES, nbytes - offset)
