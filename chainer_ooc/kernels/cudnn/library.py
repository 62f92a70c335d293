"""Finds cuDNN: the Python package of NVIDIA's graph interface, and the library behind it.

CuPy 14 has no cuDNN, and CuPy 13 only that of cuDNN 8. What is there for cuDNN 9 is nvidia-cudnn-frontend, imported as
``cudnn``, which loads the library of nvidia-cudnn-cu12 or nvidia-cudnn-cu13. Either may be missing. Chainer goes on
with its own kernels then, slowly, with a lot of memory and without a word: hence the one warning below.
"""

from __future__ import annotations

import functools
from typing import Any

from chainer_ooc.warning import warn

#: The oldest version of the Python package that was tried: earlier ones want arrays where this one takes addresses.
OLDEST_FRONTEND = (1, 32)
#: The major version of the library whose heuristics and engines the plans here ask for.
OLDEST_BACKEND = 90000


class UnusableLibraryError(RuntimeError):
    """Why cuDNN cannot be used."""


@functools.cache
def load() -> Any:
    """Returns the module ``cudnn``, or None after one warning where it, or the library behind it, cannot be used."""
    try:
        return find()
    except Exception as error:  # whatever a broken installation raises, training goes on without it
        warn_unusable(error)
        return None


def find() -> Any:
    """Imports cuDNN.

    Raises:
        UnusableLibraryError: a version is too old.
        ImportError, RuntimeError, OSError: the package or the library is missing.
    """
    import cudnn

    version = tuple(int(part) for part in cudnn.__version__.split('.')[:2])
    if version < OLDEST_FRONTEND:
        raise UnusableLibraryError(f'nvidia-cudnn-frontend {cudnn.__version__} is older than 1.32')
    backend = cudnn.backend_version()
    if backend < OLDEST_BACKEND:
        raise UnusableLibraryError(f'the cuDNN library has version {backend}, and 9.0 ({OLDEST_BACKEND}) is the oldest')
    return cudnn


def warn_unusable(error: Exception) -> None:
    """Says why training goes on without cuDNN, and what to do."""
    warn(f'cuDNN cannot be used ({type(error).__name__}: {error}). Convolutions on the GPU take Chainer\'s own '
         'kernels, which are slower and whose im2col buffers are several times as large as the feature maps. '
         f'Install it with "pip install --upgrade nvidia-cudnn-frontend {_backend_package()}", or set '
         'chainer.config.use_cudnn to "never" if this is meant.', RuntimeWarning)


def _backend_package() -> str:
    try:
        from cupy.cuda import runtime
        major = runtime.runtimeGetVersion() // 1000
    except Exception:  # no CuPy, or one that cannot say: name both
        return 'nvidia-cudnn-cu13" (with CUDA 12: "nvidia-cudnn-cu12'
    return f'nvidia-cudnn-cu{major}'
