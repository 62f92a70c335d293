"""Batch normalization with the bits of Chainer's own way, a few channels or images at a time.

Chainer makes three or four temporaries of the size of the feature map. Here every step runs in place on a tile that
fits the cache: channels where statistics are taken (the order of sums is in `channels`), else images. What a tile takes
besides inputs and outputs is counted: one array of its size, two where the dtype of the statistics is larger than that
of the map, and none for `affine` where it is the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chainer_ooc.kernels.tiled import channels as by_channel
from chainer_ooc.kernels.tiled.channels import channels_of, descends, like
from chainer_ooc.kernels.tiled.tiles import Buffer, planes
from chainer_ooc.kernels.tiled.windows import Array


def moments(x: Array, key: int, dtype: np.dtype[Any], workspace_bytes: int) -> tuple[Array, Array] | None:
    """Takes mean and variance of each channel.

    Args:
        x: feature map with at least one element.
        key: the axis of its channels.
        dtype: in which to compute, that of x or larger.
        workspace_bytes: scratch that may be taken.

    Returns:
        Two vectors of `dtype`, or None where the axes of x have no one order.
    """
    channels = channels_of(x, key)
    if channels is None:
        return None
    whole = None if x.dtype == dtype else x.mean(axis=_others(x, key), dtype=dtype)
    means, variances = np.empty(channels.count, dtype) if whole is None else whole, np.empty(channels.count, dtype)
    x, buffer = channels.view(x), Buffer(dtype)
    for part in channels.parts(dtype.itemsize, len(channels) * dtype.itemsize, workspace_bytes):
        pixels = x[channels.index(part)]
        if whole is None:
            means[part] = channels.mean(pixels)
        deviations = buffer.shaped(*pixels.shape)
        np.subtract(pixels, channels.along(means[part]), out=deviations)
        np.multiply(deviations, deviations, out=deviations)
        variances[part] = channels.mean(deviations)
    return means, variances


def affine(x: Array, mean: Array, inv_std: Array, gamma: Array, beta: Array, workspace_bytes: int) -> Array | None:
    """Normalizes, scales and shifts.

    Args:
        x: feature map with at least two axes and one element.
        mean: statistics and parameters, which broadcast with x and have one dtype, that of x or larger.
        inv_std: see mean.
        gamma: see mean.
        beta: see mean.
        workspace_bytes: scratch that may be taken.

    Returns:
        A map of x's shape, dtype and order of axes, or None where the axes of x have no one order.
    """
    channels = channels_of(x, 0)
    if channels is None:
        return None
    y, same = like(x.dtype, x), x.dtype == mean.dtype
    x, out = channels.view(x), channels.view(y)
    vectors = [channels.view(vector) for vector in (mean, inv_std, gamma, beta)]
    buffer = Buffer(mean.dtype)
    plane_bytes = 0 if same else int(np.prod(x.shape[2:])) * mean.itemsize
    for tile in planes(x, plane_bytes, workspace_bytes, by_channel.NORMALIZED_TILE_BYTES):
        hat = out[tile] if same else buffer.shaped(*x[tile].shape)
        mean, inv_std, gamma, beta = (_broadcast(vector, tile) for vector in vectors)
        _standardize(x[tile], mean, inv_std, hat)
        np.multiply(hat, gamma, out=hat)
        np.add(hat, beta, out=out[tile], casting='same_kind')
    return y


def gradients(x: Array, gy: Array, key: int, mean: Array, inv_std: Array, gamma: Array, workspace_bytes: int, *,
              fixed: bool) -> tuple[Array, Array, Array] | None:
    """Computes gradients of map, gamma and beta.

    Args:
        x: feature map with at least one element.
        gy: of its shape and dtype, any layout.
        key: the axis of its channels.
        mean: vectors of one dtype, that of x or larger.
        inv_std: see mean.
        gamma: see mean.
        workspace_bytes: scratch that may be taken.
        fixed: whether the statistics are constants.

    Returns:
        Map of x's dtype and vectors of gamma's, or None where the axes of maps have no one order.
    """
    scale = gamma * inv_std
    gx = like(x.dtype, gy) if fixed else like(x.dtype, x, gy)
    channels = channels_of(gx, key)
    if channels is None or channels_of(x, key) is None or (fixed and not descends(channels.view(x))):
        return None
    in_parts = gy.dtype == gamma.dtype and descends(channels.view(gy))
    gbeta = np.empty_like(gamma) if in_parts else gy.sum(axis=_others(gy, key), dtype=gamma.dtype)
    ggamma = np.empty_like(gbeta)
    inv_m = gamma.dtype.type(1. / len(channels))
    x, gy, gx_view = map(channels.view, (x, gy, gx))
    hat_buffer, product_buffer = Buffer(gamma.dtype), Buffer(gamma.dtype)
    same = gx.dtype == gamma.dtype
    channel_bytes = len(channels) * gamma.itemsize * (1 if same else 2)
    for part in channels.parts(gamma.itemsize, channel_bytes, workspace_bytes):
        index = channels.index(part)
        hat, slope, out = hat_buffer.shaped(*x[index].shape), gy[index], gx_view[index]
        product = out if same else product_buffer.shaped(*hat.shape)
        _standardize(x[index], channels.along(mean[part]), channels.along(inv_std[part]), hat)
        if in_parts:
            gbeta[part] = channels.sum(slope)
        ggamma[part] = channels.sum(np.multiply(slope, hat, out=product))
        if not fixed:
            np.multiply(hat, channels.along(ggamma[part]), out=hat)
            np.add(hat, channels.along(gbeta[part]), out=hat)
            np.multiply(hat, inv_m, out=hat)
            slope = np.subtract(slope, hat, out=hat)
        np.multiply(channels.along(scale[part]), slope, out=out, casting='same_kind')
    return gx, ggamma, gbeta


def _standardize(x: Array, mean: Array, inv_std: Array, hat: Array) -> None:
    np.subtract(x, mean, out=hat)
    np.multiply(hat, inv_std, out=hat)


def _broadcast(vector: Array, tile: tuple[slice, slice]) -> Array:
    """Returns the part of an array that broadcasts with a tile."""
    return vector[tuple(part if size > 1 else slice(None) for part, size in zip(tile, vector.shape[:2], strict=True))]


def _others(array: Array, key: int) -> tuple[int, ...]:
    return tuple(axis for axis in range(array.ndim) if axis != key)
