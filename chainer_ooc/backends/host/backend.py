r"""The host backend: NumPy arrays swapped to a spill file by two threads.

Who owns what is what keeps it free of locks. The extents belong to the swap-out thread alone: it places each copy just
before it writes it, and first takes back the spaces that were released, which arrive on a deque from any thread. So a
KeyboardInterrupt, which Python raises in the main thread only, can never find the list of extents half changed, and a
release from the garbage collector has nothing to wait for. A space that is mapped is taken back when its mappings are
gone.

    caller ------ tasks -----> swap-out thread (owns extents)  --write--> spill file
       |  \------ tasks -----> swap-in thread                  <--read---
       release (any thread) -> deque, emptied by the swap-out thread before it places a copy

Left out: the order and the time of swaps (``schedule``); a second tier behind the file.
"""

from __future__ import annotations

import collections
import time
import weakref
from typing import Any

import numpy as np

from chainer_ooc.backends.base import Bandwidth, ByteArray, FarCopy, Transfer, check_array, check_target
from chainer_ooc.backends.host import block, filesystem, headroom, heap, limits, measure
from chainer_ooc.backends.host.extents import Extents
from chainer_ooc.backends.host.guard import Guard
from chainer_ooc.backends.host.headroom import Headroom
from chainer_ooc.backends.host.kept_blocks import KeptBlocks
from chainer_ooc.backends.host.mapping import Mapping
from chainer_ooc.backends.host.meter import HostMeter
from chainer_ooc.backends.host.spill_file import SpillFile, no_room
from chainer_ooc.backends.host.swap_thread import SwapThread, Task
from chainer_ooc.backends.host.transfer import ELSEWHERE, HostTransfer, Space, store
from chainer_ooc.backends.owned import OwnedBackend, OwnedCopy, close_in_children
from chainer_ooc.errors import SpillError


class HostCopy(OwnedCopy):
    """A far copy in the spill file."""

    __slots__ = ()

    place: Space


