"""Near memory for swap-ins: a mapping of its own for each block, outside of the heap.

A block that arrives early lives long, between arrays that live for one call. In the heap it would keep the places of
its short-lived neighbours from growing together again: with ResNet50 the resident memory was 40 % above what was in
use. A mapping goes back to the system the moment the last view of it dies. Its pages are made and cleared while the
swap-in thread reads into them, beside the computation.
"""

from __future__ import annotations

import mmap

import numpy as np

from chainer_ooc.backends.base import ByteArray

#: Smaller blocks are worth no mapping; they come from the heap.
LEAST_MAPPED_BYTES = 1 << 18


class Block(mmap.mmap):
    """A mapping that owns a block of near memory; `arrays.root_of` knows it by its type."""


def allocate(nbytes: int) -> ByteArray:
    """Returns `nbytes` of uninitialised near memory.

    Raises:
        MemoryError: the system refuses.
    """
    if nbytes < LEAST_MAPPED_BYTES:
        return np.empty(nbytes, np.uint8)
    try:
        block = Block(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f'no {nbytes} bytes of near memory: {error.strerror}') from None
    if hasattr(mmap, 'MADV_HUGEPAGE'):
        block.madvise(mmap.MADV_HUGEPAGE)
    return np.ndarray(nbytes, np.uint8, buffer=block)
