"""Addresses of one stream: which are free, which have memory behind them, and who uses that memory.

    addresses  |  a  |.. free ..|   b   |. free .|  c  |........ free, never used ........
    chunks     [ 1 ][ 1 ][ 0 ][ 1 ][ 1 ][ 1 ][ 1 ][ 1 ]                  1: mapped
    users        1    1    0    1    2    1    1    1                    0 and mapped: idle, others may have the chunk

A block is placed by bytes, in units of 512; a chunk behind the end of one block and the start of the next belongs to
both. Free extents that touch are one. So whatever is freed serves any request that fits, with no call of the driver,
as long as it is mapped.

All but the first and the last chunk of a block are its alone. So whole stretches are noted at once: a map of 2 GB has
250 chunks, and their times would be what an allocation takes.

Left out: the driver (`virtual`).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any

from chainer_ooc.backends.cuda.allocators.timestamps import Timestamp

#: Blocks start and end at multiples of this, as CuPy's do.
UNIT_BYTES = 512


class Space:
    """See the module. Offsets count from `address`, chunks from there too.

    Args:
        address: the first one.
        size_bytes: of all addresses, a multiple of `chunk_bytes`.
        chunk_bytes: of one chunk.
        stream: whose work uses the memory; kept alive, as events will be recorded on it.
    """

    def __init__(self, address: int, size_bytes: int, chunk_bytes: int, stream: Any) -> None:
        self.address, self.size_bytes, self.stream = address, size_bytes, stream
        self._chunk_bytes = chunk_bytes
        count = size_bytes // chunk_bytes
        self._handles: list[Any] = [None] * count
        self._mapped, self._idle = bytearray(count), bytearray(count)
        self._users = [0] * count
        self._since: list[Timestamp | None] = [None] * count
        self._ends = {0: size_bytes}  # of each free extent, by its start
        self._starts = [0]
        self._by_size = [(size_bytes, 0)]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is mapped."""
        return 1 not in self._mapped

    def place(self, size_bytes: int) -> tuple[int, int] | None:
        """Where a block would need the fewest chunks mapped, and how many these are; None where it fits nowhere.

        Among several, that in the smallest extent: best fit.
        """
        best: tuple[int, int] | None = None
        for index in range(bisect.bisect_left(self._by_size, (size_bytes, 0)), len(self._by_size)):
            extent_bytes, start = self._by_size[index]
            end = start + extent_bytes
            for offset in (start,) if end == self.size_bytes else (start, end - size_bytes):
                missing = self.missing(offset, size_bytes)
                if not missing:
                    return offset, 0
                if best is None or missing < best[1]:
                    best = offset, missing
        return best

    def chunks(self, offset: int, size_bytes: int) -> range:
        """Numbers of the chunks behind addresses."""
        return range(offset // self._chunk_bytes, -(-(offset + size_bytes) // self._chunk_bytes))

    def missing(self, offset: int, size_bytes: int) -> int:
        """How many of the chunks behind addresses are not mapped."""
        first, behind = offset // self._chunk_bytes, -(-(offset + size_bytes) // self._chunk_bytes)
        return self._mapped.count(0, first, behind)

    def runs(self, chunks: range) -> Iterator[range]:
        """Those of consecutive chunks that are not mapped, as runs."""
        first = self._mapped.find(0, chunks.start, chunks.stop)
        while first >= 0:
            behind = self._mapped.find(1, first, chunks.stop)
            behind = chunks.stop if behind < 0 else behind
            yield range(first, behind)
            first = self._mapped.find(0, behind, chunks.stop)

    def put(self, chunk: int, handle: Any) -> None:
        """Notes that a chunk is mapped; it is idle until a block takes it."""
        self._handles[chunk], self._since[chunk] = handle, None
        self._mapped[chunk] = self._idle[chunk] = 1

    def remove(self, chunk: int) -> Any:
        """Notes that an idle chunk is not mapped any more; returns its handle."""
        handle, self._handles[chunk] = self._handles[chunk], None
        self._since[chunk] = None
        self._mapped[chunk] = self._idle[chunk] = 0
        return handle

    def take(self, offset: int, size_bytes: int) -> None:
        """Takes addresses that are free, and all mapped, for a block."""
        start = self._starts[bisect.bisect_right(self._starts, offset) - 1]
        end = self._drop(start)
        if offset > start:
            self._add(start, offset)
        if offset + size_bytes < end:
            self._add(offset + size_bytes, end)
        chunks = self.chunks(offset, size_bytes)
        count = len(chunks)
        self._idle[chunks.start:chunks.stop] = bytes(count)
        self._since[chunks.start:chunks.stop] = [None] * count
        self._users[chunks.start] += 1
        if count > 1:
            self._users[chunks.start + 1:chunks.stop - 1] = [1] * (count - 2)
            self._users[chunks.stop - 1] += 1

    def give(self, offset: int, size_bytes: int) -> range:
        """Makes a block's addresses free; returns the chunks that are idle now."""
        start, end = offset, offset + size_bytes
        at = bisect.bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == end:
            end = self._drop(end)
        if at and self._ends[self._starts[at - 1]] == start:
            start = self._starts[at - 1]
            self._drop(start)
        self._add(start, end)
        chunks = self.chunks(offset, size_bytes)
        first, behind = chunks.start, chunks.stop
        self._users[first + 1:behind - 1] = [0] * (behind - first - 2)
        for chunk in {first, behind - 1}:
            self._users[chunk] -= 1
        first += bool(self._users[first])
        behind -= behind > first and bool(self._users[behind - 1])
        self._idle[first:behind] = b'\1' * (behind - first)
        return range(first, behind)

    def note(self, chunks: range, moment: Timestamp) -> None:
        """Says since when idle chunks are used by nothing that the stream has been given."""
        self._since[chunks.start:chunks.stop] = [moment] * len(chunks)

    def idle(self) -> Iterator[tuple[range, Timestamp | None]]:
        """Idle chunks in runs, and since when they are; None where nothing was recorded."""
        first = self._idle.find(1)
        while first >= 0:
            behind = self._idle.find(0, first)
            behind = len(self._idle) if behind < 0 else behind
            begin = first
            for chunk in range(first + 1, behind + 1):
                if chunk == behind or self._since[chunk] is not self._since[begin]:
                    yield range(begin, chunk), self._since[begin]
                    begin = chunk
            first = self._idle.find(1, behind)

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
