"""Pooling with one window an image, which is what global pooling is.

A window may have as many elements as the image has pixels, so going through them one by one would be slow, and columns
are no larger than the image. Chainer's own calls run on the columns of some planes at a time: NumPy reduces them along
the innermost axis here, in another order than the running results of `pool`, and the bits have to be the same.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from chainer_ooc.kernels.tiled.tiles import Buffer, planes
from chainer_ooc.kernels.tiled.windows import Array, Windows


def columns_bytes(images: Array, windows: Windows) -> int:
    """Scratch of one plane."""
    return images.itemsize * windows.elements


def max_pool(x: Array, windows: Windows, workspace_bytes: int) -> tuple[Array, npt.NDArray[np.intp]]:
    """See `pool.max_pool`."""
    y = np.empty((*x.shape[:2], *windows.out), x.dtype)
    indexes = np.empty(y.shape, np.intp)
    buffer = Buffer(x.dtype)
    for tile in planes(x, columns_bytes(x, windows), workspace_bytes):
        columns = _columns(x[tile], windows, -math.inf, buffer)
        y[tile] = columns.max(axis=2).reshape(y[tile].shape)
        indexes[tile] = columns.argmax(axis=2).reshape(y[tile].shape)
    return y, indexes


def place(gy: Array, indexes: npt.NDArray[np.integer[Any]], windows: Windows, dtype: np.dtype[Any],
          workspace_bytes: int) -> Array:
    """See `pool.place`."""
    gx = np.empty((*gy.shape[:2], *windows.size), dtype)
    elements, pixels = windows.overlap()
    buffer = Buffer(dtype)
    for tile in planes(gx, columns_bytes(gx, windows), workspace_bytes):
        images = gx[tile]
        columns = buffer.shaped(*images.shape[:2], windows.elements)
        columns.fill(0)
        np.put_along_axis(columns, _flat(indexes[tile]), _flat(gy[tile]).astype(dtype, copy=False), 2)
        images.fill(0)
        images[pixels] += columns.reshape(*images.shape[:2], *windows.kernel)[elements]
    return gx


def pick(x: Array, indexes: npt.NDArray[np.integer[Any]], windows: Windows, outside: float,
         workspace_bytes: int) -> Array:
    """See `pool.pick`."""
    y = np.empty((*x.shape[:2], *windows.out), x.dtype)
    buffer = Buffer(x.dtype)
    for tile in planes(x, columns_bytes(x, windows), workspace_bytes):
        columns = _columns(x[tile], windows, outside, buffer)
        y[tile] = np.take_along_axis(columns, _flat(indexes[tile]), 2).reshape(y[tile].shape)
    return y


def total(x: Array, windows: Windows, buffer: Buffer, sums: Array) -> None:
    """Sums the windows of some planes into `sums` of shape (n, c, 1, ...), in whose dtype it adds."""
    columns = _columns(x, windows, 0, buffer).reshape(*x.shape[:2], *windows.kernel, *windows.out)
    np.sum(columns, axis=tuple(range(2, 2 + len(windows.kernel))), dtype=sums.dtype, out=sums)


def spread(values: Array, windows: Windows, images: Array) -> None:
    """Sets images to the value of their window, (n, c, 1, ...), or zero where it does not look."""
    images.fill(0)
    pixels = windows.overlap()[1]
    images[pixels] += values  # not assigned: zero plus a negative zero is a positive one


def _columns(x: Array, windows: Windows, outside: float, buffer: Buffer) -> Array:
    """Returns the elements of each window, of shape (n, c, elements); the images themselves if they can be read so."""
    elements, pixels = windows.overlap()
    if windows.kernel == windows.size and not any(windows.pad) and x.flags.c_contiguous:
        return x.reshape(*x.shape[:2], windows.elements)
    columns = buffer.shaped(*x.shape[:2], *windows.kernel)
    if x[pixels].size < columns.size:
        columns.fill(outside)
    columns[elements] = x[pixels]
    return columns.reshape(*x.shape[:2], windows.elements)


def _flat(windows: Array) -> Array:
    return windows.reshape(*windows.shape[:2], 1)
