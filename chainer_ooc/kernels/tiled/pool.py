"""Pooling without columns: a running result over the taps of the window, some planes at a time.

Every result has the bits of Chainer's own way, and so have the indexes of maxima: the first maximum of a window in C
order wins, the first NaN wins over all, and what is outside of the image is minus infinity (maximum) or zero (sum).
Sums run in the order in which NumPy reduces columns, and a gradient's terms in the order of the taps.

A tile is a number of planes (image and channel) whose pixels fit the second cache, and whose scratch keeps within the
workspace; it depends on shapes, dtypes and that setting alone (P2). Nothing is summed across planes, so the tiles have
no influence on the bits. The order of pixels that makes this fast is in `lattice`.

Where each image has one window alone (global pooling) its elements are many and the running result is short: see
`global_pooling`. Left out: taking maxima along one axis after the other, which would be faster for large windows of
stride 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from chainer_ooc.kernels.tiled import global_pooling
from chainer_ooc.kernels.tiled.lattice import Lattice, lattice_of
from chainer_ooc.kernels.tiled.tiles import Buffer, planes
from chainer_ooc.kernels.tiled.windows import Array, Windows

# What NumPy begins a sum with: newer ones keep the sign of a sum of negative zeros.
SUM_START = np.sum(np.full(1, -0.0))
BOOL = np.dtype(np.bool_)


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
        return global_pooling.max_pool(x, windows, workspace_bytes)
    y = np.empty((*x.shape[:2], *windows.out), x.dtype)
    indexes = np.empty(y.shape, np.intp)
    lattice, rank = lattice_of(windows), _rank_dtype(windows)
    pixel_buffer = Buffer(x.dtype)
    buffers = Buffer(x.dtype), Buffer(rank), Buffer(rank), Buffer(BOOL)
    place_bytes = (lattice.phases.elements + 1) * x.itemsize + 2 * rank.itemsize + 1
    for tile in planes(x, lattice.places * place_bytes, workspace_bytes):
        count, channels = y[tile].shape[:2]
        pixels = lattice.sort(x[tile], -math.inf, pixel_buffer)
        places = [buffer.shaped(pixels.shape[1]) for buffer in buffers]
        _run_maximum(pixels, lattice, *(place[:lattice.length(count * channels)] for place in places))
        y[tile] = lattice.by_window(places[0], count, channels)
        indexes[tile] = lattice.by_window(places[1], count, channels)
    return y, indexes


def _run_maximum(pixels: Array, lattice: Lattice, maxima: Array, ranks: Array, step: Array, larger: Array) -> None:
    maxima[...] = pixels[0, :len(maxima)]
    ranks.fill(0)
    for number, (phase, offset) in enumerate(lattice.taps[1:], 1):
        values = pixels[phase, offset:offset + len(maxima)]
        np.greater(values, maxima, out=larger)
        np.maximum(maxima, values, out=maxima)
        # Later taps have larger numbers, so that the maximum of both keeps the last one that was larger.
        np.multiply(larger.view(np.uint8), ranks.dtype.type(number), out=step)
        np.maximum(ranks, step, out=ranks)
    if np.isnan(maxima, out=larger).any():
        for number, (phase, offset) in reversed(list(enumerate(lattice.taps))):
            ranks[np.isnan(pixels[phase, offset:offset + len(maxima)], out=larger)] = number


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
        return global_pooling.place(gy, indexes, windows, dtype, workspace_bytes)
    gx = np.empty((*gy.shape[:2], *windows.size), dtype)
    lattice, rank = lattice_of(windows), _rank_dtype(windows)
    pixel_buffer, value_buffer = Buffer(dtype), Buffer(dtype)
    buffers = Buffer(rank), Buffer(dtype), Buffer(BOOL)
    place_bytes = (lattice.phases.elements + 2) * dtype.itemsize + rank.itemsize + 1
    for tile in planes(gx, lattice.places * place_bytes, workspace_bytes):
        count, channels = gx[tile].shape[:2]
        pixels = lattice.cleared(count, channels, pixel_buffer)
        values = value_buffer.shaped(pixels.shape[1])
        values.fill(0)
        lattice.by_window(values, count, channels)[...] = gy[tile]
        ranks, terms, chosen = (buffer.shaped(pixels.shape[1]) for buffer in buffers)
        lattice.by_window(ranks, count, channels)[...] = indexes[tile]
        length = lattice.length(count * channels)
        _add_chosen(pixels, lattice, values[:length], ranks[:length], terms[:length], chosen[:length])
        lattice.unsort(pixels, gx[tile])
    return gx


def _add_chosen(pixels: Array, lattice: Lattice, values: Array, ranks: Array, terms: Array, chosen: Array) -> None:
    finite = np.isfinite(values, out=chosen).all()
    for number, (phase, offset) in enumerate(lattice.taps):
        np.equal(ranks, number, out=chosen)
        if finite:
            np.multiply(values, chosen, out=terms)
        else:
            terms.fill(0)
            np.copyto(terms, values, where=chosen)
        pixels[phase, offset:offset + len(values)] += terms


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
        return global_pooling.pick(x, indexes, windows, outside, workspace_bytes)
    y = np.empty((*x.shape[:2], *windows.out), x.dtype)
    lattice, rank = lattice_of(windows), _rank_dtype(windows)
    pixel_buffer = Buffer(x.dtype)
    buffers = Buffer(rank), Buffer(x.dtype), Buffer(BOOL)
    place_bytes = (lattice.phases.elements + 1) * x.itemsize + rank.itemsize + 1
    for tile in planes(x, lattice.places * place_bytes, workspace_bytes):
        count, channels = y[tile].shape[:2]
        pixels = lattice.sort(x[tile], outside, pixel_buffer)
        ranks, picked, chosen = (buffer.shaped(pixels.shape[1]) for buffer in buffers)
        lattice.by_window(ranks, count, channels)[...] = indexes[tile]
        length = lattice.length(count * channels)
        for number, (phase, offset) in enumerate(lattice.taps):
            np.equal(ranks, number, out=chosen)
            np.copyto(picked[:length], pixels[phase, offset:offset + length], where=chosen[:length])
        y[tile] = lattice.by_window(picked, count, channels)
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
    total_buffer, pixel_buffer = Buffer(dtype), Buffer(x.dtype)
    lattice = None if windows.count == 1 else lattice_of(windows)
    plane_bytes = (lattice.places * (dtype.itemsize + lattice.phases.elements * x.itemsize) if lattice else
                   dtype.itemsize + global_pooling.columns_bytes(x, windows))
    for tile in planes(x, plane_bytes, workspace_bytes):
        if lattice:
            totals = _run_sum(x[tile], lattice, pixel_buffer, total_buffer)
        else:
            totals = total_buffer.shaped(*y[tile].shape)
            global_pooling.total(x[tile], windows, pixel_buffer, totals)
        if divisor is None:
            y[tile] = totals
        else:
            np.true_divide(totals, divisor, out=y[tile], casting='unsafe')
    return y


def _run_sum(images: Array, lattice: Lattice, pixel_buffer: Buffer, total_buffer: Buffer) -> Array:
    count, channels = images.shape[:2]
    pixels = lattice.sort(images, 0, pixel_buffer)
    totals = total_buffer.shaped(pixels.shape[1])
    totals.fill(SUM_START)
    stretch = totals[:lattice.length(count * channels)]
    with np.errstate(invalid='ignore', over='ignore'):  # between two rows there may be sums that nobody asked for
        for phase, offset in lattice.taps:
            stretch += pixels[phase, offset:offset + len(stretch)]
    return lattice.by_window(totals, count, channels)


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
    lattice = None if windows.count == 1 else lattice_of(windows)
    pixel_buffer, value_buffer = Buffer(gy.dtype), Buffer(gy.dtype)
    plane_bytes = lattice.places * (lattice.phases.elements + 1) * gy.itemsize if lattice else gy.itemsize
    for tile in planes(gx, plane_bytes, workspace_bytes):
        count, channels = gx[tile].shape[:2]
        if lattice:
            pixels = lattice.cleared(count, channels, pixel_buffer)
            values = value_buffer.shaped(pixels.shape[1])
            values.fill(0)
            _divide(gy[tile], before, lattice.by_window(values, count, channels))
            stretch = values[:lattice.length(count * channels)]
            for phase, offset in lattice.taps:
                pixels[phase, offset:offset + len(stretch)] += stretch
            lattice.unsort(pixels, gx[tile])
        else:
            values = value_buffer.shaped(*gy[tile].shape)
            _divide(gy[tile], before, values)
            global_pooling.spread(values, windows, gx[tile])
        if after is not None:
            gx[tile] /= after
    return gx


def _divide(values: Array, divisor: Array | None, out: Array) -> None:
    if divisor is None:
        out[...] = values
    else:
        np.divide(values, divisor, out=out, casting='same_kind')


def _rank_dtype(windows: Windows) -> np.dtype[Any]:
    return np.min_scalar_type(windows.elements - 1)
