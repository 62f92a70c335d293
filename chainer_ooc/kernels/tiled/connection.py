"""Chainer's convolutions and deconvolutions, in tiles.

The functions are called by the seams of patch 0060 with the function node, whose attributes they read, and the arrays;
what a node keeps (retained inputs, sizes) is the seam's business and not touched here.
"""

from __future__ import annotations

import math
from typing import Any

from chainer_ooc.kernels.tiled.convolve import convolve, transpose, weight_gradient
from chainer_ooc.kernels.tiled.tiles import workspace_bytes
from chainer_ooc.kernels.tiled.windows import Array, Windows, windows_over


def convolution_2d(node: Any, x: Array, kernels: Array, bias: Array | None) -> tuple[Array]:
    """Forward of Convolution2DFunction."""
    windows = windows_over(x.shape[2:], kernels.shape[2:], *_geometry_2d(node), cover_all=node.cover_all)
    return _convolution(x, kernels, windows, node.groups, bias),


def convolution_2d_grad_w(node: Any, x: Array, gy: Array) -> tuple[Array]:
    """Forward of Convolution2DGradW."""
    stride, pad, dilate = _geometry_2d(node)
    windows = Windows(x.shape[2:], (node.kh, node.kw), stride, pad, dilate, gy.shape[2:])
    return weight_gradient(x, gy, windows, node.groups, node.W_dtype, workspace_bytes()),


def deconvolution_2d(node: Any, x: Array, kernels: Array, bias: Array | None) -> tuple[Array]:
    """Forward of Deconvolution2DFunction, whose output size is known."""
    stride, pad, dilate = _geometry_2d(node)
    windows = Windows((node.outh, node.outw), kernels.shape[2:], stride, pad, dilate, x.shape[2:])
    return transpose(x, kernels, windows, node.groups, bias, workspace_bytes()),


def convolution_nd(node: Any, x: Array, kernels: Array, bias: Array | None) -> tuple[Array]:
    """Forward of ConvolutionND."""
    _check_groups(node.groups, input=x.shape[1], output=kernels.shape[0])
    windows = windows_over(
        x.shape[2:], kernels.shape[2:], node.stride, node.pad, node.dilate, cover_all=node.cover_all)
    return _convolution(x, kernels, windows, node.groups, bias),


def convolution_nd_grad_w(node: Any, x: Array, gy: Array) -> tuple[Array]:
    """Forward of ConvolutionNDGradW."""
    windows = Windows(x.shape[2:], tuple(node.ksize), node.stride, node.pad, node.dilate, gy.shape[2:])
    return weight_gradient(x, gy, windows, node.groups, node.W_dtype, workspace_bytes()),


def deconvolution_nd(node: Any, x: Array, kernels: Array, bias: Array | None) -> tuple[Array]:
    """Forward of DeconvolutionND, whose output size is known."""
    _check_groups(node.groups, input=x.shape[1])
    windows = Windows(tuple(node.outs), kernels.shape[2:], node.stride, node.pad, node.dilate, x.shape[2:])
    return transpose(x, kernels, windows, node.groups, bias, workspace_bytes()),


def _convolution(x: Array, kernels: Array, windows: Windows, groups: int, bias: Array | None) -> Array:
    matrices = kernels.reshape(groups, kernels.shape[0] // groups, math.prod(kernels.shape[1:]))
    return convolve(x, matrices, windows, bias, workspace_bytes())


def _geometry_2d(node: Any) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    return (node.sy, node.sx), (node.ph, node.pw), (node.dy, node.dx)


def _check_groups(groups: int, **channels: int) -> None:
    """Raises as ConvolutionND does when channels cannot be divided into the groups."""
    for side, count in channels.items():
        if count % groups:
            raise TypeError(f'the number of groups must be a divisor of that of {side} channels (groups {groups}, '
                            f'{side} channels {count}); change groups or the number of channels')
