"""What Chainer's functions call on the CPU where chainer.config.use_ideep allows (patch 0080).

Each function takes the function node of Chainer, or what it has, and arrays. It returns a tuple of arrays, or None
where the computation is for NumPy: oneDNN is not installed, an array is not of float32, or is empty, or oneDNN has no
implementation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from chainer_ooc.kernels.onednn import primitives
from chainer_ooc.kernels.onednn.layouts import Array, channels_last, empty
from chainer_ooc.kernels.onednn.library import UnsupportedError, find, load
from chainer_ooc.kernels.onednn.primitives import (
    BIAS,
    RESULT,
    RESULT_GRADIENT,
    SOURCE,
    SOURCE_GRADIENT,
    WEIGHTS,
    WEIGHTS_GRADIENT,
    Convolution,
)

#: Of feature maps: three beside batch and channels.
MOST_AXES = 5


def convolution_2d(node: Any, x: Array, w: Array, b: Array | None) -> Any:
    """Forward of Convolution2DFunction."""
    return _convolution(x, w, b, _windows_2d(node), node.groups, node.cover_all)


def convolution_nd(node: Any, x: Array, w: Array, b: Array | None) -> Any:
    """Forward of ConvolutionND."""
    return _convolution(x, w, b, _windows_nd(node), node.groups, node.cover_all)


def convolution_2d_grad_w(node: Any, x: Array, gy: Array) -> Any:
    """Forward of Convolution2DGradW."""
    return _grad_w(x, gy, (node.kh, node.kw), node.W_dtype, _windows_2d(node), node.groups)


def convolution_nd_grad_w(node: Any, x: Array, gy: Array) -> Any:
    """Forward of ConvolutionNDGradW."""
    return _grad_w(x, gy, tuple(node.ksize), node.W_dtype, _windows_nd(node), node.groups)


def deconvolution_2d(node: Any, x: Array, w: Array, b: Array | None) -> Any:
    """Forward of Deconvolution2DFunction, whose output size is known."""
    return _deconvolution(x, w, b, (node.outh, node.outw), _windows_2d(node), node.groups)


def deconvolution_nd(node: Any, x: Array, w: Array, b: Array | None) -> Any:
    """Forward of DeconvolutionND, whose output size is known."""
    return _deconvolution(x, w, b, tuple(node.outs), _windows_nd(node), node.groups)


def or_none(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives None where oneDNN has no implementation."""
    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except UnsupportedError:
            return None
    return run


@or_none
def _convolution(x: Array, w: Array, b: Array | None, windows: Any, groups: int, cover_all: bool) -> Any:
    from chainer.utils import conv

    if not serves(x, w, *(() if b is None else (b,))) or w.shape[0] % groups:
        return None
    stride, pad, dilate = windows
    outs = tuple(conv.get_conv_outsize(*each[:4], cover_all=cover_all, d=each[4]) for each in zip(
        x.shape[2:], w.shape[2:], stride, pad, dilate, strict=True))
    if min(outs) < 1:
        return None  # Chainer's own way says what is wrong
    of = Convolution(x.shape, w.shape, (x.shape[0], w.shape[0], *outs), stride, dilate, pad, groups)
    computation = primitives.convolution(of, RESULT, b is not None)
    y = empty(of.y_shape)
    arrays = {SOURCE: channels_last(x), WEIGHTS: np.ascontiguousarray(w), RESULT: y}
    if b is not None:
        arrays[BIAS] = np.ascontiguousarray(b)
    computation.run(arrays)
    return y,


@or_none
def _grad_w(x: Array, gy: Array, kernel: Any, w_dtype: Any, windows: Any, groups: int) -> Any:
    if w_dtype != np.float32 or not serves(x, gy):
        return None
    stride, pad, dilate = windows
    w_shape = gy.shape[1], x.shape[1] // groups, *kernel
    computation = primitives.convolution(
        Convolution(x.shape, w_shape, gy.shape, stride, dilate, pad, groups), WEIGHTS_GRADIENT)
    gw = np.empty(w_shape, np.float32)
    computation.run({SOURCE: channels_last(x), RESULT_GRADIENT: channels_last(gy), WEIGHTS_GRADIENT: gw})
    return gw,


@or_none
def _deconvolution(x: Array, w: Array, b: Array | None, outs: Any, windows: Any, groups: int) -> Any:
    if not serves(x, w, *(() if b is None else (b,))) or x.shape[1] % groups:
        return None
    stride, pad, dilate = windows
    y_shape = x.shape[0], w.shape[1] * groups, *outs
    computation = primitives.convolution(
        Convolution(y_shape, w.shape, x.shape, stride, dilate, pad, groups), SOURCE_GRADIENT)
    y = empty(y_shape)
    computation.run({RESULT_GRADIENT: channels_last(x), WEIGHTS: np.ascontiguousarray(w), SOURCE_GRADIENT: y})
    if b is not None:
        y += b.reshape((1, -1) + (1,) * len(outs))
    return y,


def serves(x: Array, *others: Array) -> bool:
    """Whether oneDNN computes with these feature maps; raises as `is_wanted` does."""
    return is_wanted() and 2 <= x.ndim <= MOST_AXES and all(
        type(each) is np.ndarray and each.dtype == np.float32 and each.size for each in (x, *others))


def is_wanted() -> bool:
    """Whether oneDNN is there, to be used under the configuration.

    Raises:
        OSError: it cannot be loaded, and chainer.config.use_ideep is 'always'.
        ValueError: chainer.config.use_ideep is none of those that Chainer knows.
    """
    from chainer import config

    wanted = config.use_ideep
    if wanted not in ('auto', 'always'):
        raise ValueError(f"chainer.config.use_ideep is {wanted!r}; set it to 'always', 'auto' or 'never'")
    if load() is None:
        if wanted == 'always':
            find()
        return False
    return True


def _windows_2d(node: Any) -> Any:
    return (node.sy, node.sx), (node.ph, node.pw), (node.dy, node.dx)


def _windows_nd(node: Any) -> Any:
    return tuple(node.stride), tuple(node.pad), tuple(node.dilate)
