"""Batch normalization in training on a GPU, in kernels of our own, where cuDNN would need copies of whole maps.

Three kernels each way (normalization.cu): partial sums of each channel by many blocks of threads, their merger, and the
map that is written. One block a channel would be 64 for the largest maps of ResNet50, and most of a GPU idle. The
variance takes no pass of its own: each thread sums differences from the first element that it sees, and what threads
and blocks have is merged as numbers of elements, means and squared differences. Backward computes the normalized map
where it is used: Chainer's own way writes it, and its product with the gradient, and reads both again::

                                                     maps read   written   scratch
    forward    moments of x -> y                             2         1         0
    backward   sums of gy and of gy (x - mean) -> gx         4         1         0
    Chainer's own forward                                    4         1         0
    Chainer's own backward                                   8         4         2

The bits are others than those of Chainer's own kernels, as the order of the sums is another. It depends on shapes alone
(P2), on no address, and so do the results.

Served are maps with channels first, in float16, float32 or float64, with statistics in float32 or float64. A call costs
the host its three launches and four arrays: all that follows from the shape is kept (`_partition`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

#: Blocks of threads that sum, in all: twice what the largest GPUs run at once.
BLOCKS = 2048

#: Threads of a block at most, as in normalization.cu.
THREADS = 256

#: Threads of a block that merges the parts of a channel, likewise.
MERGING_THREADS = 32

#: Bytes that a thread reads at once, at most.
UNIT_BYTES = 16

#: Units of a thread that sums are worth a block of their own.
FEWEST_UNITS = 4

#: Units of a thread that writes a map, if the map has enough: what it knows of its channel is read once for them.
WRITTEN_UNITS = 8

#: Rounds of a block through one cut of a plane, at most: indices of units in a cut fit an int.
MOST_ROUNDS = 1 << 20

#: C++'s names of dtypes.
NAMES = {'float16': '__half', 'float32': 'float', 'float64': 'double'}

KERNELS = ('moments', 'statistics', 'normalize', 'gradient_sums', 'channel_gradients', 'gradient')

_NULL = np.uint64(0)  # None would be no argument to CuPy, where this is a pointer to nothing


class Grid(NamedTuple):
    """How a kernel that reads or writes maps is launched.

    Attributes:
        blocks: (number,).
        threads: of a block, (columns along a plane, rows).
        arguments: extents of the map and of what a block takes of it, as the kernels of normalization.cu list them.
    """

    blocks: tuple[int]
    threads: tuple[int, int]
    arguments: tuple[Any, ...]


class Partition(NamedTuple):
    """What follows from shape and dtypes: which thread takes what.

    Attributes:
        computed: dtype that is computed in.
        width: elements that a thread reads at once.
        sums: grid of the kernels that sum.
        maps: grid of those that write a map.
        channels: blocks of those that merge the parts of channels, (C,).
        units: of a plane, one channel of one picture.
        parts: of a channel.
        elements: of a channel, in the dtype `computed`.
        adjust: by what the variance of a population is larger than that of its sample.
    """

    computed: Any
    width: int
    sums: Grid
    maps: Grid
    channels: tuple[int]
    units: Any
    parts: Any
    elements: Any
    adjust: Any


def serves(axis: Any, x: Any, gamma: Any, *gradients: Any) -> bool:
    """Whether a map and its gradient are normalized here, over these axes."""
    return (x.ndim >= 3 and tuple(axis) == (0, *range(2, x.ndim)) and gamma.ndim == 1 and x.size > 0
            and x.dtype.char in 'efd' and gamma.dtype.char in 'fd'
            and all(each.dtype == x.dtype and each.flags.c_contiguous for each in (x, *gradients)))


def forward(x: Any, gamma: Any, beta: Any, eps: float, decay: float, running_mean: Any,
            running_var: Any) -> tuple[Any, Any, Any, Any]:
    """Normalizes a map, and moves the running statistics in place as Chainer does, if there are any.

    Args:
        x: (N, C, spatial...).
        gamma: (C,), the scale.
        beta: (C,), the shift.
        eps: added to the variance.
        decay: weight of what the running statistics were.
        running_mean: (C,) of any float dtype, or None.
        running_var: likewise.

    Returns:
        tuple: y like x; mean, variance and 1 / sqrt(variance + eps) of the batch, (C,).
    """
    from chainer.backends import cuda

    xp = cuda.cupy
    at = _partition(x.shape, x.dtype, gamma.dtype)
    running_dtype = gamma.dtype if running_mean is None else running_mean.dtype
    moments, statistics, normalize = _kernels(xp, x.dtype, gamma.dtype, running_dtype, at.width)[:3]
    running = [] if running_mean is None else [running_mean, running_var]
    blocks = [_block(xp, each, running_dtype) for each in running]
    gamma, beta = _block(xp, gamma, gamma.dtype), _block(xp, beta, gamma.dtype)
    y = xp.empty(x.shape, x.dtype)
    # The variance lies apart: nothing but that array keeps its memory.
    var, (mean, inv_std) = xp.empty(at.channels, at.computed), xp.empty((2, *at.channels), at.computed)
    parts = xp.empty(3 * at.sums.blocks[0], at.computed)
    moments(at.sums.blocks, at.sums.threads, (x, parts, *at.sums.arguments))
    statistics(at.channels, (MERGING_THREADS,), (
        x, parts, at.units, at.parts, at.elements, np.float64(eps), np.float64(decay), at.adjust, mean, var, inv_std,
        *(blocks or (_NULL, _NULL))))
    normalize(at.maps.blocks, at.maps.threads, (x, y, mean, inv_std, gamma, beta, *at.maps.arguments))
    for own, block in zip(running, blocks, strict=True):
        if block is not own:
            own[...] = block
    return y, mean, var, inv_std


def backward(x: Any, gamma: Any, gy: Any, mean: Any, inv_std: Any) -> tuple[Any, Any, Any]:
    """The gradients of the map, its scale and its shift.

    Args:
        x: (N, C, spatial...).
        gamma: (C,), the scale.
        gy: gradient of the output, like x.
        mean: as `forward` gave it, or cuDNN.
        inv_std: likewise.

    Returns:
        tuple: gx like x; ggamma and gbeta like gamma.
    """
    from chainer.backends import cuda

    xp = cuda.cupy
    at = _partition(x.shape, x.dtype, gamma.dtype)
    sums, channel_gradients, gradient = _kernels(xp, x.dtype, gamma.dtype, gamma.dtype, at.width)[3:]
    gamma = _block(xp, gamma, gamma.dtype)
    mean, inv_std = _block(xp, mean, at.computed), _block(xp, inv_std, at.computed)
    gx = xp.empty(x.shape, x.dtype)
    ggamma, gbeta = (xp.empty(at.channels, gamma.dtype) for _ in range(2))
    scratch = xp.empty(3 * at.channels[0] + 2 * at.sums.blocks[0], at.computed)
    sums(at.sums.blocks, at.sums.threads, (x, gy, mean, scratch, *at.sums.arguments))
    channel_gradients(at.channels, (MERGING_THREADS,), (
        scratch, at.sums.arguments[0], at.parts, at.elements, inv_std, gamma, ggamma, gbeta))
    gradient(at.maps.blocks, at.maps.threads, (x, gy, gx, mean, scratch, *at.maps.arguments))
    return gx, ggamma, gbeta


@lru_cache(maxsize=4096)
def _partition(shape: Sequence[int], map_dtype: Any, gamma_dtype: Any) -> Partition:
    """Which thread takes what of a map of this shape."""
    pictures, channels, elements = shape[0], shape[1], prod(shape[2:])
    width = UNIT_BYTES // map_dtype.itemsize
    while elements % width:
        width //= 2
    sums, parts = grid_of_sums(pictures, channels, elements // width)
    computed = np.promote_types(map_dtype, gamma_dtype)
    count = pictures * elements
    return Partition(
        computed, width, sums, grid_of_maps(pictures, channels, elements // width), (channels,),
        np.int64(elements // width), np.int32(parts), computed.type(count), np.float64(count / max(count - 1, 1)))


def grid_of_sums(pictures: int, channels: int, units: int) -> tuple[Grid, int]:
    """Cuts channels into parts of pictures, and pictures too where they are few, for about `BLOCKS` blocks in all.

    Units are those of a plane, one channel of one picture. Returns the grid, and the parts of a channel.
    """
    rounds, columns = _rounds(units)
    rows = min(THREADS // columns, pictures)
    turns = _ceil(pictures, rows)
    wanted = max(1, min(BLOCKS // channels, turns * rounds // FEWEST_UNITS))
    groups = _ceil(turns, _ceil(turns, wanted))  # as few as have no more turns each
    cut_rounds = min(_ceil(rounds, max(1, wanted // groups)), MOST_ROUNDS)
    cuts = _ceil(rounds, cut_rounds)
    arguments = _arguments(channels, pictures, units, groups, cuts, cut_rounds * columns)
    return Grid((channels * groups * cuts,), (columns, rows), arguments), groups * cuts


def grid_of_maps(pictures: int, channels: int, units: int) -> Grid:
    """Cuts a map, of so many units a plane, so that each thread has about `WRITTEN_UNITS` units, of one channel."""
    rounds, columns = _rounds(units)
    rows = min(THREADS // columns, channels)
    cut_rounds = _ceil(rounds, _ceil(rounds, WRITTEN_UNITS))
    cuts = _ceil(rounds, cut_rounds)
    sides = _ceil(channels, rows)
    share = max(1, min(WRITTEN_UNITS // rounds, pictures, sides * pictures * cuts // BLOCKS))
    arguments = _arguments(channels, pictures, units, share, cuts, cut_rounds * columns)
    return Grid((sides * _ceil(pictures, share) * cuts,), (columns, rows), arguments)


def _rounds(units: int) -> tuple[int, int]:
    """How often a block goes along a plane, and the threads beside one another that then have the most to do."""
    rounds = _ceil(units, THREADS)
    return rounds, _ceil(units, rounds)


def _arguments(channels: int, pictures: int, units: int, *shares: int) -> tuple[Any, ...]:
    """In the types that normalization.cu has them in."""
    return np.int32(channels), np.int32(pictures), np.int64(units), *map(np.int32, shares)


def _ceil(amount: int, share: int) -> int:
    return -(-amount // share)


@cache
def _kernels(xp: Any, map_dtype: Any, gamma_dtype: Any, running_dtype: Any, width: int) -> tuple[Any, ...]:
    """The kernels in the order of `KERNELS`; CuPy compiles them when they are first run on a device."""
    code = source(map_dtype, gamma_dtype, running_dtype, width)
    options = '--std=c++17', '--fmad=false'
    return tuple(xp.RawKernel(code, f'ooc_bn_{name}', options) for name in KERNELS)


def source(map_dtype: Any, gamma_dtype: Any, running_dtype: Any, width: int) -> str:
    """The text of the kernels for these dtypes.

    Args:
        map_dtype: of maps.
        gamma_dtype: of scale, shift and their gradients.
        running_dtype: of running statistics.
        width: elements that a thread reads at once.
    """
    computed = np.promote_types(map_dtype, gamma_dtype)
    types = {'MAP': map_dtype, 'GAMMA': gamma_dtype, 'RUNNING': running_dtype, 'COMPUTED': computed,
             'MOVED': np.promote_types(computed, running_dtype)}
    lines = [f'#define {name} {NAMES[dtype.name]}' for name, dtype in types.items()]
    if np.dtype('float16') in types.values():
        lines += ['#define HALF', '#include <cuda_fp16.h>']
    return '\n'.join([*lines, f'#define WIDTH {width}', _text()])


@cache
def _text() -> str:
    return Path(__file__).with_name('normalization.cu').read_text()


def _block(xp: Any, array: Any, dtype: Any) -> Any:
    """The array, or a copy where kernels could not read it: of another dtype, or not one block of memory."""
    return array if array.dtype == dtype and array.flags.c_contiguous else xp.ascontiguousarray(array, dtype)
