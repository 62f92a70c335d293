"""The CUDA device: GPU memory through CuPy, pinned host memory behind it, and a spill file behind that.

Nothing here imports CuPy: `CudaBackend` does so when it is made without a driver of its own.
"""

from chainer_ooc.backends.cuda.backend import CudaBackend

__all__ = ['CudaBackend']
