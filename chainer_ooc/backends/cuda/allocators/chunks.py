"""Physical memory in chunks that are all alike: which are free, idle or used, and what moves one.

    create -> free --map--> idle, behind a page <--take, give (`space`)--> used
               ^---------detach--------'

An idle chunk may come behind one page more, and stays behind the others. What is behind a page is unmapped before
another chunk is mapped there, and all that the page's stream had been given when its last block was freed must be over
then: the driver does not wait by itself. With blocks of several streams all that any of them has been given must be
over, as one may read what another had.

A KeyboardInterrupt may come as a call of the driver returns, before the books have what it did. So what is mapped or
unmapped is noted as unsure before; `recount` unmaps it, whatever was there, and counts free and idle chunks anew. Lost
is what nobody was told of yet: a chunk that the driver has just made, or has not yet taken back.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

from chainer_ooc.backends.cuda.allocators.address_space import AddressSpace, Chunk
from chainer_ooc.backends.cuda.allocators.allocator import NoRoomError
from chainer_ooc.backends.cuda.allocators.mapping import MappingCalls
from chainer_ooc.backends.cuda.allocators.timestamps import Timestamp, Timestamps
from chainer_ooc.quantities import format_bytes


class Chunks:
    """See the module.

    Args:
        mapping: the driver's calls.
        chunk_bytes: of one; a multiple of what the device can map. It may be changed while there are none.
        free_more: frees what nobody needs, when idle ones are short.
        waiting: goes around what takes long.

    Attributes:
        limit_bytes: all of them together never pass it; None: what the device has.
        held_bytes: of all.
        free: those that are mapped nowhere; the last is taken first.
        idle: those that are mapped, and that no block has; the longest idle first.
        is_full: the driver, or the limit, has refused one.
        has_streams: several streams have blocks, or had some while anything was mapped.
        timestamps: what is recorded.
    """

    limit_bytes: int | None = None

    def __init__(self, mapping: MappingCalls, chunk_bytes: int, free_more: Callable[[], None],
                 waiting: Callable[[], AbstractContextManager[None]]) -> None:
        self._mapping, self._free_more, self._waiting = mapping, free_more, waiting
        self.chunk_bytes = chunk_bytes
        self.held_bytes = 0
        self.free: list[Chunk] = []
        self.idle: dict[Chunk, None] = {}
        self.is_full = self.has_streams = False
        self.timestamps = Timestamps(mapping)
        self._all: dict[Chunk, None] = {}
        self._unsure: list[tuple[AddressSpace, range]] = []

    def release(self, count: int) -> None:
        """Gives so many back to the driver, the free ones first, or as many as no block has; waits for their work."""
        self.detach([*itertools.islice(self.idle, max(0, count - len(self.free)))])
        for _ in range(min(count, len(self.free))):
            chunk = self.free.pop()  # first: after an interrupt nobody gets what the driver has back
            del self._all[chunk]
            self.held_bytes -= self.chunk_bytes
            self.is_full = False
            try:
                self._mapping.release(chunk.handle, self.chunk_bytes)
            except (MemoryError, RuntimeError):
                self._all[chunk] = None
                self.held_bytes += self.chunk_bytes
                self.free.append(chunk)
                raise

    def back(self, space: AddressSpace, pages: range) -> None:
        """Maps the chunks that pages lack.

        Raises:
            NoRoomError: there are too few.
        """
        self._clear(space, space.shared(pages))
        missing = sum(map(len, space.runs(pages)))
        if missing:
            with self._waiting():
                self._back_all(space, pages, missing)

    def _back_all(self, space: AddressSpace, pages: range, missing: int) -> None:
        self._gather(missing, space, pages)
        self._clear(space, space.shared(pages))  # what was found on the way may be behind two of them
        runs = [*space.runs(pages)]
        missing = sum(map(len, runs))
        self._clear(space, (page for run in runs for page in run))
        chunks = [self.free.pop() for _ in range(min(missing, len(self.free)))]
        chunks += self._longest_idle(missing - len(chunks), space, pages)
        try:
            for run in runs:
                self._map(space, run, chunks)
        finally:
            self.free.extend(each for each in chunks if not each.pages)  # after a failure

    def _map(self, space: AddressSpace, run: range, chunks: list[Chunk]) -> None:
        """Maps the last ones of some chunks behind a run of pages, and drops them from the list."""
        address, mapped = space.address + run.start * self.chunk_bytes, 0
        self._unsure.append((space, run))
        try:
            for mapped in range(len(run)):
                self._mapping.map(address + mapped * self.chunk_bytes, self.chunk_bytes, chunks[-1 - mapped].handle)
            mapped = len(run)
            self._mapping.allow(address, mapped * self.chunk_bytes)
        except (MemoryError, RuntimeError):
            if mapped:
                self._mapping.unmap(address, mapped * self.chunk_bytes)
            self._unsure.pop()
            raise
        for page in run:
            space.put(page, chunks[-1])
            self.idle[chunks.pop()] = None
        self._unsure.pop()

    def _gather(self, count: int, space: AddressSpace, pages: range) -> None:
        """Has `count` chunks for these pages: free ones, new ones, idle ones, those that small arrays left.

        Those of another stream are unmapped, when its work is over.

        Raises:
            NoRoomError: there are too few.
        """
        while len(self.free) < count and self._create():
            pass
        lacking = count - len(self.free)
        if lacking <= 0:
            return
        chosen = self._longest_idle(lacking, space, pages)
        if len(chosen) < lacking:
            self._free_more()
            chosen = self._longest_idle(lacking, space, pages)
        if len(chosen) < lacking:
            has = len(self.free) + len(chosen)
            is_limit = self.limit_bytes is not None and self.held_bytes + self.chunk_bytes > self.limit_bytes
            raise NoRoomError(f'{format_bytes(count * self.chunk_bytes)} of chunks are needed, '
                              f'{format_bytes(has * self.chunk_bytes)} are free',
                              (count - has) * self.chunk_bytes if is_limit else 0)
        self.detach([chunk for chunk in chosen if chunk.space is not space])

    def _longest_idle(self, count: int, space: AddressSpace, pages: range) -> list[Chunk]:
        """So many idle chunks, or all there are, but for those that these pages have already."""
        theirs = {space.chunk(page) for page in pages}
        return [*itertools.islice((each for each in self.idle if each not in theirs), count)]

    def _create(self) -> bool:
        """Takes one more chunk from the driver; False if the limit or the device refuses."""
        if self.limit_bytes is not None and self.held_bytes + self.chunk_bytes > self.limit_bytes:
            self.is_full = True
            return False
        try:
            chunk = Chunk(self._mapping.create(self.chunk_bytes))
        except NoRoomError:
            self.is_full = True
            return False
        self._all[chunk] = None
        self.held_bytes += self.chunk_bytes
        self.free.append(chunk)
        return True

    def detach(self, chunks: list[Chunk]) -> None:
        """Unmaps idle chunks everywhere, when no work uses them any more."""
        try:
            for space in {chunk.space: None for chunk in chunks if chunk.space is not None}:
                self._clear(space, [page for chunk in chunks if chunk.space is space for page in chunk.pages])
        finally:  # those that are unmapped, also where others could not be
            for chunk in chunks:
                if not chunk.pages:
                    del self.idle[chunk]
                    self.free.append(chunk)

    def _clear(self, space: AddressSpace, pages: Iterable[int]) -> None:
        """Unmaps what is behind pages without users, when the work that used them is over; if a wait fails, none."""
        pages = sorted(page for page in pages if space.chunk(page) is not None)
        if pages:
            self._finish(space, pages)
        for run in _runs(pages):
            self._unsure.append((space, run))
            try:
                self._mapping.unmap(space.address + run.start * self.chunk_bytes, len(run) * self.chunk_bytes)
            except (MemoryError, RuntimeError):
                self._unsure.pop()
                raise
            for page in run:
                space.remove(page)
            self._unsure.pop()

    def _finish(self, space: AddressSpace, pages: Iterable[int]) -> None:
        """Waits for the work that used pages without users."""
        if self.has_streams:
            self._mapping.synchronize()
            return
        now: Timestamp | None = None
        moments: dict[int, Timestamp] = {}
        for page in pages:
            moment = space.since(page)
            if moment is None:  # nothing was recorded when it was freed
                moment = now = now or self.timestamps.record(space.stream)
            moments[id(moment)] = moment
        for moment in moments.values():
            self.timestamps.wait(moment)

    def recount(self, spaces: Iterable[AddressSpace]) -> None:
        """After an interrupt: unmaps what may be mapped, which no block has, and counts anew, in all spaces too."""
        while self._unsure:
            space, run = self._unsure[-1]
            for page in run:
                with contextlib.suppress(MemoryError, RuntimeError):  # nothing is behind it
                    self._mapping.unmap(space.address + page * self.chunk_bytes, self.chunk_bytes)
                space.remove(page)
            self._unsure.pop()
        for chunk in self._all:
            chunk.pages.clear()
            chunk.used_by = -1
        for space in spaces:
            space.recount()
        idle = [each for each in {**self.idle, **self._all} if each.pages and each.used_by < 0]
        self.idle.clear()
        self.idle.update(dict.fromkeys(idle))
        self.free[:] = [each for each in self._all if not each.pages]
        self.held_bytes = len(self._all) * self.chunk_bytes


def _runs(pages: list[int]) -> Iterator[range]:
    """Numbers in rising order as runs of consecutive ones."""
    first = 0
    for index in range(1, len(pages) + 1):
        if index == len(pages) or pages[index] != pages[index - 1] + 1:
            yield range(pages[first], pages[index - 1] + 1)
            first = index
