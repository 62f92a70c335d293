"""NumPy's arrays and the memory under them; see `backends.arrays`.

The root of an array is the array that owns its memory: each view has that as its base.

Left out: arrays whose block NumPy does not own (a mapped file, shared memory, a foreign buffer), arrays of Python
objects and subclasses of ndarray. `root_of` gives None for them, and they are never moved.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.host.block import HeapBlock
from chainer_ooc.backends.layout import Layout
from chainer_ooc.backends.spill.mapping import Mapping

Array = np.ndarray[Any, Any]

#: NPY_ARRAY_WRITEABLE. Reading `flags.writeable` itself warns for what numpy.broadcast_arrays gave.
_WRITEABLE = 0x400
#: Columns of the two sums of a checksum. Words that change places are noticed unless they lie in one column of both:
#: primes, so that these are 134 MB apart.
COLUMNS = (4093, 4099)
#: Of an array with gaps so much is copied at once for a checksum.
PART_BYTES = 1 << 20


def root_of(array: Any) -> Array | None:
    """Returns the array that owns the memory of `array`, or None if that memory cannot be moved."""
    base = array.base
    while type(base) is np.ndarray:
        array, base = base, base.base
    owns = array.flags.owndata if base is None else type(base) in (HeapBlock, Mapping)
    if not owns or not array.nbytes or array.dtype.hasobject:
        return None
    return array  # type: ignore[no-any-return]


def layout_of(array: Array, root: Array) -> Layout:
    """Describes `array` as a view of `root`."""
    offset_bytes = 0 if array is root else address_of(array) - address_of(root)
    return Layout(array.dtype, array.shape, array.strides, offset_bytes, bool(array.flags.num & _WRITEABLE))


def address_of(array: Array) -> int:
    """Where an array begins; in a fraction of the time that `array.ctypes` takes."""
    return int(array.__array_interface__['data'][0])


def flat_bytes(root: Array) -> ByteArray | None:
    """Returns the root's block as bytes without copying, or None if it is not one gapless block.

    NumPy gives results the layout of their operands, so an owner may well be transposed.
    """
    if root.flags.c_contiguous:
        return root.reshape(-1).view(np.uint8)
    gapless: Array = in_order(root)
    if not gapless.flags.c_contiguous:
        return None
    return gapless.reshape(-1).view(np.uint8)


def in_order(array: Any) -> Any:
    """The same array, of whatever library, with its axes in the order in which its elements lie in memory."""
    return array.transpose(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))


def view(block: ByteArray, layout: Layout) -> Array:
    """Lays an array over a block of bytes."""
    array: Array = np.ndarray(
        layout.shape, layout.dtype, buffer=block, offset=layout.offset_bytes, strides=layout.strides)
    if not layout.writeable:
        array.flags.writeable = False
    return array


def zeros(nbytes: int) -> ByteArray:
    """Returns a new block of bytes."""
    return np.zeros(nbytes, np.uint8)


def links(holder: Any) -> tuple[Any, ...]:
    """What an array refers to on the way to its root."""
    return (holder.base,) if isinstance(holder.base, np.ndarray) else ()


def checksum(array: Array) -> int:
    """A number that changes with the content; about half as fast as memory can be read."""
    flat = flat_bytes(array)
    if flat is None:  # such as images cut out of larger ones: no copy of all of them has room anywhere
        crc = 0
        for part in np.array_split(array, -(-array.nbytes // PART_BYTES), axis=int(np.argmax(array.shape))):
            crc = zlib.crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data, crc)
        return crc
    if flat.size < 8 * COLUMNS[-1]:
        return zlib.crc32(flat.data)
    crc = 0
    for columns in COLUMNS:  # of all the bytes it would be half as fast, or a quarter
        words = flat[:flat.size // (8 * columns) * 8 * columns].view(np.uint64).reshape(-1, columns)
        crc = zlib.crc32(np.add.reduce(words, axis=0).view(np.uint8).data, crc)
        crc = zlib.crc32(flat[words.nbytes:].data, crc)
    return crc
