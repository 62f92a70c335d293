"""What Chainer's configuration asks of a plan.

A plan depends on shapes and on these settings, never on what memory happens to be free: two runs with the same
settings add up in the same order (promise P2), but for ``autotune``, which is for whoever wants that exception.

Chainer's entries, and what they mean here:

================================ =========================================================================
``use_cudnn``                    'never' leaves everything to Chainer's own kernels
``use_cudnn_tensor_core``        'auto': for float16 only. 'always': float32 may go through TF32, with 10 bits of
                                 mantissa in the factors. 'never': no tensor cores
``cudnn_deterministic``          plans that may give other bits the next time are left out
``autotune``                     a convolution's engines are timed once in a process, and the fastest is taken. Which
                                 one it is, and so the bits, may be another in the next process; within one, all
                                 policies have the same (`timed`)
``ooc_workspace``                most bytes of scratch of a plan; None: what was given to `set_max_workspace_size`, or
                                 else what suits the operation's shapes (`Operation.usual_workspace_bytes`)
================================ =========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chainer_ooc.kernels.cudnn.operations import SMALL_WORKSPACE_BYTES

_max_workspace_bytes: int | None = None


@dataclass(frozen=True)
class PlanSettings:
    """The settings that a plan is made under.

    Attributes:
        workspace_bytes: scratch that a plan may use; None: what is usual for the operation.
        deterministic: whether the same input has to give the same bits.
        tensor_cores: whether the factors may be rounded to what tensor cores take.
        timed: whether a convolution's engines are timed, and the fastest taken.
    """

    workspace_bytes: int | None
    deterministic: bool
    tensor_cores: bool
    timed: bool = False


def current(dtype: np.dtype) -> PlanSettings:
    """Reads the calling thread's chainer.config, for arrays of `dtype`.

    Raises:
        ValueError: ``use_cudnn_tensor_core`` has a value that Chainer does not know.
    """
    import chainer

    config = chainer.config
    return PlanSettings(_workspace_bytes(config.ooc_workspace), bool(config.cudnn_deterministic),
                 _tensor_cores(config.use_cudnn_tensor_core, dtype), bool(config.autotune))


def wanted() -> bool:
    """Whether chainer.config.use_cudnn leaves it to Chainer to use cuDNN.

    Raises:
        ValueError: it has a value that Chainer does not know.
    """
    import chainer

    setting = chainer.config.use_cudnn
    if setting not in ('always', 'auto', 'never'):
        raise ValueError(f'chainer.config.use_cudnn = {setting!r} cannot be used; use "always", "auto" or "never"')
    return bool(setting != 'never')


def get_max_workspace_size() -> int:
    """Returns the bytes of scratch that a plan may use where ``ooc_workspace`` is None.

    Before anybody has set them this is the least of what is usual: convolutions may use more, by their shapes.
    """
    return SMALL_WORKSPACE_BYTES if _max_workspace_bytes is None else _max_workspace_bytes


def set_max_workspace_size(size: int) -> None:
    """Sets the bytes of scratch that a plan may use where ``ooc_workspace`` is None, for all threads."""
    global _max_workspace_bytes
    _max_workspace_bytes = int(size)


def _workspace_bytes(setting: int | str | None) -> int | None:
    if setting is None:
        return _max_workspace_bytes
    from chainer_ooc.quantities import parse_bytes

    return parse_bytes(setting)


def _tensor_cores(setting: str, dtype: np.dtype) -> bool:
    if setting not in ('always', 'auto', 'never'):
        raise ValueError(f'chainer.config.use_cudnn_tensor_core = {setting!r} cannot be used; '
                         'use "always", "auto" or "never"')
    return setting == 'always' or (setting == 'auto' and dtype == np.float16)
