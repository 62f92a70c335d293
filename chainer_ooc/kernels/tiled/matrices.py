"""Feature maps and columns as the matrices of a product.

A product runs for each group of channels. Its matrices come in two layouts:

    by image   (n, groups, rows of the group, columns of the image)     one product for each image
    stacked    (groups, rows of the group, n * columns of the image)    one product for all images of a tile

By image, a result lands in the output where it belongs; stacked, maps are copied once more, but matrices of few columns
(7x7 maps) make better use of the processor, and sums over a tile's images need no partial results.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chainer_ooc.kernels.tiled.tiles import Buffer, Tile
from chainer_ooc.kernels.tiled.windows import Array, Windows

# Columns below which stacking paid on ResNet50's layers: 15 to 20 % at 49 columns; at 196 only with two threads, which
# meet less often in one long product than in many short ones; at 784 the copies cost more.
STACK_BELOW_COLUMNS = 256


def working_dtype(*arrays: Array) -> np.dtype[Any]:
    """Returns the dtype of products: float32 for float16, which no BLAS takes, and else what NumPy promotes to."""
    dtype = np.result_type(*(array.dtype for array in arrays))
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def by_image(maps: Array, tile: Tile, groups: int) -> Array:
    """Returns the tile of C-contiguous `maps` (n, c, *size) as a view of shape (n, groups, c // groups, columns)."""
    images, channels, rows = maps.shape[:3]
    row_columns = math.prod(maps.shape[3:])
    matrices = maps.reshape(images, groups, channels // groups, rows * row_columns)
    return matrices[tile.images, :, :, tile.rows.start * row_columns:tile.rows.stop * row_columns]


def operand(maps: Array, tile: Tile, groups: int, stacked: bool, buffer: Buffer, dtype: np.dtype[Any]) -> Array:
    """Returns a tile of maps as matrices, copied into `buffer` only if it cannot be read where it lies.

    Args:
        maps: of shape (n, c, *size), any layout.
        tile: which images and rows.
        groups: groups of channels.
        stacked: the layout asked for.
        buffer: takes the copy; of dtype `dtype`.
        dtype: of the result.
    """
    if maps.flags.c_contiguous and maps.dtype == dtype and (len(tile) == 1 or not stacked):
        matrices = by_image(maps, tile, groups)
        return matrices[0] if stacked else matrices
    part = maps[tile.images, :, tile.rows]
    images, channels = part.shape[:2]
    columns = math.prod(part.shape[2:])
    if stacked:
        part = part.swapaxes(0, 1)
    block = buffer.shaped(*part.shape)
    block[...] = part
    if stacked:
        return block.reshape(groups, channels // groups, images * columns)
    return block.reshape(images, groups, channels // groups, columns)


def column_block(
        images: int, channels: int, windows: Windows, groups: int, stacked: bool, buffer: Buffer,
) -> tuple[Array, Array]:
    """Shapes a buffer for columns.

    Returns:
        The same memory twice: as matrices, and as (n, c, *kernel, *out) for `gather` and `scatter`.
    """
    rows = channels // groups * windows.elements
    if stacked:
        block = buffer.shaped(channels, *windows.kernel, images, *windows.out)
        return block.reshape(groups, rows, images * windows.count), np.moveaxis(block, 1 + len(windows.kernel), 0)
    block = buffer.shaped(images, channels, *windows.kernel, *windows.out)
    return block.reshape(images, groups, rows, windows.count), block
