"""Arrays and the memory under them, for every array library that a device uses.

Execution moves storage, not arrays (P4): several views may share one block of memory, and each has to come back with
its own shape, strides and offset. A *root* is the array that owns the block; a `Layout` is how a view lies on it.

Left out: arrays whose block belongs to somebody else (a file that others mapped, shared memory, a foreign buffer),
arrays of Python objects and subclasses of ndarray. `root_of` gives None for them, and they are never moved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.host.block import Block
from chainer_ooc.backends.host.mapping import Mapping

#: NPY_ARRAY_WRITEABLE. Reading `flags.writeable` itself warns for what numpy.broadcast_arrays gave.
_WRITEABLE = 0x400


@dataclass(frozen=True)
class Layout:
    """How an array lies on its root: dtype, shape, strides in bytes, offset in bytes, and whether it may be written."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset_bytes: int
    writeable: bool

    @property
    def size(self) -> int:
        """Number of elements, as of an array."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of axes, as of an array."""
        return len(self.shape)

    def writable(self) -> Layout:
        """The same, for an array that may be written."""
        return replace(self, writeable=True)


def root_of(array: Any) -> np.ndarray[Any, Any] | None:
    """Returns the array that owns the memory of `array`, or None if that memory cannot be moved."""
    if type(array) is not np.ndarray or array.dtype.hasobject:
        return None
    while type(array.base) is np.ndarray:
        array = array.base
    owns = (array.base is None and array.flags.owndata) or type(array.base) in (Block, Mapping)
    if not owns or not array.nbytes or array.dtype.hasobject:
        return None
    return array  # type: ignore[no-any-return]


def layout_of(array: np.ndarray[Any, Any], root: np.ndarray[Any, Any]) -> Layout:
    """Describes `array` as a view of `root`, which must be ``root_of(array)``."""
    offset_bytes = array.ctypes.data - root.ctypes.data
    return Layout(array.dtype, array.shape, array.strides, offset_bytes, bool(array.flags.num & _WRITEABLE))


def flat_bytes(root: np.ndarray[Any, Any]) -> ByteArray | None:
    """Returns the root's block as bytes without copying, or None if it is not one gapless block.

    The axes are put in order of their strides first: NumPy gives results the layout of their operands, so an owner may
    well be transposed.
    """
    order = sorted(range(root.ndim), key=lambda axis: -root.strides[axis])
    gapless = root.transpose(order)
    if not gapless.flags.c_contiguous:
        return None
    return gapless.reshape(-1).view(np.uint8)


def view(block: ByteArray, layout: Layout) -> np.ndarray[Any, Any]:
    """Lays an array over a block of bytes."""
    array: np.ndarray[Any, Any] = np.ndarray(
        layout.shape, layout.dtype, buffer=block, offset=layout.offset_bytes, strides=layout.strides)
    if not layout.writeable:
        array.flags.writeable = False
    return array
