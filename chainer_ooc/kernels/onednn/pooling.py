"""Max pooling and average pooling by oneDNN, called by Chainer's functions as those of `seam` are (patch 0081).

oneDNN notes which element of a window was its maximum as Chainer does: its number in C order, padding counted, the
first of equal ones. That is a channels-last array of one byte an element (four for windows of 256 elements and more),
where NumPy's argmax takes eight. Nodes keep it as it is; a program that asks for indexes gets those of NumPy's dtype.

It passes over NaN, and begins with the lowest number of float32, so that it would not find the maximum of a window with
NaN, or without anything above that number. One look at the minimum of the input tells; such an input is pooled by
`tiled.pool`, which has NumPy's results in bounded memory. Nodes are left alike, so that to the memory manager it is the
same graph. Left to Chainer's own way are windows without a pixel, all in padding.
"""

from __future__ import annotations

import math
from ctypes import c_int
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainer_ooc.kernels.onednn.layouts import Array, channels_last, empty, is_channels_last
from chainer_ooc.kernels.onednn.library import UnsupportedError, dimensions, made_once
from chainer_ooc.kernels.onednn.primitives import (
    FORWARD_TRAINING,
    QUERIES,
    RESULT,
    RESULT_GRADIENT,
    SOURCE,
    SOURCE_GRADIENT,
    WORKSPACE,
    Primitive,
    Shape,
    channels_last_layout,
    loaded,
    pad_after,
)
from chainer_ooc.kernels.onednn.seam import or_none, serves
from chainer_ooc.kernels.tiled import pool
from chainer_ooc.kernels.tiled.windows import Windows

#: Algorithms.
MAXIMUM, MEAN_WITH_PADDING, MEAN_OF_PIXELS = 0x1ff, 0x2ff, 0x3ff

_DATA_TYPES = {np.dtype(np.int32): 4, np.dtype(np.uint8): 6}
_TILED_BYTES = 8 << 20
_LOWEST = np.finfo(np.float32).min


@dataclass(frozen=True)
class Pooling:
    """The geometry of pooling.

    Attributes:
        x_shape: of its input.
        y_shape: of its output.
        kernel: window of each axis.
        stride: of each axis.
        pad: before the input, of each axis.
    """

    x_shape: Shape
    y_shape: Shape
    kernel: Shape
    stride: Shape
    pad: Shape

    def has_empty_windows(self) -> bool:
        """Whether there are windows without a pixel."""
        return any(kernel <= pad or (out - 1) * stride - pad >= extent for kernel, pad, out, stride, extent in zip(
            self.kernel, self.pad, self.y_shape[2:], self.stride, self.x_shape[2:], strict=True))

    def index_dtype(self) -> np.dtype[Any]:
        """In which oneDNN notes elements of windows."""
        return np.dtype(np.uint8 if math.prod(self.kernel) < 256 else np.int32)

    def windows(self) -> Windows:
        """The same for `tiled`."""
        return Windows(self.x_shape[2:], self.kernel, self.stride, self.pad, (1,) * len(self.kernel), self.y_shape[2:])


# --- what Chainer's functions call ------------------------------------------------------------------------------------


@or_none
def max_pooling_nd(node: Any, x: Array) -> Any:
    """Forward of MaxPoolingND."""
    of = _pooling(node, x, node.cover_all)
    if of is None:
        return None
    x = channels_last(x)
    y, indexes = empty(of.y_shape), empty(of.y_shape, of.index_dtype())
    if _above_lowest(x):
        pooling(of, MAXIMUM, False).run({SOURCE: x, RESULT: y, WORKSPACE: indexes})
    else:
        for ours, found in zip((y, indexes), pool.max_pool(x, of.windows(), _TILED_BYTES), strict=True):
            np.copyto(ours, found, casting='unsafe')
    _remember(node, x)
    node.indexes = np.ascontiguousarray(indexes, np.intp) if node.return_indices else indexes
    return y,


@or_none
def max_pooling_nd_grad(node: Any, gy: Array) -> Any:
    """Forward of MaxPoolingNDGrad."""
    return _grad(node.func, gy, MAXIMUM, node.func.indexes)


@or_none
def average_pooling_2d(node: Any, x: Array) -> Any:
    """Forward of AveragePooling2D."""
    return _average(node, x, MEAN_WITH_PADDING)


@or_none
def average_pooling_2d_grad(node: Any, gy: Array) -> Any:
    """Forward of AveragePooling2DGrad."""
    return _grad(node, gy, MEAN_WITH_PADDING)


