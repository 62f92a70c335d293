"""Pooling without columns: a running result over the taps of the window, some planes at a time.

Every result has the bits of Chainer's own way, and so have the indexes of maxima: the first maximum of a window in C
order wins, the first NaN wins over all, and what is outside of the image is minus infinity (maximum) or zero (sum).
Sums run in the order in which NumPy reduces columns, and a gradient's terms in the order of the taps.

A tile is a number of planes (image and channel) whose pixels fit the second cache, and whose scratch keeps within the
workspace; it depends on shapes, dtypes and that setting alone (P2). Nothing is summed across planes, so the tiles have
no influence on the bits.

Where each image has one window alone (global pooling) its elements are many and the running result is short: see
`single`. Left out: taking maxima along one axis after the other, which would be faster for large windows of stride 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from chainer_ooc.backends.host.chunks import single
from chainer_ooc.backends.host.chunks.tiles import Buffer, planes
from chainer_ooc.backends.host.chunks.windows import Array, Tap, Windows

# What NumPy begins a sum with: newer ones keep the sign of a sum of negative zeros.
SUM_START = np.sum(np.full(1, -0.0))


def max_pool(x: Array, windows: Windows, workspace_bytes: int) -> tuple[Array, npt.NDArray[np.intp]]:
    """Takes the maximum of each window.

    Args:
        x: images of shape (n, c, *windows.size), any layout.
        windows: not dilated.
        workspace_bytes: scratch that may be taken.

    Returns:
        Maxima of x's dtype, and which tap each one is; both C-contiguous, of shape (n, c, *windows.out).
    """
    if windows.count == 1:
        return single.max_pool(x, windows, workspace_bytes)
    y = np.empty((*x.shape[:2], *windows.out), x.dtype)
    indexes = np.empty(y.shape, np.intp)
    taps = windows.taps()
    rank = _rank_dtype(windows)
    buffers = Buffer(x.dtype), Buffer(rank), Buffer(rank), Buffer(np.dtype(np.bool_))
    plane_bytes = windows.count * (x.itemsize + 2 * rank.itemsize + 1)
    for tile in planes(x, plane_bytes, workspace_bytes):
        maxima = y[tile]
        values, ranks, step, larger = (buffer.shaped(*maxima.shape) for buffer in buffers)
        maxima.fill(-math.inf)
        ranks.fill(0)
        for number, tap in enumerate(taps):
            box = tap.inside
            values[box] = x[tile][tap.image]
            np.greater(values[box], maxima[box], out=larger[box])
            np.maximum(maxima[box], values[box], out=maxima[box])
            # Later taps have larger numbers, so that the maximum of both keeps the last one that was larger.
            np.multiply(larger[box].view(np.uint8), rank.type(number), out=step[box])
            np.maximum(ranks[box], step[box], out=ranks[box])
        if np.isnan(maxima, out=larger).any():
            _rank_nans(x[tile], taps, ranks)
        indexes[tile] = ranks
    return y, indexes


def _rank_nans(x: Array, taps: list[Tap], ranks: Array) -> None:
    for number, tap in reversed(list(enumerate(taps))):
        ranks[tap.inside][np.isnan(x[tap.image])] = number


def place(gy: Array, indexes: npt.NDArray[np.integer[Any]], windows: Windows, dtype: np.dtype[Any],
          workspace_bytes: int) -> Array:
    """Adds each value to the pixel that its window's index names: the gradient of `max_pool`.

    Args:
        gy: of shape (n, c, *windows.out), any layout.
        indexes: of the same shape, number of a tap.
        windows: those of `max_pool`.
        dtype: of the result.
        workspace_bytes: scratch that may be taken.

    Returns:
        C-contiguous array of shape (n, c, *windows.size).
    """
    if windows.count == 1:
        return single.place(gy, indexes, windows, dtype, workspace_bytes)
    gx = np.empty((*gy.shape[:2], *windows.size), dtype)
    taps = windows.taps()
    rank = _rank_dtype(windows)
    buffers = Buffer(dtype), Buffer(dtype), Buffer(rank), Buffer(np.dtype(np.bool_))
    plane_bytes = windows.count * (2 * dtype.itemsize + rank.itemsize + 1)
    for tile in planes(gx, plane_bytes, workspace_bytes):
        images = gx[tile]
        images.fill(0)
        values, terms, ranks, chosen = (buffer.shaped(*images.shape[:2], *windows.out) for buffer in buffers)
        values[...] = gy[tile]
        ranks[...] = indexes[tile]
        finite = np.isfinite(values, out=chosen).all()
        for number, tap in enumerate(taps):
            box = tap.inside
            np.equal(ranks[box], number, out=chosen[box])
            if finite:
                np.multiply(values[box], chosen[box], out=terms[box])
            else:
                terms[box] = np.where(chosen[box], values[box], dtype.type(0))
            np.add(images[tap.image], terms[box], out=images[tap.image])
    return gx


def pick(x: Array, indexes: npt.NDArray[np.integer[Any]], windows: Windows, outside: float,
         workspace_bytes: int) -> Array:
    """Takes from each window the pixel that its index names: the transpose of `place`.

    Args:
        x: images of shape (n, c, *windows.size), any layout.
        indexes: of shape (n, c, *windows.out), number of a tap.
        windows: those of `max_pool`.
        outside: the value of what is not on the image.
        workspace_bytes: scratch that may be taken.

    Returns:
        C-contiguous array of shape (n, c, *windows.out) and x's dtype.
    """
    if windows.count == 1:
        return single.pick(x, indexes, windows, outside, workspace_bytes)
    y = np.full((*x.shape[:2], *windows.out), outside, x.dtype)
    taps = windows.taps()
    chosen_buffer = Buffer(np.dtype(np.bool_))
    for tile in planes(x, windows.count, workspace_bytes):
        chosen = chosen_buffer.shaped(*y[tile].shape)
        for number, tap in enumerate(taps):
            np.equal(indexes[tile][tap.inside], number, out=chosen[tap.inside])
            np.copyto(y[tile][tap.inside], x[tile][tap.image], where=chosen[tap.inside])
    return y


def sum_pool(x: Array, windows: Windows, workspace_bytes: int, *, total_dtype: np.dtype[Any] | None = None,
             divisor: Array | int | None = None) -> Array:
    """Sums each window, or averages it.

    Args:
        x: images of shape (n, c, *windows.size), any layout.
        windows: not dilated.
        workspace_bytes: scratch that may be taken.
        total_dtype: in which to sum, or None for x's.
        divisor: of shape `windows.out` or a number by which sums are divided, or None.

    Returns:
        C-contiguous array of shape (n, c, *windows.out) and x's dtype.
    """
    y = np.empty((*x.shape[:2], *windows.out), x.dtype)
    dtype = total_dtype or x.dtype
    taps = windows.taps() if windows.count > 1 else []
    total_buffer, columns_buffer = Buffer(dtype), Buffer(x.dtype)
    plane_bytes = windows.count * dtype.itemsize + single.columns_bytes(x, windows)
    for tile in planes(x, plane_bytes, workspace_bytes):
        total = total_buffer.shaped(*y[tile].shape)
        if windows.count == 1:
            single.total(x[tile], windows, columns_buffer, total)
        else:
            _sum_running(x[tile], taps, total)
        if divisor is None:
            y[tile] = total
        else:
            np.true_divide(total, divisor, out=y[tile], casting='unsafe')
    return y


def _sum_running(x: Array, taps: list[Tap], total: Array) -> None:
    total.fill(SUM_START)
    for tap in taps:
        total[tap.inside] += x[tap.image]
        for box in tap.outside:
            total[box] += 0  # turns a negative zero into a positive one, as a zero from outside does


def spread(gy: Array, windows: Windows, workspace_bytes: int, *, before: Array | None = None,
           after: int | None = None) -> Array:
    """Adds each value to all pixels of its window: the gradient of `sum_pool`.

    Args:
        gy: of shape (n, c, *windows.out), any layout.
        windows: those of `sum_pool`.
        workspace_bytes: scratch that may be taken.
        before: divisor of the values, of shape `windows.out`, or None.
        after: divisor of the pixels, or None.

    Returns:
        C-contiguous array of shape (n, c, *windows.size) and gy's dtype.
    """
    gx = np.empty((*gy.shape[:2], *windows.size), gy.dtype)
    # One window an image sees each pixel once, so that its taps can all be added at once.
    boxes = [((), windows.overlap()[1])] if windows.count == 1 else [(tap.inside, tap.image) for tap in windows.taps()]
    quotient_buffer = Buffer(gy.dtype)
    for tile in planes(gx, windows.count * gy.itemsize, workspace_bytes):
        images, values = gx[tile], gy[tile]
        if before is not None:
            quotient = quotient_buffer.shaped(*values.shape)
            values = np.divide(values, before, out=quotient, casting='same_kind')
        images.fill(0)
        for inside, image in boxes:
            np.add(images[image], values[inside], out=images[image])
        if after is not None:
            images /= after
    return gx


def _rank_dtype(windows: Windows) -> np.dtype[Any]:
    return np.min_scalar_type(windows.elements - 1)
