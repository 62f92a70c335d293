"""cuDNN 9 for Chainer, whose own way to cuDNN went with CuPy 14.

Chainer's functions call `seam`, which hands arrays to `facade`; that finds a `plan` for the `operations` at hand, under
the `terms` of the configuration, in the calling thread's `session`. Nothing here imports CuPy or cuDNN before a call
on a GPU, and nothing is done differently on the CPU.
"""

from __future__ import annotations

from chainer_ooc.backends.cuda.cudnn.seam import (
    BatchNormalization,
    convolution_2d,
    convolution_2d_grad_w,
    convolution_nd,
    convolution_nd_grad_w,
    deconvolution_2d,
    deconvolution_nd,
)
from chainer_ooc.backends.cuda.cudnn.session import forget
from chainer_ooc.backends.cuda.cudnn.terms import get_max_workspace_size, set_max_workspace_size

__all__ = [
    'BatchNormalization', 'convolution_2d', 'convolution_2d_grad_w', 'convolution_nd', 'convolution_nd_grad_w',
    'deconvolution_2d', 'deconvolution_nd', 'forget', 'get_max_workspace_size', 'set_max_workspace_size',
]
