"""Chainer's convolutions and deconvolutions, and their gradients, as products of matrices, tile by tile.

The first three functions are called by the seams of patch 0060 with the function node, whose attributes they read, and
the arrays; what a node keeps (retained inputs, sizes) is the seam's business. The next three compute:

    by image:   y[n]  = W @ columns(x[n])                  straight into NCHW, nothing is transposed
    data:       gx   += uncolumns(W.T @ gy)                or a convolution with the window mirrored, see `transpose`
    weights:    gW   += gy @ columns(x).T                  in the order of the tiles

Chainer builds the columns of the whole batch, copies them transposed for the product and gives the result as a
transposed view. Tiles that fit the processor's caches spare the memory both ways, and the results are C-contiguous.

Source: "dynamic workspaces", SuperNeurons section 3.5, and ooc_cuDNN's splitting of one layer; here the workspace is a
setting, not what is left at run time, so that results repeat (P2).

Left out: Winograd's and Fourier algorithms, which sum in another way, and splitting by groups.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chainer_ooc.kernels import kernel_of, outs_of, steps_of
from chainer_ooc.kernels.tiled.matrices import (
    STACK_BELOW_COLUMNS,
    by_image,
    column_block,
    operand,
    working_dtype,
)
from chainer_ooc.kernels.tiled.tiles import Buffer, even_parts, tiles
from chainer_ooc.kernels.tiled.tiles import workspace_bytes as setting_bytes
from chainer_ooc.kernels.tiled.windows import Array, Windows, gather, scatter, windows_over


def convolution(node: Any, x: Array, kernels: Array, bias: Array | None) -> tuple[Array]:
    """Forward of Convolution2DFunction and ConvolutionND."""
    _check_groups(node, input=x.shape[1], output=kernels.shape[0])
    windows = windows_over(x.shape[2:], kernels.shape[2:], *steps_of(node), cover_all=node.cover_all)
    matrices = kernels.reshape(node.groups, kernels.shape[0] // node.groups, math.prod(kernels.shape[1:]))
    return convolve(x, matrices, windows, bias, setting_bytes()),


def convolution_grad_w(node: Any, x: Array, gy: Array) -> tuple[Array]:
    """Forward of Convolution2DGradW and ConvolutionNDGradW."""
    windows = Windows(x.shape[2:], kernel_of(node), *steps_of(node), gy.shape[2:])
    return weight_gradient(x, gy, windows, node.groups, node.W_dtype, setting_bytes()),


def deconvolution(node: Any, x: Array, kernels: Array, bias: Array | None) -> tuple[Array]:
    """Forward of Deconvolution2DFunction and DeconvolutionND, whose output size is known."""
    _check_groups(node, input=x.shape[1])
    windows = Windows(outs_of(node), kernels.shape[2:], *steps_of(node), x.shape[2:])
    return transpose(x, kernels, windows, node.groups, bias, setting_bytes()),


def _check_groups(node: Any, **channels: int) -> None:
    """Raises as ConvolutionND does when channels cannot be divided into the groups; nodes for two axes reshape."""
    for side, count in channels.items():
        if hasattr(node, 'stride') and count % node.groups:
            raise TypeError(f'the number of groups must be a divisor of that of {side} channels (groups {node.groups}, '
                            f'{side} channels {count}); change groups or the number of channels')


def convolve(x: Array, weights: Array, windows: Windows, bias: Array | None, workspace_bytes: int) -> Array:
    """Convolves a batch.

    Args:
        x: images of shape (n, c, *windows.size), any layout.
        weights: of shape (groups, out channels of a group, in channels of a group * windows.elements).
        windows: where the kernel looks.
        bias: of shape (out channels,), or None.
        workspace_bytes: scratch that may be taken, see `tiles`.

    Returns:
        C-contiguous array of shape (n, out channels, *windows.out) and x's dtype.
    """
    groups, channels, terms = weights.shape
    dtype = working_dtype(x, weights)
    y = np.empty((len(x), groups * channels, *windows.out), x.dtype)
    stacked = windows.count < STACK_BELOW_COLUMNS
    straight = not stacked and y.dtype == dtype
    image_rows = groups * (terms if straight else terms + channels)
    matrices = weights.astype(dtype, copy=False)
    columns_buffer, product_buffer = Buffer(dtype), Buffer(dtype)
    for tile in tiles(len(x), windows.out[0], image_rows * windows.count * dtype.itemsize,
                      workspace_bytes - _cast_bytes(weights, dtype)):
        if windows.pointwise:
            columns = operand(x, tile, groups, stacked, columns_buffer, dtype)
        else:
            part = windows.rows(tile.rows)
            columns, block = column_block(len(tile), x.shape[1], part, groups, stacked, columns_buffer)
            gather(x[tile.images], part, block)
        target = by_image(y, tile, groups)
        if straight:
            np.matmul(matrices, columns, out=target)
        else:
            product = product_buffer.shaped(*columns.shape[:-2], channels, columns.shape[-1])
            np.matmul(matrices, columns, out=product)
            target[...] = _unstack(product, len(tile)) if stacked else product
        if bias is not None:
            target += bias.reshape(groups, channels, 1)
    return y


def transpose(
        gy: Array, kernels: Array, windows: Windows, groups: int, bias: Array | None, workspace_bytes: int) -> Array:
    """Convolves the other way: the gradient of `convolve` for its images, and deconvolution.

    Args:
        gy: of shape (n, out channels, *windows.out), any layout.
        kernels: of shape (out channels, in channels of a group, *windows.kernel).
        windows: those of the convolution, from the result of this function to `gy`.
        groups: groups of channels.
        bias: of shape (in channels,), or None.
        workspace_bytes: scratch that may be taken, see `tiles`.

    Returns:
        C-contiguous array of shape (n, in channels, *windows.size) and gy's dtype.
    """
    dtype = working_dtype(gy, kernels)
    matrices = kernels.reshape(groups, kernels.shape[0] // groups, math.prod(kernels.shape[1:])).swapaxes(1, 2)
    if windows.pointwise:
        return convolve(gy, matrices, windows, bias, workspace_bytes)
    if _mirror_pays(len(gy), kernels, windows, groups, workspace_bytes):
        mirrored = _mirrored(kernels, groups, dtype)
        return convolve(gy, mirrored, _seen_from_behind(windows), bias, workspace_bytes - mirrored.nbytes)
    terms, channels = matrices.shape[1:]
    # Cleared tile by tile: the caches are warm then, and NumPy asks for large pages for what is not asked for cleared.
    gx = np.empty((len(gy), groups * terms // windows.elements, *windows.size), gy.dtype)
    stacked = windows.count < STACK_BELOW_COLUMNS
    image_rows = groups * (terms + channels)
    matrices = matrices.astype(dtype, copy=False)
    columns_buffer, gy_buffer = Buffer(dtype), Buffer(dtype)
    for tile in tiles(len(gy), windows.out[0], image_rows * windows.count * dtype.itemsize,
                      workspace_bytes - _cast_bytes(kernels, dtype)):
        part = windows.rows(tile.rows)
        columns, block = column_block(len(tile), gx.shape[1], part, groups, stacked, columns_buffer)
        np.matmul(matrices, operand(gy, tile, groups, stacked, gy_buffer, dtype), out=columns)
        images = gx[tile.images]
        if tile.rows.start == 0:
            images.fill(0)
        scatter(block, part, images)
    if bias is not None:
        gx += bias.reshape(-1, *(1,) * len(windows.size))
    return gx


def weight_gradient(
        x: Array, gy: Array, windows: Windows, groups: int, dtype: np.dtype[Any], workspace_bytes: int) -> Array:
    """Computes the gradient of `convolve` for its weights.

    Args:
        x: images of shape (n, in channels, *windows.size), any layout.
        gy: of shape (n, out channels, *windows.out), any layout.
        windows: those of the convolution.
        groups: groups of channels.
        dtype: of the result.
        workspace_bytes: scratch that may be taken, see `tiles`. Partial sums take at most a quarter of it, unless that
            is less than one column of the weights; sums for a narrower `dtype` are kept whole beside it.

    Returns:
        C-contiguous array of shape (out channels, in channels of a group, *windows.kernel).
    """
    working = working_dtype(x, gy)
    channels, terms = gy.shape[1] // groups, x.shape[1] // groups * windows.elements
    total = np.zeros((groups, channels, terms), working)
    # An image alone needs no copy of its maps; stacking pays for few columns, or where columns are made anyway.
    most_images = 1 if windows.pointwise and windows.count >= STACK_BELOW_COLUMNS else len(x)
    slab = max(1, min(terms, workspace_bytes // 4 // max(1, groups * channels * working.itemsize)))
    fixed_bytes = groups * channels * slab * working.itemsize + (total.nbytes if dtype != working else 0)
    image_bytes = groups * (channels + terms) * windows.count * working.itemsize
    x_buffer, gy_buffer, sum_buffer = Buffer(working), Buffer(working), Buffer(working)
    first = True
    for tile in tiles(len(x), windows.out[0], image_bytes, workspace_bytes - fixed_bytes, most_images):
        gy_matrices = operand(gy, tile, groups, True, gy_buffer, working)
        if windows.pointwise:
            columns = operand(x, tile, groups, True, x_buffer, working)
        else:
            part = windows.rows(tile.rows)
            columns, block = column_block(len(tile), x.shape[1], part, groups, True, x_buffer)
            gather(x[tile.images], part, block)
        for some in even_parts(terms, slab):
            sums = total[:, :, some]
            partial = sums if first else sum_buffer.shaped(*sums.shape)
            np.matmul(gy_matrices, columns[:, some].swapaxes(1, 2), out=partial)
            if not first:
                sums += partial
        first = False
    return total.astype(dtype, copy=False).reshape(gy.shape[1], x.shape[1] // groups, *windows.kernel)


def _mirror_pays(images: int, kernels: Array, windows: Windows, groups: int, workspace_bytes: int) -> bool:
    """Whether `transpose` is faster as a convolution with the mirrored kernel.

    Adding columns to pixels takes about three times as long as taking them, but the kernels have to be copied, which
    takes as long as saving about 16 columns.
    """
    channels, terms = kernels.shape[0] // groups, kernels.shape[1]
    return (set(windows.stride) == {1} and channels <= 2 * terms and 16 * channels <= images * windows.count
            and kernels.size * working_dtype(kernels).itemsize <= workspace_bytes // 4)


def _mirrored(kernels: Array, groups: int, dtype: np.dtype[Any]) -> Array:
    """Copies kernels mirrored in space and with in and out channels exchanged, as matrices."""
    channels, terms, *kernel = kernels.shape
    parted = kernels.reshape(groups, channels // groups, terms, *kernel).swapaxes(1, 2)
    mirrored = np.flip(parted, tuple(range(3, parted.ndim))).astype(dtype, order='C')
    return mirrored.reshape(groups, terms, channels // groups * math.prod(kernel))


def _seen_from_behind(windows: Windows) -> Windows:
    """Returns windows of stride 1 over the outputs: which of them see a pixel."""
    pad = tuple((k - 1) * d - p for k, d, p in zip(windows.kernel, windows.dilate, windows.pad, strict=True))
    return Windows(windows.out, windows.kernel, windows.stride, pad, windows.dilate, windows.size)


def _cast_bytes(weights: Array, dtype: np.dtype[Any]) -> int:
    return 0 if weights.dtype == dtype else weights.size * dtype.itemsize


def _unstack(product: Array, images: int) -> Array:
    """Views a stacked product (groups, rows, images * columns) by image."""
    groups, rows, columns = product.shape
    return product.reshape(groups, rows, images, columns // images).transpose(2, 0, 1, 3)
