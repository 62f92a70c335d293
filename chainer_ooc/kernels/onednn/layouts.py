"""Channels-last arrays: feature maps as oneDNN wants them, and as any code of NumPy may read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from chainer_ooc.kernels.onednn import primitives

Array = np.ndarray[Any, Any]

#: Arrays of so many axes, from which `numpy.empty_like` takes the order of axes in memory.
_EXAMPLES = {axes: np.moveaxis(np.empty((2,) * axes, np.float32), -1, 1) for axes in range(2, 6)}


def empty(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Returns a new array of that shape, channels-last in memory, which owns its memory."""
    return np.empty_like(_EXAMPLES[len(shape)], dtype, shape=shape)


def is_channels_last(array: Array) -> bool:
    """Whether the array has no gaps and lies channels-last. Steps along axes of extent 1 do not matter."""
    steps = primitives.channels_last_strides(array.shape)
    return all(extent == 1 or stride == step * array.itemsize
               for extent, stride, step in zip(array.shape, array.strides, steps, strict=True))


def channels_last(array: Array) -> Array:
    """Returns the array, or a channels-last copy of it."""
    if is_channels_last(array):
        return array
    copy = empty(array.shape)
    if array.flags.c_contiguous:
        primitives.to_channels_last(array.shape).run(array, copy)
    else:
        np.copyto(copy, array)
    return copy
