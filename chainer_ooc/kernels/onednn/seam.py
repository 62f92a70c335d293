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

from chainer_ooc.kernels import kernel_of, outs_of, steps_of
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
def convolution(node: Any, x: Array, w: Array, b: Array | None) -> Any:
    """Forward of Convolution2DFunction and ConvolutionND."""
    from chainer.utils import conv

    if not serves(x, w, *(() if b is None else (b,))) or w.shape[0] % node.groups:
        return None
    stride, pad, dilate = steps_of(node)
    outs = tuple(conv.get_conv_outsize(*each[:4], cover_all=node.cover_all, d=each[4]) for each in zip(
        x.shape[2:], w.shape[2:], stride, pad, dilate, strict=True))
    if min(outs) < 1:
        return None  # Chainer's own way says what is wrong
    of = Convolution(x.shape, w.shape, (x.shape[0], w.shape[0], *outs), stride, dilate, pad, node.groups)
    computation = primitives.convolution(of, RESULT, b is not None)
    y = empty(of.y_shape)
    arrays = {SOURCE: channels_last(x), WEIGHTS: np.ascontiguousarray(w), RESULT: y}
    if b is not None:
        arrays[BIAS] = np.ascontiguousarray(b)
    computation.run(arrays)
    return y,


@or_none
def convolution_grad_w(node: Any, x: Array, gy: Array) -> Any:
    """Forward of Convolution2DGradW and ConvolutionNDGradW."""
    if node.W_dtype != np.float32 or not serves(x, gy):
        return None
    stride, pad, dilate = steps_of(node)
    w_shape = gy.shape[1], x.shape[1] // node.groups, *kernel_of(node)
    computation = primitives.convolution(
        Convolution(x.shape, w_shape, gy.shape, stride, dilate, pad, node.groups), WEIGHTS_GRADIENT)
    gw = np.empty(w_shape, np.float32)
    computation.run({SOURCE: channels_last(x), RESULT_GRADIENT: channels_last(gy), WEIGHTS_GRADIENT: gw})
    return gw,


@or_none
def deconvolution(node: Any, x: Array, w: Array, b: Array | None) -> Any:
    """Forward of Deconvolution2DFunction and DeconvolutionND, whose output size is known."""
    if not serves(x, w, *(() if b is None else (b,))) or x.shape[1] % node.groups:
        return None
    stride, pad, dilate = steps_of(node)
    y_shape = x.shape[0], w.shape[1] * node.groups, *outs_of(node)
    computation = primitives.convolution(
        Convolution(y_shape, w.shape, x.shape, stride, dilate, pad, node.groups), SOURCE_GRADIENT)
    y = empty(y_shape)
    computation.run({RESULT_GRADIENT: channels_last(x), WEIGHTS: np.ascontiguousarray(w), SOURCE_GRADIENT: y})
    if b is not None:
        y += b.reshape((1, -1) + (1,) * len(stride))
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
