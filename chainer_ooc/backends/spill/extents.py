"""Where in the spill file each copy lies: best fit over a list of free extents that coalesce.

Space that is released is used again, lowest waste first, for two reasons. The file stays as small as the largest set of
copies that were ever alive together. And a page of the file that has been written before is still in the page cache, so
writing it again is a plain copy, at more than twice the speed of a first write (figures in ``spill_file``).

A training iteration repeats its sizes, so best fit finds exact fits from the second iteration on. The list is short
(tens of entries) and is searched from end to end.

Left out: giving space back to the file system before the file is closed; locks. One thread owns an instance, see
``store``.
"""

from __future__ import annotations

import bisect
import os

#: Extents start and end at multiples of this, so that two copies never share a page of the page cache.
ALIGNMENT_BYTES = max(4096, os.sysconf('SC_PAGE_SIZE'))


def aligned(nbytes: int) -> int:
    """Returns ``nbytes`` rounded up to whole pages."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Extents:
    """Extents of a file of `end_bytes`, which never shrinks; `free_bytes` are those of its free extents."""

    def __init__(self) -> None:
        self.end_bytes = 0
        self.free_bytes = 0
        self._starts: list[int] = []  # of the free extents, ascending; never two that touch
        self._sizes: dict[int, int] = {}  # start -> size of that free extent

    def place(self, nbytes: int) -> tuple[int, int]:
        """Chooses an extent for ``nbytes`` without taking it.

        Returns:
            Its start and the bytes by which the file must grow for it: 0 where a free extent is large enough.
        """
        size = aligned(nbytes)
        if not size:
            return 0, 0
        fitting = [start for start in self._starts if self._sizes[start] >= size]
        if fitting:
            return min(fitting, key=lambda start: (self._sizes[start], start)), 0
        start = self._last_start()
        return start, start + size - self.end_bytes

    def take(self, start: int, nbytes: int) -> None:
        """Takes the extent that ``place`` has chosen last; grows the file's end where that was said."""
        size = aligned(nbytes)
        if not size:
            return
        self._grow_to(start + size)
        left = self._remove(start) - size
        assert left >= 0, 'an extent was taken that place() did not choose'
        if left:
            self._insert(start + size, left)

    def give(self, start: int, nbytes: int) -> None:
        """Makes an extent that was taken free again, joined with its free neighbours."""
        size = aligned(nbytes)
        if not size:
            return
        at = bisect.bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start + size:
            size += self._remove(start + size)
        if at and self._starts[at - 1] + self._sizes[self._starts[at - 1]] == start:
            before = self._starts[at - 1]
            size += self._remove(before)
            start = before
        self._insert(start, size)

    def _last_start(self) -> int:
        """Where the free extent at the file's end begins, or the end."""
        if self._starts and self._starts[-1] + self._sizes[self._starts[-1]] == self.end_bytes:
            return self._starts[-1]
        return self.end_bytes

    def _grow_to(self, end_bytes: int) -> None:
        if end_bytes > self.end_bytes:
            start, self.end_bytes = self.end_bytes, end_bytes
            self.give(start, end_bytes - start)

    def _insert(self, start: int, size: int) -> None:
        bisect.insort(self._starts, start)
        self._sizes[start] = size
        self.free_bytes += size

    def _remove(self, start: int) -> int:
        del self._starts[bisect.bisect_left(self._starts, start)]
        size = self._sizes.pop(start)
        self.free_bytes -= size
        return size
