"""Batch normalization of channels-last maps, in compiled code of our own (_batch_norm.c), for Chainer's (patch 0080).

oneDNN has it too, and adds all pixels of a channel up in one number of float32: of 16 x 224 x 224 pixels after a ReLU
two digits of the variance are left, of the gradients three. Here sums are of double precision, and what they are taken
of lies near 0, so that nothing cancels. Forward reads the map twice, backward map and gradient twice: the least, and
less than oneDNN.

Without a C compiler as chainer_ooc was installed, or without OpenMP, NumPy computes it.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_int64, c_void_p
from typing import Any

import numpy as np

from chainer_ooc import extension
from chainer_ooc.kernels.onednn.layouts import Array, channels_last, empty
from chainer_ooc.kernels.onednn.seam import serves

#: Of pixels; each has sums of its own. They are the same whatever the number of threads, and so are the bits.
_MOST_BLOCKS, _LEAST_PIXELS = 32, 64


class _Shape(ctypes.Structure):
    """A map as the C code sees it."""

    _fields_ = (('pixels', c_int64), ('channels', c_int64), ('blocks', c_int64))


def batch_normalization(axis: tuple[int, ...], gamma: Array, beta: Array, x: Array, eps: float) -> Any:
    """Batch normalization in training: the result, and mean and variance of each channel; or None."""
    library = _library() if _normalizes(axis, x, gamma, beta) else None
    if library is None:
        return None
    x = channels_last(x)
    shape = _shape_of(x)
    origin = np.moveaxis(x, 1, -1).reshape(shape.pixels, -1)[0].copy()
    origin[~np.isfinite(origin)] = 0
    sums = _new_sums(shape)
    library.batch_norm_squares(shape, _address(x), _address(origin), _address(sums))
    above, squares = sums[0] / shape.pixels
    exact_mean, variance = origin + above, np.maximum(squares - above ** 2, 0)
    mean, slope = exact_mean.astype(np.float32), gamma / np.sqrt(variance + eps)
    factors = [each.astype(np.float32) for each in (slope, beta - (exact_mean - mean) * slope)]
    y = empty(x.shape)
    library.batch_norm_normalize(shape, _address(x), _address(mean), *map(_address, factors), _address(y))
    return y, mean, variance.astype(np.float32)


def batch_normalization_grad(axis: tuple[int, ...], gamma: Array, gy: Array, x: Array, mean: Array, inv_std: Array
                             ) -> Any:
    """The gradients of batch normalization in training, of the input, of gamma and of beta; or None."""
    library = _library() if _normalizes(axis, x, gy, gamma, mean, inv_std) else None
    if library is None:
        return None
    x, gy, mean = channels_last(x), channels_last(gy), np.ascontiguousarray(mean)
    shape, deviation = _shape_of(x), inv_std.astype(np.float64)
    sums = _new_sums(shape)
    library.batch_norm_products(shape, _address(gy), _address(x), _address(mean), _address(sums))
    gbeta, ggamma = sums[0, 0], sums[0, 1] * deviation
    slope = gamma * deviation
    factors = [each.astype(np.float32) for each in (
        slope, slope * deviation * ggamma / shape.pixels, slope * gbeta / shape.pixels)]
    gx = empty(x.shape)
    library.batch_norm_differentiate(
        shape, _address(gy), _address(x), _address(mean), *map(_address, factors), _address(gx))
    return gx, ggamma.astype(np.float32), gbeta.astype(np.float32)


def _normalizes(axis: tuple[int, ...], x: Array, *others: Array) -> bool:
    """Whether it is computed here. Of one pixel alone gradients are 0, which NumPy gives without rounding."""
    return axis == (0, *range(2, x.ndim)) and serves(x, *others) and x.size > x.shape[1]


def _shape_of(x: Array) -> _Shape:
    pixels = x.size // x.shape[1]
    return _Shape(pixels, x.shape[1], max(1, min(_MOST_BLOCKS, pixels // _LEAST_PIXELS)))


def _new_sums(shape: _Shape) -> Array:
    return np.empty((shape.blocks, 2, shape.channels))


def _address(array: Array) -> c_void_p:
    return c_void_p(array.ctypes.data)


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = extension.load(ctypes.CDLL, 'kernels', 'onednn', '_batch_norm')  # calls let go of Python's lock
    except OSError:
        return None
    for name, arguments in (('squares', 3), ('products', 4), ('normalize', 5), ('differentiate', 7)):
        function = getattr(library, f'batch_norm_{name}')
        function.argtypes, function.restype = (_Shape, *(c_void_p,) * arguments), None
    return library
