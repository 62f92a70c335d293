"""cuDNN 9 for Chainer, whose own way to cuDNN went with CuPy 14.

Nothing here imports CuPy or cuDNN before a call on a GPU, and nothing is done differently on the CPU.

    seam.py           what Chainer's functions call; None where it is for their own kernels
    settings.py       the settings that it is done under
    facade.py         arrays -> operations -> arrays
    operations.py     a call as a value; its graph in cuDNN's words
    library.py        finds cuDNN, or says why not
    handles.py        one thread's handle, and its plans
    plan.py           which engine serves an operation
    execution.py      a graph with its engine, and how it is run
    launch.py         the run itself, without looking at arrays
    normalization.py  batch normalization in kernels of our own (normalization.cu), where cuDNN does not serve
"""

from __future__ import annotations

from chainer_ooc.kernels.cudnn.handles import forget
from chainer_ooc.kernels.cudnn.seam import (
    BatchNormalization,
    convolution,
    convolution_grad_w,
    deconvolution,
)
from chainer_ooc.kernels.cudnn.settings import get_max_workspace_size, set_max_workspace_size

__all__ = [
    'BatchNormalization', 'convolution', 'convolution_grad_w', 'deconvolution', 'forget', 'get_max_workspace_size',
    'set_max_workspace_size',
]
