"""ReLU, its gradient, and sums by oneDNN, called by Chainer's functions as those of `seam` are (patch 0082).

The bits are NumPy's. Each is a chain of operations in one pass over arrays that have one layout without gaps, whatever
it is:

    ReLU      max(x, 0), max(that, x), that + 0
    gradient  max(y, 0), that > 0, that * gy
    sum       x0 + x1, that + x2, ...

oneDNN's own ReLU makes 0 of NaN, which hides a training that diverges. So does max(x, 0); but the second maximum has
its second operand where one of the two is NaN. Adding 0 makes 0 of -0. The gradient is gy * (y > 0) for NaN in y or gy
too.

That an operation gives NaN so is the processor's way and not promised. Each chain is tried first, with numbers of every
kind; one that gives other bits than NumPy is none that oneDNN has.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from ctypes import c_int
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainer_ooc.kernels.onednn.layouts import Array, channels_last, is_channels_last
from chainer_ooc.kernels.onednn.library import Library, UnsupportedError, made_once
from chainer_ooc.kernels.onednn.primitives import RESULT, SOURCE, Primitive, loaded, plain_layout
from chainer_ooc.kernels.onednn.seam import MOST_AXES, is_wanted, or_none

#: Smaller arrays are NumPy's: a call of oneDNN costs some 20 µs, and its chains are no faster than NumPy in a cache.
LEAST_ELEMENTS, LEAST_ELEMENTS_OF_GRADIENTS, LEAST_ELEMENTS_OF_SUMS = 1 << 18, 1 << 20, 1 << 20

_MOST_TERMS = 16
_SECOND_SOURCE, _POST_OPERATION = 2, 32768  # arguments
_ADD, _MULTIPLY, _MAXIMUM, _GREATER = 0x1fff0, 0x1fff1, 0x1fff2, 0x1fff7
_ZERO = None


@dataclass(frozen=True)
class Chain:
    """Operations of two operands, each but the first of what the one before gave and of another operand.

    Attributes:
        operations: their numbers.
        operands: one more; an array's position among those given, or None for the number 0.
    """

    operations: tuple[int, ...]
    operands: tuple[int | None, ...]


RELU = Chain((_MAXIMUM, _MAXIMUM, _ADD), (0, _ZERO, 0, _ZERO))
RELU_GRADIENT = Chain((_MAXIMUM, _GREATER, _MULTIPLY), (0, _ZERO, _ZERO, 1))


def sum_of(terms: int) -> Chain:
    """Their sum, from left to right."""
    return Chain((_ADD,) * (terms - 1), tuple(range(terms)))


@or_none
def relu(x: Array) -> Any:
    """Forward of ReLU."""
    return _computed(RELU, _together((x,), LEAST_ELEMENTS))


@or_none
def relu_grad(y: Array, gy: Array) -> Any:
    """Forward of ReLUGrad2."""
    return _computed(RELU_GRADIENT, _together((y, gy), LEAST_ELEMENTS_OF_GRADIENTS))


@or_none
def add(*terms: Array) -> Any:
    """Forward of Add and MultiAdd."""
    if not 2 <= len(terms) <= _MOST_TERMS:
        return None
    arrays = _together(terms, LEAST_ELEMENTS_OF_SUMS)
    if arrays is None or loaded().threads() != 1:
        return _computed(sum_of(len(terms)), arrays)
    if arrays is terms:
        return None  # NumPy is as fast
    y = arrays[0] + arrays[1]
    for each in arrays[2:]:
        y += each
    return y,


def _computed(chain: Chain, arrays: Sequence[Array] | None) -> Any:
    if arrays is None:
        return None
    result = np.empty_like(arrays[0])
    _run(computation(chain, result.size), chain, arrays, result)
    return result,


def _together(arrays: Sequence[Array], least: int) -> Sequence[Array] | None:
    """Returns arrays that lie alike without gaps: these, or channels-last ones of which some were C-contiguous.

    To copy some is less work than what NumPy does with two layouts. None if this is for NumPy.
    """
    first = arrays[0]
    if first.size < least or not all(map(_is_float32, arrays)) or any(
            each.shape != first.shape for each in arrays[1:]) or not is_wanted():
        return None
    if all(each.flags.c_contiguous for each in arrays):
        return arrays
    if 2 < first.ndim <= MOST_AXES and any(map(is_channels_last, arrays)):
        return [channels_last(each) for each in arrays] if all(
            each.flags.c_contiguous or is_channels_last(each) for each in arrays) else None
    steps = [_steps(each) for each in arrays]
    return arrays if _is_dense(first) and all(each == steps[0] for each in steps) else None


def _is_float32(array: Array) -> bool:
    return type(array) is np.ndarray and array.dtype == np.float32 and array.flags.aligned


def _steps(array: Array) -> list[tuple[int, int]]:
    """Step and extent of each axis but those of one element, whose steps do not matter."""
    return [(step, extent) for step, extent in zip(array.strides, array.shape, strict=True) if extent > 1]


def _is_dense(array: Array) -> bool:
    expected = array.itemsize
    for step, extent in sorted(_steps(array)):
        if step != expected:
            return False
        expected *= extent
    return True


# --- primitives -------------------------------------------------------------------------------------------------------


@made_once(512)
def computation(chain: Chain, size: int) -> Primitive:
    """Makes a chain for arrays of so many elements.

    Raises:
        UnsupportedError: oneDNN has it not, or not as compiled code, or not with NumPy's bits.
    """
    _tried(chain)
    return _made(loaded(), chain, size)


def _run(primitive: Primitive, chain: Chain, arrays: Sequence[Array], result: Array) -> None:
    zero = np.zeros(1, np.float32)
    operands = (zero if each is _ZERO else arrays[each] for each in chain.operands)
    primitive.run({RESULT: result, **dict(zip(_arguments(chain), operands, strict=True))})


def _arguments(chain: Chain) -> list[int]:
    """What oneDNN calls the operands."""
    later = range(1, len(chain.operations))
    return [SOURCE, _SECOND_SOURCE, *(_POST_OPERATION * number | _SECOND_SOURCE for number in later)]


def _made(library: Library, chain: Chain, size: int) -> Primitive:
    shapes = {argument: (1,) if operand is _ZERO else (size,)
              for argument, operand in zip(_arguments(chain), chain.operands, strict=True)}
    layouts = {argument: plain_layout(library, shape) for argument, shape in {**shapes, RESULT: (size,)}.items()}
    attributes, operations = library.new_attributes(), library.created('post_ops_create')
    for operation, argument in zip(chain.operations[1:], _arguments(chain)[2:], strict=True):
        library.call('post_ops_append_binary', operations, c_int(operation), layouts[argument])
    library.call('primitive_attr_set_post_ops', attributes, operations)
    descriptor = library.created('binary_primitive_desc_create', library.engine, c_int(chain.operations[0]),
                                 layouts[SOURCE], layouts[_SECOND_SOURCE], layouts[RESULT], attributes)
    if library.implementation(descriptor).startswith('ref'):
        raise UnsupportedError('oneDNN has this computation as code that is not compiled, which is slow')
    return Primitive(library, descriptor, layouts)


# --- trial ------------------------------------------------------------------------------------------------------------


@made_once(64)
def _tried(chain: Chain) -> bool:
    """Compares a chain with NumPy.

    Raises:
        UnsupportedError: they differ, or oneDNN has it not.
    """
    arrays = _trial_arrays(len({*chain.operands} - {_ZERO}))
    result = np.empty_like(arrays[0])
    _run(_made(loaded(), chain, result.size), chain, arrays, result)
    with np.errstate(all='ignore'):
        expected = _by_numpy(chain, arrays)
    is_nan = np.isnan(expected)
    if not np.array_equal(np.isnan(result), is_nan) or result[~is_nan].tobytes() != expected[~is_nan].tobytes():
        raise UnsupportedError('oneDNN does not compute this as NumPy does')
    return True


def _trial_arrays(count: int) -> list[Array]:
    """Every pair of numbers of all kinds; further arrays repeat the two."""
    kinds = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1.5, -2.5, 1e-40, -1e-40, 3e38, -3e38], np.float32)
    pairs = np.repeat(kinds, kinds.size), np.tile(kinds, kinds.size)
    return [np.roll(pairs[number % 2], number // 2) for number in range(count)]


def _by_numpy(chain: Chain, arrays: Sequence[Array]) -> Array:
    if chain == RELU:
        return np.maximum(arrays[0], 0, dtype=np.float32)
    if chain == RELU_GRADIENT:
        return arrays[1] * (arrays[0] > 0)
    return functools.reduce(np.add, arrays)
