"""Layers of networks on the CPU by oneDNN, where chainer.config.use_ideep is 'auto' or 'always'.

Chainer's own way to oneDNN was iDeep, which is no longer kept. The setting is the same, and so is what it promises:
other sums, the same functions.

    seam.py        what Chainer's functions call; None where it is for NumPy
    pooling.py     the same for pooling, with its primitives
    layouts.py     channels-last arrays
    primitives.py  computations, made once for a geometry and run with arrays
    library.py     finds the library; its functions and errors

Bits depend on shapes, settings and the number of threads alone (P2).
"""

from __future__ import annotations

from chainer_ooc.kernels.onednn.pooling import (
    average_pooling_2d,
    average_pooling_2d_grad,
    average_pooling_nd,
    average_pooling_nd_grad,
    max_pooling_nd,
    max_pooling_nd_grad,
)
from chainer_ooc.kernels.onednn.seam import (
    batch_normalization,
    batch_normalization_grad,
    convolution_2d,
    convolution_2d_grad_w,
    convolution_nd,
    convolution_nd_grad_w,
    deconvolution_2d,
    deconvolution_nd,
)

__all__ = [
    'average_pooling_2d', 'average_pooling_2d_grad', 'average_pooling_nd', 'average_pooling_nd_grad',
    'batch_normalization', 'batch_normalization_grad', 'convolution_2d', 'convolution_2d_grad_w', 'convolution_nd',
    'convolution_nd_grad_w', 'deconvolution_2d', 'deconvolution_nd', 'max_pooling_nd', 'max_pooling_nd_grad',
]
