"""Chainer's pooling and unpooling functions, in tiles.

The functions are called by the seams of patch 0060 with the function node and the array, and leave on the node what
Chainer's own way leaves there (input shape and dtype, indexes of maxima, widths of windows) with the same bits.

One thing differs: Chainer's gradient of AveragePoolingND with ``pad_value=None`` divides the gradient that it is given
in place. Here the caller's array is left alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from chainer_ooc.kernels.tiled import pool
from chainer_ooc.kernels.tiled.tiles import workspace_bytes
from chainer_ooc.kernels.tiled.windows import Array, Windows, windows_over


def max_pooling_nd(node: Any, x: Array) -> tuple[Array]:
    """Forward of MaxPoolingND."""
    _remember(node, x)
    y, node.indexes = pool.max_pool(x, _windows_nd(node, x.shape[2:]), workspace_bytes())
    return y,


def max_pooling_nd_grad(node: Any, gy: Array) -> tuple[Array]:
    """Forward of MaxPoolingNDGrad."""
    func = node.func
    windows = _between(func._in_shape[2:], func.ksize, func.stride, func.pad, gy.shape[2:])
    return pool.place(gy, func.indexes, windows, np.dtype(func._in_dtype), workspace_bytes()),


def max_pooling_nd_with_indexes(node: Any, x: Array) -> tuple[Array]:
    """Forward of MaxPoolingNDWithIndexes."""
    return pool.pick(x, node.func.indexes, _windows_nd(node.func, x.shape[2:]), -math.inf, workspace_bytes()),


def average_pooling_2d(node: Any, x: Array) -> tuple[Array]:
    """Forward of AveragePooling2D."""
    _remember(node, x)
    return _mean(x, windows_over(x.shape[2:], *_geometry_2d(node))),


def average_pooling_2d_grad(node: Any, gy: Array) -> tuple[Array]:
    """Forward of AveragePooling2DGrad."""
    windows = _between(node._in_shape[2:], *_geometry_2d(node), gy.shape[2:])
    return pool.spread(gy, windows, workspace_bytes(), after=windows.elements),


def average_pooling_nd(node: Any, x: Array) -> tuple[Array]:
    """Forward of AveragePoolingND."""
    windows = _windows_nd(node, x.shape[2:])
    _remember(node, x)
    node.width = None
    if node.pad_value is not None:
        return _mean(x, windows),
    node.width = node._get_pooling_width(np, x.shape[2:], x.dtype)
    return pool.sum_pool(x, windows, workspace_bytes(), divisor=node.width),


def average_pooling_nd_grad(node: Any, gy: Array) -> tuple[Array]:
    """Forward of AveragePoolingNDGrad."""
    func = node.func
    windows = _between(func._in_shape[2:], func.ksize, func.stride, func.pad, gy.shape[2:])
    if func.pad_value is None:
        return pool.spread(gy, windows, workspace_bytes(), before=func.width),
    return pool.spread(gy, windows, workspace_bytes(), after=windows.elements),


def unpooling_2d(node: Any, x: Array) -> tuple[Array]:
    """Forward of Unpooling2D, whose output size is known, but for integer scales, which need no columns."""
    return pool.spread(x, _between((node.outh, node.outw), *_geometry_2d(node), x.shape[2:]), workspace_bytes()),


def unpooling_2d_grad(node: Any, gy: Array) -> tuple[Array]:
    """Forward of Unpooling2DGrad, but for integer scales."""
    windows = windows_over(gy.shape[2:], *_geometry_2d(node), cover_all=node.cover_all)
    return pool.sum_pool(gy, windows, workspace_bytes()),


def unpooling_nd(node: Any, x: Array) -> tuple[Array]:
    """Forward of UnpoolingND, whose output size is known."""
    return pool.spread(x, _between(node.outs, node.ksize, node.stride, node.pad, x.shape[2:]), workspace_bytes()),


def unpooling_nd_grad(node: Any, gy: Array) -> tuple[Array]:
    """Forward of UnpoolingNDGrad."""
    return pool.sum_pool(gy, _windows_nd(node, gy.shape[2:]), workspace_bytes()),


def upsampling_2d(node: Any, x: Array) -> tuple[Array]:
    """Forward of Upsampling2D, whose output size is known."""
    windows = windows_over((node.outh, node.outw), *_geometry_2d(node), cover_all=node.cover_all)
    return pool.place(x, _checked(node.indexes, windows), windows, x.dtype, workspace_bytes()),


def upsampling_2d_grad(node: Any, gy: Array) -> tuple[Array]:
    """Forward of Upsampling2DGrad."""
    windows = windows_over(gy.shape[2:], *_geometry_2d(node), cover_all=node.cover_all)
    return pool.pick(gy, _checked(node.indexes, windows), windows, 0, workspace_bytes()),


def _mean(x: Array, windows: Windows) -> Array:
    total_dtype = np.dtype(np.float32) if x.dtype == np.float16 else x.dtype
    return pool.sum_pool(x, windows, workspace_bytes(), total_dtype=total_dtype, divisor=windows.elements)


def _remember(node: Any, x: Array) -> None:
    node._in_shape = x.shape
    node._in_dtype = x.dtype


def _geometry_2d(node: Any) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    return (node.kh, node.kw), (node.sy, node.sx), (node.ph, node.pw)


def _windows_nd(node: Any, size: tuple[int, ...]) -> Windows:
    return windows_over(size, node.ksize, node.stride, node.pad, cover_all=node.cover_all)


def _between(size: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...],
             out: tuple[int, ...]) -> Windows:
    return Windows(tuple(size), kernel, stride, pad, (1,) * len(kernel), tuple(out))


def _checked(indexes: npt.NDArray[np.integer[Any]], windows: Windows) -> npt.NDArray[np.integer[Any]]:
    """Returns indexes that a user gave, if each names an element of the window.

    Raises:
        IndexError: one does not.
    """
    if indexes.size and not 0 <= indexes.min() <= indexes.max() < windows.elements:
        raise IndexError(
            f'pooling indexes are from {indexes.min()} to {indexes.max()}, but a window of shape {windows.kernel} has '
            f'elements 0 to {windows.elements - 1}; use the indexes of a pooling with this window')
    return indexes
