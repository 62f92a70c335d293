"""The CUDA device: GPU memory through CuPy, pinned host memory behind it, and a spill file behind that.

Nothing here imports CuPy until something is made that calls it, such as a `CudaBackend` without a driver of its own.

    backend.py                 what execution calls; calls the others
    presence.py                what of CUDA is there, for `doctor`
    arrays.py                  CuPy's arrays, and the memory under them
    budget.py                  the limit of near memory
    allocators/                who gives that memory, and what owns it
    far.py, transfer.py        copies on two streams, and what orders them
    pinned.py, regions.py      the first tier of far memory: blocks of pinned regions, and the thread that pins them
    pages.py                   how a region is pinned
    disk.py                    the second one: the spill file, through staging blocks
    tiers.py                   what went to which tier
    waits.py                   takes out of computations' times what the device was idle for
    preparations.py            counts kernels and plans that were made: their first calls are not timed
    driver.py                  what is asked of CUDA, through CuPy
"""

from chainer_ooc.backends.cuda.backend import CudaBackend

__all__ = ['CudaBackend']
