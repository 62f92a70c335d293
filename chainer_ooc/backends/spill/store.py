r"""A spill file with the two threads that write it and read it.

There are no locks. The extents belong to the swap-out thread alone: it places each copy just before that is written,
and first takes back the places that were released, which arrive on a deque from any thread. So a KeyboardInterrupt,
which Python raises in the main thread only, can never find the list of extents half changed, and a release from the
garbage collector has nothing to wait for. A place that is mapped is taken back when its mappings are gone::

    caller ------ tasks -----> swap-out thread (owns extents)  --write--> spill file
       |  \------ tasks -----> swap-in thread                  <--read---
       release (any thread) -> deque, emptied by the swap-out thread before it places a copy

How the bytes of a copy get from near memory to the file, and back, is the device's to say.

Left out: the order and the time of swaps (``schedule``).
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from chainer_ooc.backends.spill.extents import Extents
from chainer_ooc.backends.spill.spill_file import SpillFile
from chainer_ooc.backends.spill.swap_thread import STACK_BYTES, CopyTask, SwapThread
from chainer_ooc.backends.spill.transfer import HostTransfer, Space
from chainer_ooc.errors import SpillError

#: Copies between a copy's place and its near side, from an offset in the file on. Raises SpillError if it fails.
Copy = Callable[[Space, Any, int], None]


class SpillStore:
    """Far memory in a file. One caller at a time uses it.

    Args:
        open_file: makes the file when it is first needed; raises SpillError if that fails.
        name: how the names of the threads begin.
        write: called in the swap-out thread.
        read: called in the swap-in thread, for a copy that was written.
        stack_bytes: of the threads.

    Attributes:
        unwanted: places of released copies, appended from any thread.
    """

    def __init__(self, open_file: Callable[[], SpillFile], name: str, write: Copy, read: Copy,
                 stack_bytes: int = STACK_BYTES) -> None:
        self.unwanted: collections.deque[Space] = collections.deque()
        self._open_file = open_file
        self._file: SpillFile | None = None
        self._write, self._read = write, read
        self._extents = Extents()
        self._asked_bytes = 0  # ever given to swap_out
        self._answered_bytes = 0  # of those: placed, failed or no longer needed
        self._sought_bytes = 0  # ever given to swap_in
        self._found_bytes = 0  # of those: read, or failed
        self._swap_out = SwapThread(f'{name}-out', stack_bytes)
        self._swap_in = SwapThread(f'{name}-in', stack_bytes)

    @property
    def is_open(self) -> bool:
        """Whether the file was needed yet."""
        return self._file is not None

    def open(self) -> SpillFile:
        """Returns the file, which is made if there is none.

        Raises:
            SpillError: it cannot be made.
        """
        if self._file is None:
            self._file = self._open_file()
        return self._file

    @property
    def end_bytes(self) -> int:
        """Size of the file."""
        return self._extents.end_bytes

    def free_bytes(self) -> int:
        """What the file can still take beside what is queued; negative if that is too much.

        Room to grow, free extents, and released ones that wait to be taken back.
        """
        waiting = sum(space.nbytes for space in self.unwanted.copy()
                      if space.start is not None and not space.mapped)
        room_bytes = self.open().free_bytes(self._extents.end_bytes) + self._extents.free_bytes + waiting
        return room_bytes - self.queued_bytes()

    def queued_bytes(self) -> int:
        """What is to be written and has no place yet."""
        return max(0, self._asked_bytes - self._answered_bytes)

    def arriving_bytes(self) -> int:
        """What is to be read and is not yet."""
        return max(0, self._sought_bytes - self._found_bytes)

    def swap_out(self, space: Space, near: Any) -> None:
        """Has the thread write a copy, and end its ``space.swap_out``.

        Args:
            space: a new one; its copy's handle may be there already.
            near: the near side; the thread alone refers to it once this has returned, until the copy is written.

        Raises:
            SpillError: no file or no thread can be made. Nothing has started.
        """
        self.open()
        asked_bytes = max(self._asked_bytes, self._answered_bytes)  # asked is behind if an interrupt followed submit
        self._swap_out.submit(CopyTask(
            self._place_and_write, self._write_ended, space, near, space.swap_out, None))
        self._asked_bytes = asked_bytes + space.nbytes

    def swap_in(self, space: Space, near: Any) -> HostTransfer:
        """Has the thread read a copy, once that is written; returns what the thread ends.

        Raises:
            SpillError: no thread can be made. Nothing has started.
        """
        transfer = HostTransfer(space.nbytes)
        space.reads_started += 1  # before the thread can end it
        sought_bytes = max(self._sought_bytes, self._found_bytes)
        try:
            self._swap_in.submit(CopyTask(
                self._read_written, self._read_ended, space, near, transfer, space.swap_out))
        except SpillError:
            space.reads_started -= 1
            raise
        self._sought_bytes = sought_bytes + space.nbytes
        return transfer

    def start(self) -> None:
        """Starts the threads before there is anything to copy.

        Raises:
            SpillError: one cannot be started.
        """
        self._swap_out.start()
        self._swap_in.start()

    def stop(self) -> None:
        """Waits until the threads have made all copies, and ends them. Idempotent.

        If this fails: a KeyboardInterrupt may pass through; call it again.
        """
        self._swap_out.stop()
        self._swap_in.stop()

    def close(self) -> None:
        """Closes the file, in a forked child its copy of the descriptor; the threads have stopped. Idempotent."""
        if self._file is not None:
            self._file.close()

    # What follows runs in the threads.

    def _place_and_write(self, space: Space, near: Any) -> None:
        """Finds a copy's place in the file and has it written there, unless it is no longer needed.

        If this fails: the place is free again, and what was raised passes through.
        """
        take_back(self.unwanted, self._extents)
        if space.useless():
            return
        start, growth_bytes = self._extents.place(space.nbytes)
        if growth_bytes:
            self.open().grow(self._extents.end_bytes, growth_bytes)
        self._extents.take(start, space.nbytes)
        try:
            self._write(space, near, start)
        except BaseException:
            self._extents.give(start, space.nbytes)
            raise
        space.start = start

    def _write_ended(self, space: Space) -> None:
        self._answered_bytes += space.nbytes

    def _read_written(self, space: Space, near: Any) -> None:
        assert space.start is not None, 'a copy that was written has no place'
        self._read(space, near, space.start)

    def _read_ended(self, space: Space) -> None:
        space.reads_ended += 1
        self._found_bytes += space.nbytes


def take_back(unwanted: collections.deque[Space], extents: Extents) -> None:
    """Makes the extents of released places free, but for those that a swap-in still reads; for the extents' thread."""
    for _ in range(len(unwanted)):
        space = unwanted.popleft()
        if not space.useless():
            unwanted.append(space)
        elif space.start is not None:
            extents.give(space.start, space.nbytes)
            space.start = None
