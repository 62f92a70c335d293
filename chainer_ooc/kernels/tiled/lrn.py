"""Local response normalization with the bits of Chainer's own way, some images or rows at a time.

A pixel needs its neighbours across the channels only, so a tile is all channels of some images, or of some rows of one
image. Sums over neighbours grow in the array that is returned; the squares are the one array of scratch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainer_ooc.kernels.tiled.tiles import Buffer, tiles
from chainer_ooc.kernels.tiled.windows import Array

# Scratch of a tile: of 64 KB to 4 MB, 2 MB or 4 MB were best on a layer of AlexNet.
RESPONSE_TILE_BYTES = 1 << 21


@dataclass(frozen=True)
class Response:
    """The numbers of a normalization, named as Chainer names them: y = x * (k + alpha * sum of n squares) ** -beta."""

    n: int
    k: float
    alpha: float
    beta: float

    @property
    def slope(self) -> float:
        """The factor of the gradient's second term."""
        return 2 * self.alpha * self.beta

    def keeps(self, dtype: np.dtype[Any]) -> bool:
        """Returns whether arrays of the dtype keep it, which depends on the kinds of the numbers and NumPy's rules."""
        one = np.ones((1, 1), dtype)
        with np.errstate(all='ignore'):
            unit_scale = self.k + self.alpha * one
            made = unit_scale, unit_scale ** -self.beta, self.slope * one
        return all(array.dtype == dtype and array.shape == one.shape for array in made)


def normalize(x: Array, response: Response, workspace_bytes: int) -> tuple[Array, Array, Array]:
    """Normalizes images.

    Args:
        x: of shape (n, c, ...), any layout.
        response: numbers that keep x's dtype.
        workspace_bytes: scratch that may be taken.

    Returns:
        Normalized images, the sums k + alpha * ..., and these to the power of -beta; C-contiguous, of x's dtype.
    """
    y, unit_scale, scale = (np.empty(x.shape, x.dtype) for _ in range(3))
    buffer = Buffer(x.dtype)
    for tile in _tiles(x, workspace_bytes):
        pixels, units, scales = x[tile], unit_scale[tile], scale[tile]
        _sum_neighbours(np.square(pixels, out=buffer.shaped(*pixels.shape)), response.n, units)
        np.multiply(response.alpha, units, out=units)
        np.add(response.k, units, out=units)
        scales[...] = units
        scales **= -response.beta  # the operator: NumPy takes a short way for some exponents
        np.multiply(pixels, scales, out=y[tile])
    return y, unit_scale, scale


def gradient(x: Array, y: Array, gy: Array, unit_scale: Array, scale: Array, response: Response,
             workspace_bytes: int) -> Array:
    """Computes the gradient of the images.

    Args:
        x: of shape (n, c, ...), any layout, like all that follow.
        y: what `normalize` returned for it.
        gy: gradient of y.
        unit_scale: see y.
        scale: see y.
        response: numbers that keep x's dtype.
        workspace_bytes: scratch that may be taken.

    Returns:
        C-contiguous array of x's shape and dtype.
    """
    gx = np.empty(x.shape, x.dtype)
    buffer = Buffer(x.dtype)
    for tile in _tiles(x, workspace_bytes):
        slopes, out = gy[tile], gx[tile]
        scratch = buffer.shaped(*slopes.shape)
        np.multiply(y[tile], slopes, out=scratch)
        np.divide(scratch, unit_scale[tile], out=scratch)
        _sum_neighbours(scratch, response.n, out)
        np.multiply(response.slope, x[tile], out=scratch)
        np.multiply(scratch, out, out=scratch)
        np.multiply(slopes, scale[tile], out=out)
        np.subtract(out, scratch, out=out)
    return gx


def _sum_neighbours(terms: Array, n: int, sums: Array) -> None:
    sums[...] = terms
    for distance in range(1, n // 2 + 1):
        sums[:, distance:] += terms[:, :-distance]
        sums[:, :-distance] += terms[:, distance:]


def _tiles(x: Array, workspace_bytes: int) -> Iterator[tuple[slice, ...]]:
    image_bytes = math.prod(x.shape[1:]) * x.itemsize
    rows = x.shape[2] if x.ndim > 2 else 1
    for tile in tiles(x.shape[0], rows, image_bytes, min(workspace_bytes, RESPONSE_TILE_BYTES)):
        yield (tile.images, slice(None), tile.rows)[:x.ndim]
