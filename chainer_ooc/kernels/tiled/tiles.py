"""How a call is cut so that its scratch keeps within chainer.config.ooc_workspace.

Promise P2: the cut depends on shapes, dtypes and that one setting, never on free memory or the number of threads, so
the order of all sums is the same in every run. The rule is

    images of a tile = max(1, workspace_bytes // scratch bytes of one image)

and if one image alone is too large, tiles of one image and

    rows of a tile = max(1, workspace_bytes // scratch bytes of one row of output)

after which the tiles are evened out (16 images of which 15 fit give 8 and 8, not 15 and 1). Copies that only some
memory layouts need are counted always, so that a transposed input gives the same bits as its copy. One row is the
least: below that the setting cannot be kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainer_ooc import config
from chainer_ooc.kernels.tiled.windows import Array

# Pixels of a tile of pooling: of 128 KB to 2 MB, 1 MB or 2 MB were best on the layers of the four networks.
POOLED_TILE_BYTES = 1 << 20


@dataclass(frozen=True)
class Tile:
    """Some images of a batch and, of each, some rows: positions along the first axis after the channels."""

    images: slice
    rows: slice

    def __len__(self) -> int:
        return int(self.images.stop - self.images.start)


def tiles(
        images: int, rows: int, image_bytes: int, workspace_bytes: int, most_images: int | None = None,
) -> Iterator[Tile]:
    """Cuts a batch; the first tile is the largest.

    Args:
        images: images in the batch.
        rows: rows of output of an image.
        image_bytes: scratch that one image takes.
        workspace_bytes: scratch that one tile may take.
        most_images: a limit on the images of a tile besides.
    """
    if image_bytes <= max(0, workspace_bytes) or rows <= 1:
        fitting = workspace_bytes // image_bytes if image_bytes else images
        for part in even_parts(images, fitting if most_images is None else min(fitting, most_images)):
            yield Tile(part, slice(0, rows))
        return
    row_bytes = -(-image_bytes // rows)
    for image in range(images):
        for part in even_parts(rows, workspace_bytes // row_bytes):
            yield Tile(slice(image, image + 1), part)


def even_parts(total: int, most: int) -> Iterator[slice]:
    """Cuts `total` things into as few parts of at most `most` (at least 1) as there can be, the larger ones first."""
    parts = -(-total // max(1, most))
    start = 0
    for part in range(parts):
        stop = start + -(-(total - start) // (parts - part))
        yield slice(start, stop)
        start = stop


def planes(images: Array, plane_bytes: int, workspace_bytes: int, tile_bytes: int | None = None,
           ) -> Iterator[tuple[slice, slice]]:
    """Cuts (n, c, *size) into images and channels whose pixels fit the cache and whose scratch fits the workspace."""
    tile_bytes = POOLED_TILE_BYTES if tile_bytes is None else tile_bytes
    count, channels = images.shape[:2]
    image_plane_bytes = max(1, math.prod(images.shape[2:]) * images.itemsize)
    most = max(1, min(tile_bytes // image_plane_bytes, workspace_bytes // max(1, plane_bytes)))
    if most >= channels:
        for part in even_parts(count, most // max(1, channels)):
            yield part, slice(0, channels)
        return
    for image in range(count):
        for part in even_parts(channels, most):
            yield slice(image, image + 1), part


class Buffer:
    """Memory that is taken once and shaped anew for every tile, as arrays of `dtype`."""

    def __init__(self, dtype: np.dtype[Any]):
        self._memory: Array = np.empty(0, dtype)

    def shaped(self, *shape: int) -> Array:
        """Returns an array over the memory, with whatever is in it; the array given before is no longer valid."""
        size = math.prod(shape)
        if size > self._memory.size:
            self._memory = np.empty(size, self._memory.dtype)
        return self._memory[:size].reshape(shape)


def workspace_bytes() -> int:
    """Returns chainer.config.ooc_workspace of the calling thread in bytes; the seams only come here when it is set."""
    size = config.current().workspace_bytes
    assert size is not None
    return size
