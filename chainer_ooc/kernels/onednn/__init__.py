"""Functions of Chainer on the CPU by oneDNN, where chainer.config.use_ideep is 'auto' or 'always'.

Chainer's own way to oneDNN was iDeep, which is no longer kept. The setting is the same, and so is what it promises:
other sums, the same functions.

    seam.py         what Chainer's functions call; None where it is for NumPy
    elementwise.py  the same for ReLU and sums, which have NumPy's bits
    pooling.py      the same for pooling, with its primitives
    lrn.py          the same for local response normalization
    batch_norm.py   the same for batch normalization, in C of our own (_batch_norm.c): oneDNN's is not accurate
    layouts.py      channels-last arrays
    primitives.py   computations, made for a geometry and run with arrays
    library.py      its functions and errors; keeps computations, and what oneDNN has not

Bits depend on shapes, settings and the number of threads alone (P2).
"""

from __future__ import annotations

from chainer_ooc.kernels.onednn.batch_norm import batch_normalization, batch_normalization_grad
from chainer_ooc.kernels.onednn.elementwise import add, relu, relu_grad
from chainer_ooc.kernels.onednn.lrn import local_response_normalization, local_response_normalization_grad
from chainer_ooc.kernels.onednn.pooling import (
    average_pooling_2d,
    average_pooling_2d_grad,
    average_pooling_nd,
    average_pooling_nd_grad,
    max_pooling_nd,
    max_pooling_nd_grad,
)
from chainer_ooc.kernels.onednn.seam import convolution, convolution_grad_w, deconvolution

__all__ = [
    'add', 'average_pooling_2d', 'average_pooling_2d_grad', 'average_pooling_nd', 'average_pooling_nd_grad',
    'batch_normalization', 'batch_normalization_grad', 'convolution', 'convolution_grad_w', 'deconvolution',
    'local_response_normalization', 'local_response_normalization_grad', 'max_pooling_nd', 'max_pooling_nd_grad',
    'relu', 'relu_grad',
]
