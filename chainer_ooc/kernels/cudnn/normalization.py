"""Batch normalization in training on a GPU, in kernels of our own, where cuDNN would need copies of whole maps.

Sums over a channel are taken in two steps: over a part of each picture, by a block of threads each, then over the
parts. A sum over batch and picture at once has one block a channel, 64 for the largest maps of ResNet50, and most of a
GPU idle. Backward computes the normalized map where it is used: Chainer's own way writes it, and its product with the
gradient, and reads both again::

                                                     maps read   written   scratch
    forward    sum of x -> sum of squares -> y               3         1         0
    backward   sums of gy and of gy x_hat -> gx              5         1         0
    Chainer's own forward                                    4         1         0
    Chainer's own backward                                   8         4         2

The bits are others than those of Chainer's own kernels, as the order of the sums is another. It depends on shapes alone
(P2), and so do the results.

Served are maps with channels first, in float16, float32 or float64, with statistics in float32 or float64. The texts of
the kernels are expressions that C++ and Python read alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: So many blocks of threads keep the largest GPUs busy.
BLOCKS = 1024


def serves(axis: Any, x: Any, gamma: Any, *gradients: Any) -> bool:
    """Whether a map and its gradient are normalized here, over these axes."""
    return (x.ndim >= 3 and tuple(axis) == (0, *range(2, x.ndim)) and gamma.ndim == 1 and x.size > 0
            and x.dtype.name in ('float16', 'float32', 'float64') and gamma.dtype.name in ('float32', 'float64')
            and all(each.dtype == x.dtype and each.flags.c_contiguous for each in (x, *gradients)))


def forward(x: Any, gamma: Any, beta: Any, eps: float, decay: float, running_mean: Any,
            running_var: Any) -> tuple[Any, Any, Any, Any]:
    """Normalizes a map, and moves the running statistics in place as Chainer does, if there are any.

    Args:
        x: (N, C, spatial...).
        gamma: (C,), the scale.
        beta: (C,), the shift.
        eps: added to the variance.
        decay: weight of what the running statistics were.
        running_mean: (C,), or None.
        running_var: likewise.

    Returns:
        tuple: y like x; mean, variance and 1 / sqrt(variance + eps) of the batch, (C,).
    """
    from chainer.backends import cuda

    dtype = np.promote_types(x.dtype, gamma.dtype)
    elements = x.size // gamma.size
    inverse = dtype.type(1 / elements)
    mean = _total(_in_parts(x).sum(axis=3, dtype=dtype)) * inverse
    squares = _sums('T x, U mean', '(U(x) - mean) * (U(x) - mean)', (x,), (mean,))
    var, inv_std = cuda.elementwise(
        'U squares, U inverse, U eps', 'U var, U inv_std',
        'var = squares * inverse; inv_std = rsqrt(var + eps)', 'ooc_bn_statistics')(squares, inverse, dtype.type(eps))
    y = cuda.elementwise(
        'T x, U mean, U inv_std, U gamma, U beta', 'T y', 'y = gamma * (x - mean) * inv_std + beta',
        'ooc_bn_forward')(x, *_across(x, mean, inv_std, *(each.astype(dtype, copy=False) for each in (gamma, beta))))
    if running_mean is not None:
        cuda.elementwise(
            'U mean, U var, U decay, U adjust', 'V running_mean, V running_var',
            'running_mean = running_mean * decay + mean * (1 - decay); '
            'running_var = running_var * decay + var * (1 - decay) * adjust', 'ooc_bn_running')(
                mean, var, dtype.type(decay), dtype.type(elements / max(elements - 1, 1)), running_mean, running_var)
    return y, mean, var, inv_std


def backward(x: Any, gamma: Any, gy: Any, mean: Any, inv_std: Any) -> tuple[Any, Any, Any]:
    """The gradients of the map, its scale and its shift.

    Args:
        x: (N, C, spatial...).
        gamma: (C,), the scale.
        gy: gradient of the output, like x.
        mean: as `forward` gave it, or cuDNN.
        inv_std: likewise.

    Returns:
        tuple: gx like x; ggamma and gbeta like gamma.
    """
    from chainer.backends import cuda

    dtype = np.promote_types(x.dtype, gamma.dtype)
    mean, inv_std = mean.astype(dtype, copy=False), inv_std.astype(dtype, copy=False)
    gbeta = _total(_in_parts(gy).sum(axis=3, dtype=dtype))
    ggamma = _sums('T gy, T x, U mean, U inv_std', 'U(gy) * ((U(x) - mean) * inv_std)', (gy, x), (mean, inv_std))
    gx = cuda.elementwise(
        'T gy, T x, U mean, U inv_std, U gamma, U ggamma, U gbeta, U inverse', 'T gx',
        'gx = (gamma * inv_std) * (gy - ((x - mean) * inv_std * ggamma + gbeta) * inverse)', 'ooc_bn_backward')(
            gy, x, *_across(x, mean, inv_std, gamma.astype(dtype, copy=False), ggamma, gbeta),
            dtype.type(1 / (x.size // gamma.size)))
    return gx, ggamma.astype(gamma.dtype, copy=False), gbeta.astype(gamma.dtype, copy=False)


def parts(pictures: int, elements: int) -> int:
    """How many parts of equal size a picture is cut into, so that all pictures together have `BLOCKS` if they can.

    Args:
        pictures: of one channel each, in all.
        elements: of each.
    """
    count = 1
    while pictures * count < BLOCKS and elements % (2 * count) == 0:
        count *= 2
    return count


def _sums(parameters: str, expression: str, maps: tuple[Any, ...], statistics: tuple[Any, ...]) -> Any:
    """The sums of an expression over each channel, (C,)."""
    from chainer.backends import cuda

    kernel = cuda.reduce(parameters, 'U total', expression, 'a + b', 'total = a', '0', 'ooc_bn_sums')
    return _total(kernel(*map(_in_parts, maps), *(each[:, None, None] for each in statistics), axis=3))


def _in_parts(x: Any) -> Any:
    """A map as (N, C, parts of a picture, elements of a part)."""
    batch, channels, *extents = x.shape
    elements = int(np.prod(extents))
    count = parts(batch * channels, elements)
    return x.reshape(batch, channels, count, elements // count)


def _total(sums: Any) -> Any:
    """Sums of parts (N, C, parts) as those of channels."""
    return sums.sum(axis=(0, 2), dtype=sums.dtype)


def _across(x: Any, *statistics: Any) -> list[Any]:
    """Statistics of channels in the shape that a map is computed with."""
    return [each.reshape(1, -1, *(1 for _ in x.shape[2:])) for each in statistics]
