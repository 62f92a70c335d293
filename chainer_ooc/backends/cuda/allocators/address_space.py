"""Addresses of one stream: which are free, and which chunks of physical memory are behind them.

    addresses  |  a  |.. free ..|   b   |. free .|  c  |........ free, never used ........
    pages      [  3  ][  7  ][  1  ][  5  ][  3  ][  2  ][    ][    ]      number of the chunk behind each page
    users         1      1      1      1      .      1                     blocks that live on the page

A block is placed by bytes, in units of 512; a page behind the end of one block and the start of the next belongs to
both. Free extents that touch are one. A chunk may be behind several pages, of which one at most has users: that has the
chunk, and the others (above, the second page with the chunk 3) lack one meanwhile. So whatever is freed serves any
request that fits, with no call of the driver, and a page that had to have another chunk in one iteration has it in the
next one too.

Who has a block is one entry of `owned`, which one assignment changes. All else is counted from it, and counted anew
where a KeyboardInterrupt came within `take` or `give`: extents, users, whose each chunk is.

Left out: the driver (`virtual`).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any

from chainer_ooc.backends.cuda.allocators.ledger import End
from chainer_ooc.backends.cuda.allocators.timestamps import Timestamp


class BlockPlace(End):
    """Where a block is: `size_bytes` of `space` from `offset` on; kept once it has ended, for another of its size."""

    __slots__ = ('is_kept', 'offset', 'space')

    offset: int
    is_kept: bool
    space: AddressSpace


class Chunk:
    """Physical memory of one size.

    Attributes:
        handle: the driver's.
        space: in which it is mapped, or was at last.
        pages: of that, behind which it is.
        used_by: the one of these that has users; -1 while it is idle.
    """

    __slots__ = ('handle', 'pages', 'space', 'used_by')

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.space: AddressSpace | None = None
        self.pages: list[int] = []
        self.used_by = -1


class AddressSpace:
    """See the module. Offsets count from `address`, pages from there too.

    Args:
        address: the first one.
        size_bytes: of all addresses, a multiple of `chunk_bytes`.
        chunk_bytes: of one chunk, and of one page.
        stream: whose work uses the memory; kept alive, as events will be recorded on it.
        idle: takes the chunks that no block has any more, and loses those that one takes.

    Attributes:
        owned: the places of blocks, by their offsets.
    """

    def __init__(self, address: int, size_bytes: int, chunk_bytes: int, stream: Any, idle: dict[Chunk, None]) -> None:
        self.address, self.size_bytes, self.stream = address, size_bytes, stream
        self._chunk_bytes, self._idle = chunk_bytes, idle
        count = size_bytes // chunk_bytes
        self.owned: dict[int, BlockPlace] = {}
        self._chunks: list[Chunk | None] = [None] * count
        self._users = [0] * count
        self._since: list[Timestamp | None] = [None] * count
        self._ends = {0: size_bytes}  # of each free extent, by its start
        self._starts = [0]
        self._by_size = [(size_bytes, 0)]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is mapped."""
        return not any(self._chunks)

    def place(self, size_bytes: int) -> int | None:
        """The offset at which a block would lack the fewest chunks; None where it fits nowhere.

        Among several, that in the smallest extent: best fit. A chunk that is behind two of its pages counts twice.
        """
        best, fewest = None, len(self._users) + 1
        for index in range(bisect.bisect_left(self._by_size, (size_bytes, 0)), len(self._by_size)):
            extent_bytes, start = self._by_size[index]
            end = start + extent_bytes
            for offset in (start,) if end == self.size_bytes else (start, end - size_bytes):
                missing = self.missing(self.pages(offset, size_bytes), fewest)
                if not missing:
                    return offset
                if missing < fewest:
                    best, fewest = offset, missing
        return best

    def missing(self, pages: range, most: int) -> int:
        """How many of these pages lack a chunk; it is not counted beyond `most`."""
        missing = 0
        for page in pages:
            chunk = self._chunks[page]
            if chunk is None or chunk.used_by not in (-1, page):
                missing += 1
                if missing >= most:
                    break
        return missing

    def pages(self, offset: int, size_bytes: int) -> range:
        """Numbers of the pages with these addresses."""
        return range(offset // self._chunk_bytes, -(-(offset + size_bytes) // self._chunk_bytes))

    def shared(self, pages: range) -> list[int]:
        """Usable pages whose chunk is behind an earlier usable one of these too: a block cannot have both."""
        seen: set[Chunk] = set()
        found = []
        for page in pages:
            chunk = self._chunks[page]
            if chunk is not None and len(chunk.pages) > 1 and self._has_chunk(page):
                if chunk in seen:
                    found.append(page)
                seen.add(chunk)
        return found

    def runs(self, pages: range) -> Iterator[range]:
        """Those that lack a chunk, in runs."""
        first = pages.start
        for page in pages:
            if self._has_chunk(page):
                if first < page:
                    yield range(first, page)
                first = page + 1
        if first < pages.stop:
            yield range(first, pages.stop)

    def chunk(self, page: int) -> Chunk | None:
        """What is behind a page."""
        return self._chunks[page]

    def since(self, page: int) -> Timestamp | None:
        """When the work of the last block on a page was given; None where nothing was recorded since."""
        return self._since[page]

    def put(self, page: int, chunk: Chunk) -> None:
        """Notes that an idle chunk is behind a page."""
        self._chunks[page], self._since[page] = chunk, None
        chunk.space = self
        chunk.pages.append(page)

    def remove(self, page: int) -> None:
        """Notes that nothing is behind a page any more."""
        chunk, self._chunks[page] = self._chunks[page], None
        self._since[page] = None
        if chunk is not None and page in chunk.pages:  # else an interrupt came in the midst of this, or of `put`
            chunk.pages.remove(page)

    def take(self, place: BlockPlace) -> None:
        """Takes addresses that are free, and whose pages are all usable, for a block."""
        offset, size_bytes = place.offset, place.size_bytes
        self.owned[offset] = place
        start = self._starts[bisect.bisect_right(self._starts, offset) - 1]
        end = self._drop(start)
        if offset > start:
            self._add(start, offset)
        if offset + size_bytes < end:
            self._add(offset + size_bytes, end)
        users = self._users
        for page in self.pages(offset, size_bytes):
            users[page] += 1
            if users[page] == 1:
                chunk = self._chunks[page]
                if chunk is not None:
                    del self._idle[chunk]
                    chunk.used_by = page

    def give(self, place: BlockPlace) -> range:
        """Makes a block's addresses free; returns the pages without users."""
        offset, size_bytes = place.offset, place.size_bytes
        del self.owned[offset]
        start, end = offset, offset + size_bytes
        at = bisect.bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == end:
            end = self._drop(end)
        if at and self._ends[self._starts[at - 1]] == start:
            start = self._starts[at - 1]
            self._drop(start)
        self._add(start, end)
        pages = self.pages(offset, size_bytes)
        first, behind = pages.start, pages.stop
        users = self._users
        for page in pages:
            users[page] -= 1
            if not users[page]:
                chunk = self._chunks[page]
                if chunk is not None:
                    self._idle[chunk] = None
                    chunk.used_by = -1
        first += bool(users[first])
        behind -= behind > first and bool(users[behind - 1])
        return range(first, behind)

    def recount(self) -> None:
        """Counts all anew from what is owned and what is behind each page, of chunks that are said to be nowhere.

        Since when a page has no users is not known any more.
        """
        self._users = [0] * len(self._users)
        self._since = [None] * len(self._since)
        self._ends = {}
        free = 0
        for offset in sorted(self.owned):
            if free < offset:
                self._ends[free] = offset
            free = offset + self.owned[offset].size_bytes
            for page in self.pages(offset, free - offset):
                self._users[page] += 1
        if free < self.size_bytes:
            self._ends[free] = self.size_bytes
        self._starts = sorted(self._ends)
        self._by_size = sorted((end - start, start) for start, end in self._ends.items())
        for page, chunk in enumerate(self._chunks):
            if chunk is not None:
                chunk.space = self
                chunk.pages.append(page)
                if self._users[page]:
                    chunk.used_by = page

    def note(self, pages: range, moment: Timestamp | None) -> None:
        """Says since when pages without users are used by nothing that the stream has been given."""
        self._since[pages.start:pages.stop] = [moment] * len(pages)

    def _has_chunk(self, page: int) -> bool:
        """Whether the chunk behind a page is its own, or idle."""
        chunk = self._chunks[page]
        return chunk is not None and chunk.used_by in (-1, page)

    def _add(self, start: int, end: int) -> None:
        self._ends[start] = end
        bisect.insort(self._starts, start)
        bisect.insort(self._by_size, (end - start, start))

    def _drop(self, start: int) -> int:
        """Forgets a free extent; returns its end."""
        end = self._ends.pop(start)
        del self._starts[bisect.bisect_left(self._starts, start)]
        del self._by_size[bisect.bisect_left(self._by_size, (end - start, start))]
        return end
