"""Near memory for swap-ins: a mapping of its own for each block, outside of the heap.

A block that arrives early lives long, between arrays that live for one call. In the heap it would keep the places of
its short-lived neighbours from growing together again: with ResNet50 the resident memory was 40 % above what was in
use. A mapping goes back to the system whole. Its pages are made and cleared while the swap-in thread reads into them,
beside the computation.

Small pages cost time: reading into a block of 6 MB takes 1.0 ms of a processor where its place is left to chance, and
0.26 ms where it starts at a huge page. Linux (6.7 and later) puts a mapping there if its length is a multiple of huge
pages, so it is made with the length rounded up, and then cut to what the block needs: RLIMIT_DATA counts untouched
pages too, and with ResNet50's maps the rest was 15 % of all. Huge pages are asked for only where whole ones fit the
block, so that its last part holds no more than it needs.

Left out: older kernels, where it is all left to chance as before.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.host import limits
from chainer_ooc.backends.layout import GAP_BYTES

#: Smaller blocks are worth no mapping; they come from the heap.
LEAST_MAPPED_BYTES = 1 << 18

#: A huge page of x86 and of ARM with small pages of 4 kB. Where it is another size, nothing but speed is lost.
_HUGE_PAGE_BYTES = 2 << 20


class HeapBlock(mmap.mmap):
    """A mapping that owns a block of near memory; `arrays.root_of` knows it by its type."""


class Blocks:
    """What `arena.Arena` is to a backend, where there is none: each block is new, and none is kept for the next."""

    def allocate(self, nbytes: int) -> ByteArray:
        """Returns `nbytes` of near memory with any content.

        Raises:
            MemoryError: the system refuses.
        """
        if nbytes < LEAST_MAPPED_BYTES:
            return np.empty(nbytes, np.uint8)
        return np.ndarray(nbytes, np.uint8, buffer=make(nbytes))

    def nbytes(self) -> int:
        """Bytes that are kept: none."""
        return 0

    def lent(self) -> contextlib.AbstractContextManager[None]:
        """Nothing to do, in whatever thread."""
        return contextlib.nullcontext()

    def begin(self, *_: Any, **__: Any) -> None:
        """Nothing to do: arrays come from the heap as it is."""

    ask = set_limited = offer = rest = contain = keep_at_most = close = begin

    def serves(self) -> bool:
        """Whether arrays come from here: they do not."""
        return False


def make(nbytes: int) -> HeapBlock:
    """Maps near memory for an array of `nbytes`.

    Raises:
        MemoryError: the system refuses.
    """
    block_bytes = nbytes + GAP_BYTES
    whole_bytes = nbytes // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
    mapped_bytes = block_bytes if whole_bytes in (0, block_bytes) else whole_bytes + _HUGE_PAGE_BYTES
    try:
        block = HeapBlock(-1, mapped_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if mapped_bytes != block_bytes:
            block.resize(block_bytes)
    except OSError as error:
        raise MemoryError(f'no {nbytes} bytes of near memory: {error.strerror}') from None
    if whole_bytes:
        with contextlib.suppress(OSError):  # a kernel built without them
            block.madvise(mmap.MADV_HUGEPAGE, 0, whole_bytes)
    return block


def is_available(nbytes: int) -> bool:
    """Whether the system would map so many bytes now, by RLIMIT_DATA, RLIMIT_AS and its own judgement.

    Where a limit is in force it is tried: 4 us, and 200 us beside a swap-in, whose page faults hold the same lock.
    """
    if not limits.is_limited():
        return nbytes <= limits.PHYSICAL_BYTES
    try:
        mmap.mmap(-1, max(1, nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return False
    return True
