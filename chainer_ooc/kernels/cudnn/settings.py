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

import functools
from dataclasses import dataclass
from typing import Any

import chainer
import numpy as np

from chainer_ooc.kernels.cudnn.operations import SMALL_WORKSPACE_BYTES
from chainer_ooc.quantities import parse_bytes

#: Entries of chainer.config that are read here.
ENTRIES = ('use_cudnn', 'ooc_workspace', 'cudnn_deterministic', 'use_cudnn_tensor_core', 'autotune')

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


def wanted() -> bool:
    """Whether chainer.config.use_cudnn leaves it to Chainer to use cuDNN.

    Raises:
        ValueError: it has a value that Chainer does not know.
    """
    return is_wanted(entries())


def entries() -> tuple[Any, ...]:
    """Returns the values of `ENTRIES` for the calling thread, as they are now.

    What chainer.config does for each of them in Python is done here for all at once: an entry of the thread's own goes
    before the global one.
    """
    own, common = chainer.config._local.__dict__, chainer.config._global
    if own.keys().isdisjoint(ENTRIES):
        return (common.use_cudnn, common.ooc_workspace, common.cudnn_deterministic, common.use_cudnn_tensor_core,
                common.autotune)
    return tuple([own[name] if name in own else getattr(common, name) for name in ENTRIES])


def plan_settings(read: tuple[Any, ...], dtype: np.dtype) -> PlanSettings:
    """Makes settings for arrays of `dtype` from what `entries` returned.

    Raises:
        ValueError: ``use_cudnn_tensor_core`` has a value that Chainer does not know.
    """
    _, workspace, deterministic, tensor_cores, timed = read
    return _made(workspace, _max_workspace_bytes, bool(deterministic), tensor_cores, bool(timed), dtype.char == 'e')


def is_wanted(read: tuple[Any, ...]) -> bool:
    """As `wanted`, from what `entries` returned."""
    setting = read[0]
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


@functools.lru_cache(maxsize=256, typed=True)
def _made(workspace: int | str | None, max_workspace_bytes: int | None, deterministic: bool, tensor_cores: str,
          timed: bool, half: bool) -> PlanSettings:
    return PlanSettings(max_workspace_bytes if workspace is None else parse_bytes(workspace), deterministic,
                        _tensor_cores(tensor_cores, half), timed)


def _tensor_cores(setting: str, half: bool) -> bool:
    if setting not in ('always', 'auto', 'never'):
        raise ValueError(f'chainer.config.use_cudnn_tensor_core = {setting!r} cannot be used; '
                         'use "always", "auto" or "never"')
    return setting == 'always' or (setting == 'auto' and half)
