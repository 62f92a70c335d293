"""The host backend: NumPy arrays swapped to a spill file by the two threads of a `SpillStore`.

An array's own memory is what the threads write from and read into. Near memory has no limit that could be set, so that
what there is, and what is on its way there, is asked of the system (`headroom`).

Left out: the order and the time of swaps (``schedule``); a second tier behind the file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from chainer_ooc.backends.base import OWN_THREADS, Bandwidth, ByteArray, FarCopy, Transfer
from chainer_ooc.backends.host import arena, block, guard, headroom, heap, limits, measure, onednn
from chainer_ooc.backends.host.arena import Arena
from chainer_ooc.backends.host.block import Blocks
from chainer_ooc.backends.host.file_backed import HostFileBacked
from chainer_ooc.backends.host.guard import Guard, have_blas_map_its_buffers
from chainer_ooc.backends.host.headroom import Headroom
from chainer_ooc.backends.host.meter import HostMeter
from chainer_ooc.backends.owned import OwnedBackend, OwnedCopy, check_array, check_target, close_in_children
from chainer_ooc.backends.spill import filesystem
from chainer_ooc.backends.spill.mapping import Mapping
from chainer_ooc.backends.spill.spill_file import SpillFile, no_room
from chainer_ooc.backends.spill.store import SpillStore
from chainer_ooc.backends.spill.transfer import ELSEWHERE, Space
from chainer_ooc.errors import SpillError
from chainer_ooc.ranks import threads
from chainer_ooc.ranks.node import node

#: By the disk of the spill file, as measured in this process: that takes as long as many small iterations.
_bandwidths: dict[int, Bandwidth] = {}


class HostCopy(OwnedCopy):
    """A far copy in the spill file."""

    __slots__ = ()

    place: Space


class HostBackend(OwnedBackend):
    """Near memory is this process's private memory, far memory an unnamed file in a folder.

    Args:
        spill_dir: Folder of the spill file; None for the folder of temporary files, or ``/var/tmp`` where that is a
            RAM disk.

    Raises:
        SpillError: No spill file can be made in the folder. Nothing is left open.
    """

    name = 'host'
    elsewhere = ELSEWHERE

    def __init__(self, spill_dir: str | None = None) -> None:
        super().__init__()
        self._headroom = Headroom()
        self._store = SpillStore(functools.partial(SpillFile, spill_dir, self._headroom.dirty_bytes),
                                 f'{OWN_THREADS}swap', self._write, self._read)
        self._file = self._store.open()
        self._no_arena = arena.available()
        self._blocks: Arena | Blocks = Blocks() if self._no_arena else Arena()
        self._guard = Guard(self._headroom, self._blocks.serves)
        self.file_backed: HostFileBacked | None = None if self._no_arena else HostFileBacked(
            self._write_whole, self.release, self.leaves_outside, self._clean)
        self._mappings: weakref.WeakSet[Mapping] = weakref.WeakSet()
        self._disk = os.fstat(self._file.fileno()).st_dev
        self._bandwidth: Bandwidth | None = _bandwidths.get(self._disk)
        self._heap = heap.return_freed_memory()
        close_in_children(self)

    timestamp = staticmethod(time.perf_counter)  # a function of ours around it would be called four times a computation

    def begin(self) -> None:
        """Has this thread's arrays come from kept pages; takes early what would be refused where memory is short."""
        self._blocks.begin()
        threads.warn()
        if limits.is_limited():
            if block.is_available(measure.BLAS_BYTES):
                have_blas_map_its_buffers()
            with contextlib.suppress(SpillError):  # the first copy tries again, and says so
                self._store.start()

    def onednn_version(self, use_ideep: str) -> str:
        return onednn.version_under(use_ideep)

    def meter(self) -> HostMeter:
        return HostMeter()

    def computing(self) -> Guard:
        return self._guard

    def limit(self, nbytes: int | None, on_out_of_memory: Callable[[int], bool]) -> None:
        """Sets no limit, which is the system's; room is made for what that refuses."""
        self._blocks.ask(None if nbytes is None else on_out_of_memory)
        in_force = self._headroom.in_force()
        is_limited = limits.is_limited()
        self._blocks.set_limited(arena.is_asked() and (bool(in_force) or is_limited), offers=not is_limited)
        self._blocks.contain(in_force, node().ranks, guard.ASIDE_BYTES)

    def offer(self) -> None:
        self._blocks.offer()

    def rest(self) -> None:
        """Has the program get what plain Chainer leaves it, where memory is limited.

        C libraries, child processes and small objects ask nobody.
        """
        self._blocks.rest()

    def serving(self) -> contextlib.AbstractContextManager[None]:
        return self._blocks.lent()

    def allocate(self, nbytes: int) -> ByteArray:
        try:
            return self._blocks.allocate(nbytes)
        except MemoryError:
            self.trim()
            return self._blocks.allocate(nbytes)

    def free_bytes(self) -> int:
        return limits.free_bytes(heap.free_bytes, self._headroom.in_force()) + self._blocks.nbytes()

    def default_budget_bytes(self, held_bytes: int, latest_bytes: int | None) -> int:
        """In steps, see `headroom`; what the heap keeps is given back before another budget is taken."""
        if latest_bytes is not None and headroom.holds(latest_bytes, *self._whole_and_set_aside(held_bytes)):
            return latest_bytes
        self.trim()
        return headroom.budget(latest_bytes, *self._whole_and_set_aside(held_bytes))

    def most_budget_bytes(self, held_bytes: int) -> int:
        """In a container without half of what is set aside there."""
        most_bytes, set_aside_bytes = self._whole_and_set_aside(held_bytes)
        return most_bytes - set_aside_bytes // 2 if self._headroom.in_container() else most_bytes

    def has_room(self, nbytes: int) -> bool:
        return nbytes <= (kept_bytes := self._blocks.nbytes()) or self._gives(nbytes - kept_bytes)

    def keep_at_most(self, nbytes: int) -> None:
        self._blocks.keep_at_most(nbytes)

    def leaves_outside(self, nbytes: int) -> bool:
        if self._gives(nbytes):
            return True
        self._blocks.keep_at_most(max(0, self._blocks.nbytes() - nbytes))
        if self._gives(nbytes):
            return True
        self.trim()
        return self._gives(nbytes)

    def trim(self) -> None:
        self._blocks.keep_at_most(0)
        heap.trim()
        if self._headroom.in_container():
            self._file.clean()

    def reserve(self, nbytes: int) -> None:
        self._check_usable('reserve far memory')
        free = self._store.free_bytes()
        if nbytes > free:
            raise no_room(self._file.folder, nbytes, max(0, free))

    def swap_out(self, source: ByteArray) -> tuple[FarCopy, Transfer]:
        self._check_usable('swap out')
        check_array(source, 'source')
        space = Space(source.nbytes)
        copy = HostCopy(space.nbytes, space, self._store.unwanted)
        self._store.swap_out(space, source)
        return copy, space.swap_out

    def swap_in(self, copy: FarCopy, into: ByteArray) -> Transfer:
        space = self._space_of(copy, 'swap in')
        check_target(into, copy.nbytes)
        return self._store.swap_in(space, into)

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

    def bandwidth(self, anew: bool = False) -> Bandwidth:
        if self._bandwidth is None or anew:
            needed_bytes = 4 * measure.SAMPLE_BYTES  # near memory and what is dirty in the page cache
            fits = self.leaves_outside(needed_bytes)  # no kept page serves it
            with self._guard:
                self._bandwidth = measure.bandwidth(self, measure.SAMPLE_BYTES if fits else measure.SMALL_SAMPLE_BYTES)
            if fits:
                _bandwidths[self._disk] = self._bandwidth
        return self._bandwidth

    def machine(self) -> str:
        return limits.describe_machine()

    def describe(self) -> dict[str, Any]:
        self._check_usable('describe')
        warnings = self._heap, self._no_arena, filesystem.ram_disk_warning(self._file.folder)
        return {
            'device': self.name,
            'spill_folder': self._file.folder,
            'spill_filesystem': filesystem.filesystem_type(self._file.folder),
            'spill_free_bytes': max(0, self._store.free_bytes()),
            'spill_file_bytes': self._store.end_bytes,
            'near_free_bytes': self.free_bytes(),
            'near_limits_bytes': limits.limits_bytes(heap.free_bytes),
            'default_budget_bytes': self.default_budget_bytes(0, None),
            'warnings': [each for each in warnings if each],
        }

    def close(self) -> None:
        if self.file_backed is not None and self._is_here():
            self.file_backed.close()
        self._closed = True
        self._guard.lift()
        if self._is_here():
            self._store.stop()
        else:
            self._file.part_from(list(self._mappings))
            if self.file_backed is not None:
                self.file_backed.part()
        self._store.close()
        self._blocks.close()

    def _write_whole(self, source: ByteArray) -> tuple[FarCopy, int, int]:
        copy, transfer = self.swap_out(source)
        transfer.wait()
        assert isinstance(copy, HostCopy) and copy.place.start is not None
        return copy, self._file.fileno(), copy.place.start

    def _clean(self, written_bytes: int) -> bool:
        allowed_bytes = self._headroom.dirty_bytes()
        is_due = allowed_bytes is not None and written_bytes > allowed_bytes
        if is_due:
            self._file.clean()
        return is_due

    def _space_of(self, copy: FarCopy, act: str) -> Space:
        self._check_usable(act)
        if not isinstance(copy, HostCopy) or copy.place.unwanted or copy.unwanted is not self._store.unwanted:
            raise ValueError(f'cannot {act} a copy that is released or of another backend')
        return copy.place

    def _gives(self, nbytes: int) -> bool:
        """Whether the system gives so much more now: as addresses, and as pages beside those of swap-ins under way."""
        return block.is_available(nbytes) and (not self._headroom.in_container() or self._headroom.has_room(
            nbytes + self._store.arriving_bytes(), self._store.queued_bytes() > 0))

    def _whole_and_set_aside(self, held_bytes: int) -> tuple[int, int]:
        free_bytes = self.free_bytes()
        return held_bytes + free_bytes, self._headroom.set_aside_bytes(free_bytes)

    # What follows runs in the threads.

    def _write(self, space: Space, source: ByteArray, start: int) -> None:
        self._file.write(source.data, start, space.useless)

    def _read(self, space: Space, into: ByteArray, start: int) -> None:
        self._file.read(into.data, start)
