"""Convolution, pooling and normalization on the CPU in tiles whose scratch keeps within chainer.config.ooc_workspace.

Chainer's CPU functions lay out the windows of the whole batch as columns, several times the size of the feature maps,
and its normalizations take three or four temporaries of the size of the map. When the setting is there, the seams of
patch 0060 call the functions below instead, one for each function node of Chainer or step of it. With the setting unset
nothing here is imported.

    convolve.py                   convolution and its two gradients, tile by tile
    pooling.py, normalization.py  function nodes -> arrays
    pool.py, global_pooling.py    pooling: with several windows an image, and with one
    batch_norm.py, lrn.py         batch normalization, local response normalization
    tiles.py                      how much is in a tile, by the setting
    matrices.py, channels.py      what of the arrays that is: matrices of a product, channels
    windows.py, lattice.py        where a window lies on the image, and an order of pixels that suits it

What differs from plain Chainer: convolutions sum in another order (closeness, not bits; float16 is multiplied in
float32) and outputs are C-contiguous. Pooling and normalization have the same bits. The rule by which calls are cut is
in `tiles` (P2).
"""

from chainer_ooc.kernels.tiled.convolve import convolution, convolution_grad_w, deconvolution
from chainer_ooc.kernels.tiled.normalization import (
    batch_affine,
    batch_moments,
    batch_normalization_grad,
    fixed_batch_normalization_grad,
    local_response_normalization,
    local_response_normalization_grad,
)
from chainer_ooc.kernels.tiled.pooling import (
    average_pooling_2d,
    average_pooling_2d_grad,
    average_pooling_nd,
    average_pooling_nd_grad,
    max_pooling_nd,
    max_pooling_nd_grad,
    max_pooling_nd_with_indexes,
    unpooling_2d,
    unpooling_2d_grad,
    unpooling_nd,
    unpooling_nd_grad,
    upsampling_2d,
    upsampling_2d_grad,
)

__all__ = [
    'average_pooling_2d', 'average_pooling_2d_grad', 'average_pooling_nd', 'average_pooling_nd_grad',
    'batch_affine', 'batch_moments', 'batch_normalization_grad', 'convolution', 'convolution_grad_w',
    'deconvolution', 'fixed_batch_normalization_grad', 'local_response_normalization',
    'local_response_normalization_grad', 'max_pooling_nd', 'max_pooling_nd_grad', 'max_pooling_nd_with_indexes',
    'unpooling_2d', 'unpooling_2d_grad', 'unpooling_nd', 'unpooling_nd_grad', 'upsampling_2d', 'upsampling_2d_grad',
]
