"""The channels of an array, some at a time, with NumPy's own order of sums.

A sum over all axes but one adds the same terms in the same order for a slice of two or more channels as for the whole
array: NumPy goes through the axes from the largest stride to the smallest and joins neighbours that it reduces, and the
axis of the channels stands between them either way. A single channel is no axis to NumPy, so its neighbours would be
joined; it is shown to NumPy twice. This holds for arrays that are not cast on the way (of NumPy 1.26 to 2.5; a test
compares), so what must be cast is left to NumPy in one piece: a reduction takes no scratch but the casts of its buffer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainer_ooc.kernels.tiled.tiles import even_parts
from chainer_ooc.kernels.tiled.windows import Array

# Pixels of a tile: of 64 KB to 4 MB, 2 MB or 4 MB were best on maps of ResNet50.
NORMALIZED_TILE_BYTES = 1 << 21
CACHE_LINE_BYTES = 64


@dataclass(frozen=True)
class Channels:
    """One axis of an array, whose other axes are reduced.

    Attributes:
        shape: of the array with its axes from the largest stride to the smallest.
        order: which axis of the array each of them is.
        key: where the channels are among them.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    key: int

    @property
    def count(self) -> int:
        """Channels."""
        return self.shape[self.key]

    def __len__(self) -> int:
        """Returns the elements of one channel."""
        return math.prod(self.shape) // self.count

    def parts(self, itemsize: int, channel_bytes: int, workspace_bytes: int) -> Iterator[slice]:
        """Cuts the channels into parts that fit the cache and whose scratch fits the workspace; one at least.

        Args:
            itemsize: bytes of an element of the array.
            channel_bytes: scratch of one channel.
            workspace_bytes: scratch that may be taken.
        """
        cached = NORMALIZED_TILE_BYTES // (len(self) * itemsize)
        if not any(size > 1 for size in self.shape[self.key + 1:]):  # channels side by side: whole lines of the cache
            cached = max(cached, CACHE_LINE_BYTES // itemsize)
        return even_parts(self.count, min(cached, workspace_bytes // channel_bytes))

    def view(self, array: Array) -> Array:
        """Returns an array of the original shape with its axes in the order of `shape`."""
        return array.transpose(self.order)

    def index(self, part: slice) -> tuple[slice, ...]:
        """Returns the index of some channels in an array of `shape`."""
        return (*(slice(None) for _ in range(self.key)), part)

    def along(self, vector: Array) -> Array:
        """Returns values of some channels so that they broadcast with arrays of `shape`."""
        return vector.reshape(-1, *(1 for _ in self.shape[self.key + 1:]))

    def mean(self, tile: Array) -> Array:
        """Takes the mean of each channel of a tile, whose strides descend, in its dtype."""
        means: Array = self._shown_twice(tile).mean(axis=self._others, dtype=tile.dtype)
        return means[:tile.shape[self.key]]

    def sum(self, tile: Array) -> Array:
        """Sums each channel of a tile, whose strides descend, in its dtype."""
        sums: Array = self._shown_twice(tile).sum(axis=self._others, dtype=tile.dtype)
        return sums[:tile.shape[self.key]]

    @property
    def _others(self) -> tuple[int, ...]:
        return tuple(axis for axis in range(len(self.shape)) if axis != self.key)

    def _shown_twice(self, tile: Array) -> Array:
        if tile.shape[self.key] > 1 or self.count == 1:
            return tile
        return np.broadcast_to(tile, (*tile.shape[:self.key], 2, *tile.shape[self.key + 1:]))


def channels_of(array: Array, key: int) -> Channels | None:
    """Returns the channels along axis `key`, or None where the strides give no one order of axes."""
    order = tuple(sorted(range(array.ndim), key=lambda axis: (array.shape[axis] == 1, -array.strides[axis])))
    if not descends(array.transpose(order)):
        return None
    return Channels(tuple(array.shape[axis] for axis in order), order, order.index(key))


def descends(array: Array) -> bool:
    """Returns whether each axis of more than one element has a smaller stride than the one before, and none is zero."""
    strides = [stride for stride, size in zip(array.strides, array.shape, strict=True) if size > 1]
    return all(a > b for a, b in itertools.pairwise([*strides, 0]))


def like(dtype: np.dtype[Any], *arrays: Array) -> Array:
    """Returns memory with the strides that NumPy gives the result of an elementwise operation on the arrays."""
    operands: list[Any] = [*arrays, None]
    flags: list[Any] = [*(['readonly'] for _ in arrays), ['writeonly', 'allocate']]
    return np.nditer(operands, [], flags, op_dtypes=[*(None for _ in arrays), dtype]).operands[-1]
