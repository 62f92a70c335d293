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
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES  # `rounded_up` would be a call more for each copy


class Extents:
    """Extents of a file of `end_bytes`, which never shrinks; `free_bytes` are those of its free extents."""

    def __init__(self) -> None:
        self.end_bytes = 0
        self.free_bytes = 0
        self._free: list[tuple[int, int]] = []  # (start, end), ascending; never two that touch

    def place(self, nbytes: int) -> tuple[int, int]:
        """Chooses an extent for ``nbytes`` without taking it.

        Returns:
            Its start and the bytes by which the file must grow for it: 0 where a free extent is large enough.
        """
        size = aligned(nbytes)
        if not size:
            return 0, 0
        fitting = [(end - start, start) for start, end in self._free if end - start >= size]
        if fitting:
            return min(fitting)[1], 0
        start = self.end_bytes
        if self._free and self._free[-1][1] == self.end_bytes:
            start = self._free[-1][0]
        return start, start + size - self.end_bytes

    def take(self, start: int, nbytes: int) -> None:
        """Takes the extent that ``place`` has chosen last; grows the file's end where that was said."""
        end = start + aligned(nbytes)
        if end == start:
            return
        if end > self.end_bytes:
            grown_from, self.end_bytes = self.end_bytes, end
            self.give(grown_from, end - grown_from)
        at = bisect.bisect_left(self._free, (start,))
        free_end = self._free[at][1]
        assert self._free[at][0] == start and free_end >= end, 'an extent was taken that place() did not choose'
        self._free[at:at + 1] = [(end, free_end)] if free_end > end else []
        self.free_bytes -= end - start

    def give(self, start: int, nbytes: int) -> None:
        """Makes an extent that was taken free again, joined with its free neighbours."""
        end = start + aligned(nbytes)
        self.free_bytes += end - start
        at = upto = bisect.bisect_left(self._free, (start,))
        if upto < len(self._free) and self._free[upto][0] == end:
            end, upto = self._free[upto][1], upto + 1
        if at and self._free[at - 1][1] == start:
            start, at = self._free[at - 1][0], at - 1
        if end > start:
            self._free[at:upto] = [(start, end)]