class HostBackend(OwnedBackend):
    """Near memory is this process's private memory, far memory an unnamed file in a folder.

    Args:
        spill_dir: Folder of the spill file; None for the folder of temporary files, or ``/var/tmp`` where that is a
            RAM disk.
        mapped_bytes: Arrays from this size on leave the process as soon as they are freed; smaller ones may be kept
            for the next array, see ``heap``. Less than the default, such as 1 MiB, keeps resident memory exactly at
            what is live, for more time.

    Raises:
        SpillError: No spill file can be made in the folder. Nothing is left open.
    """

    name = 'host'
    elsewhere = ELSEWHERE

    def __init__(self, spill_dir: str | None = None, *, mapped_bytes: int = heap.MAPPED_BYTES) -> None:
        super().__init__()
        self._headroom = Headroom()
        self._guard = Guard(self._headroom)
        self._file = SpillFile(spill_dir, self._headroom.dirty_bytes)
        self._blocks = KeptBlocks()
        self._extents = Extents()
        self._unwanted: collections.deque[Space] = collections.deque()
        self._asked_bytes = 0  # ever given to swap_out
        self._answered_bytes = 0  # of those: placed, failed or no longer wanted
        self._sought_bytes = 0  # ever given to swap_in
        self._found_bytes = 0  # of those: read, or failed
        self._swap_out = SwapThread('chainer_ooc-swap-out', self._write, self._write_ended)
        self._swap_in = SwapThread('chainer_ooc-swap-in', self._read, self._read_ended)
        self._mappings: weakref.WeakSet[Mapping] = weakref.WeakSet()
        self._bandwidth: Bandwidth | None = None
        self._heap = heap.return_freed_memory(mapped_bytes)
        close_in_children(self)

    moment = staticmethod(time.perf_counter)  # a function of ours around it would be called four times a computation

    def meter(self) -> HostMeter:
        return HostMeter()

    def computing(self) -> Guard:
        return self._guard

    def allocate(self, nbytes: int) -> ByteArray:
        try:
            return self._blocks.allocate(nbytes)
        except MemoryError:
            self.trim()
            return self._blocks.allocate(nbytes)

    def free_bytes(self) -> int:
        return limits.free_bytes(heap.free_bytes()) + self._blocks.nbytes()

    def default_budget_bytes(self, held_bytes: int, latest_bytes: int | None) -> int:
        """In steps, see `headroom`; what the heap keeps is given back before another budget is taken."""
        if latest_bytes is None or not headroom.holds(latest_bytes, *self._whole_and_set_aside(held_bytes)):
            self.trim()
        return headroom.budget(latest_bytes, *self._whole_and_set_aside(held_bytes))

    def has_room(self, nbytes: int) -> bool:
        return self._gives(nbytes) or (self._blocks.keep_at_most(0) and self._gives(nbytes))

    def keep_at_most(self, nbytes: int) -> None:
        self._blocks.keep_at_most(nbytes)

    def kept_bytes(self) -> int:
        return self._blocks.nbytes()

    def trim(self) -> None:
        self._blocks.keep_at_most(0)
        heap.trim()
        if self._headroom.is_limited():
            self._file.clean()

    def reserve(self, nbytes: int) -> None:
        self._check_usable('reserve far memory')
        free = self._far_free_bytes() - self._queued_bytes()
        if nbytes > free:
            raise no_room(self._file.folder, nbytes, max(0, free))

    def swap_out(self, source: ByteArray) -> tuple[FarCopy, Transfer]:
        self._check_usable('swap out')
        check_array(source, 'source')
        space = Space(source.nbytes)
        copy = HostCopy(space.nbytes, space, self._unwanted)
        asked_bytes = max(self._asked_bytes, self._answered_bytes)  # asked is behind if an interrupt followed submit
        self._swap_out.submit(Task(space, source, space.swap_out, None))
        self._asked_bytes = asked_bytes + source.nbytes
        return copy, space.swap_out

    def swap_in(self, copy: FarCopy, into: ByteArray) -> Transfer:
        space = self._space_of(copy, 'swap in')
        check_target(into, copy.nbytes)
        transfer = HostTransfer(copy.nbytes)
        space.reads_started += 1  # before the thread can end it
        sought_bytes = max(self._sought_bytes, self._found_bytes)
        try:
            self._swap_in.submit(Task(space, into, transfer, space.swap_out))
        except SpillError:
            space.reads_started -= 1
            raise
        self._sought_bytes = sought_bytes + into.nbytes
        return transfer

    def map(self, copy: FarCopy) -> ByteArray:
        space = self._space_of(copy, 'map')
        space.swap_out.wait()
        if not space.nbytes:
            return np.empty(0, np.uint8)
        assert space.start is not None, 'a copy that was written has no place'
        mapping = self._file.map(space.start, space.nbytes, space.mapped)
        self._mappings.add(mapping)
        return np.asarray(mapping)

    def peek(self, copy: FarCopy) -> ByteArray | None:
        space = copy.place if isinstance(copy, HostCopy) else None
        if self._closed or not self._is_here() or space is None or space.unwanted or space.start is None:
            return None
        found = np.empty(space.nbytes, np.uint8)
        self._file.read(found.data, space.start)
        return found

    def bandwidth(self) -> Bandwidth:
        if self._bandwidth is None:
            needed_bytes = 4 * measure.SAMPLE_BYTES  # near memory and what is dirty in the page cache
            if not self.has_room(needed_bytes):
                self.trim()
            fits = self.has_room(needed_bytes)
            with self._guard:
                self._bandwidth = measure.bandwidth(self, measure.SAMPLE_BYTES if fits else measure.SMALL_SAMPLE_BYTES)
        return self._bandwidth

    def machine(self) -> str:
        return limits.describe_machine()

    def describe(self) -> dict[str, Any]:
        self._check_usable('describe')
        kind = filesystem.filesystem_type(self._file.folder)
        warnings = [self._heap] if self._heap else []
        if kind in filesystem.RAM_DISKS:
            warnings.append('the spill folder is a RAM disk: what is swapped out stays in memory')
        return {
            'device': self.name,
            'spill_folder': self._file.folder,
            'spill_filesystem': kind,
            'spill_free_bytes': self._far_free_bytes(),
            'spill_file_bytes': self._extents.end_bytes,
            'near_free_bytes': self.free_bytes(),
            'near_limits_bytes': limits.limits_bytes(heap.free_bytes()),
            'default_budget_bytes': self.default_budget_bytes(0, None),
            'warnings': warnings,
        }

    def close(self) -> None:
        self._closed = True
        self._guard.lift()
        if self._is_here():
            self._swap_out.stop()
            self._swap_in.stop()
        else:
            self._file.part_from(list(self._mappings))
        self._file.close()
        self._blocks.close()

    def _space_of(self, copy: FarCopy, act: str) -> Space:
        self._check_usable(act)
        if not isinstance(copy, HostCopy) or copy.place.unwanted or copy.unwanted is not self._unwanted:
            raise ValueError(f'cannot {act} a copy that is released or of another backend')
        return copy.place

    def _gives(self, nbytes: int) -> bool:
        """Whether the system gives so much more now: as addresses, and as pages beside those of swap-ins under way."""
        arriving_bytes = max(0, self._sought_bytes - self._found_bytes)
        return (self._headroom.has_room(nbytes + arriving_bytes, self._queued_bytes() > 0)
                and block.is_available(nbytes))

    def _whole_and_set_aside(self, held_bytes: int) -> tuple[int, int]:
        free_bytes = self.free_bytes()
        return held_bytes + free_bytes, self._headroom.set_aside_bytes(free_bytes)

    def _queued_bytes(self) -> int:
        return max(0, self._asked_bytes - self._answered_bytes)

    def _far_free_bytes(self) -> int:
        """What the file can still take: room to grow, free extents, and released ones that wait to be taken back."""
        waiting = sum(space.nbytes for space in self._unwanted.copy()
                      if space.start is not None and not space.mapped)
        return self._file.free_bytes(self._extents.end_bytes) + self._extents.free_bytes + waiting

    # What follows runs in the swap threads.

    def _write(self, space: Space, source: ByteArray) -> None:
        store(space, self._unwanted, self._extents, self._file.grow,
              lambda start: self._file.write(source.data, start, space.useless))

    def _write_ended(self, space: Space) -> None:
        self._answered_bytes += space.nbytes

    def _read(self, space: Space, into: ByteArray) -> None:
        assert space.start is not None, 'a copy that was written has no place'
        self._file.read(into.data, space.start)

    def _read_ended(self, space: Space) -> None:
        space.reads_ended += 1
        self._found_bytes += space.nbytes