@or_none
def average_pooling_nd(node: Any, x: Array) -> Any:
    """Forward of AveragePoolingND."""
    found = _average(node, x, _mean(node))
    if found is not None:
        node.width = None if node.pad_value is not None else node._get_pooling_width(np, x.shape[2:], x.dtype)
    return found


@or_none
def average_pooling_nd_grad(node: Any, gy: Array) -> Any:
    """Forward of AveragePoolingNDGrad, which leaves the given gradient as it is."""
    return _grad(node.func, gy, _mean(node.func))


def _average(node: Any, x: Array, algorithm: int) -> Any:
    of = _pooling(node, x, cover_all=False)
    if of is None:
        return None
    y = empty(of.y_shape)
    pooling(of, algorithm, False).run({SOURCE: channels_last(x), RESULT: y})
    _remember(node, x)
    return y,


def _grad(node: Any, gy: Array, algorithm: int, indexes: Array | None = None) -> Any:
    """The gradient of pooling; `node` has what `_remember` left there."""
    if node._in_dtype != np.float32 or not serves(gy):
        return None
    of = Pooling(node._in_shape, gy.shape, *_windows(node))
    if of.has_empty_windows():
        return None
    computation = pooling(of, algorithm, True)
    gx = empty(of.x_shape)
    arrays = {RESULT_GRADIENT: channels_last(gy), SOURCE_GRADIENT: gx}
    if indexes is not None:
        arrays[WORKSPACE] = _as_noted(indexes, of.index_dtype())
    computation.run(arrays)
    return gx,


def _pooling(node: Any, x: Array, cover_all: bool) -> Pooling | None:
    """The geometry, or None where it is not for oneDNN."""
    from chainer.utils import conv

    if not serves(x):
        return None
    windows = _windows(node)
    outs = tuple(conv.get_conv_outsize(*each, cover_all=cover_all) for each in zip(x.shape[2:], *windows, strict=True))
    of = Pooling(x.shape, (*x.shape[:2], *outs), *windows)
    return None if min(outs) < 1 or of.has_empty_windows() else of


def _above_lowest(x: Array) -> bool:
    with np.errstate(invalid='ignore'):
        return bool(x.min() > _LOWEST)  # the minimum of an array with NaN is NaN


def _as_noted(indexes: Array, dtype: np.dtype[Any]) -> Array:
    """Indexes of maxima, from whichever way they come, as oneDNN notes them."""
    if indexes.dtype == dtype and is_channels_last(indexes):
        return indexes
    noted = empty(indexes.shape, dtype)
    np.copyto(noted, indexes, casting='unsafe')
    return noted


def _remember(node: Any, x: Array) -> None:
    node._in_shape, node._in_dtype = x.shape, x.dtype


def _mean(node: Any) -> int:
    return MEAN_OF_PIXELS if node.pad_value is None else MEAN_WITH_PADDING


def _windows(node: Any) -> tuple[Shape, Shape, Shape]:
    """Kernel, stride and padding of each axis."""
    if hasattr(node, 'kh'):
        return (node.kh, node.kw), (node.sy, node.sx), (node.ph, node.pw)
    return tuple(node.ksize), tuple(node.stride), tuple(node.pad)


# --- making primitives ------------------------------------------------------------------------------------------------


@made_once(256)
def pooling(of: Pooling, algorithm: int, backward: bool) -> Primitive:
    """Makes pooling, or its gradient.

    Raises:
        UnsupportedError: oneDNN cannot compute it, or notes indexes in another way than is known here.
    """
    library = loaded()
    x, y = channels_last_layout(library, of.x_shape), channels_last_layout(library, of.y_shape)
    layouts = {SOURCE_GRADIENT: x, RESULT_GRADIENT: y} if backward else {SOURCE: x, RESULT: y}
    geometry = c_int(algorithm), x, y, *map(dimensions, (
        of.stride, of.kernel, (0,) * len(of.kernel), of.pad,
        pad_after(of.x_shape, of.y_shape, of.kernel, of.stride, (1,) * len(of.kernel), of.pad)))
    descriptor = library.created('pooling_forward_primitive_desc_create', library.engine, c_int(FORWARD_TRAINING),
                                 *geometry, library.attributes)
    if algorithm == MAXIMUM:
        layouts[WORKSPACE] = channels_last_layout(library, of.y_shape, _DATA_TYPES[of.index_dtype()])
        noted = library.queried_descriptor(descriptor, QUERIES[WORKSPACE])
        if noted is None or not library.equal(noted, layouts[WORKSPACE]):
            raise UnsupportedError('oneDNN notes maxima in another layout than is known here')
    if backward:
        descriptor = library.created('pooling_backward_primitive_desc_create', library.engine, *geometry, descriptor,
                                     library.attributes)
    return Primitive(library, descriptor, layouts)
