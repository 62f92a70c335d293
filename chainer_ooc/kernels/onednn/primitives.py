"""Computations as oneDNN's primitives: made once for a geometry, run with arrays.

Feature maps are channels-last: arrays of the shape that Chainer knows (batch, channels, then axes), whose memory has
the channels of a pixel side by side. That is the layout in which oneDNN needs neither copies nor scratch of the size of
a map. Weights lie as Chainer has them, and are laid out anew for each call where a primitive wants them otherwise.

Scratch is allocated with NumPy for each call, so that it counts in the account of near memory; oneDNN keeps the code
that it has compiled, and no arrays.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from ctypes import c_int, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainer_ooc.kernels.onednn.library import Handle, Library, dimensions, load, made_once

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

_FLOAT32 = 3
_ANY_LAYOUT = 1
FORWARD_TRAINING = 64
_CONVOLUTION_DIRECT = 1

#: Arguments of primitives. What oneDNN calls a source is the input of the forward computation, also in backward.
SOURCE, RESULT, WEIGHTS, BIAS = 1, 17, 33, 41
WORKSPACE, SCRATCHPAD = 64, 80  # the first: what forward leaves for the gradient
SOURCE_GRADIENT, RESULT_GRADIENT, WEIGHTS_GRADIENT = 129, 145, 161
#: Queries for memory descriptors of a primitive.
QUERIES = {WEIGHTS: 131, WEIGHTS_GRADIENT: 132, WORKSPACE: 135, SCRATCHPAD: 136}


@dataclass(frozen=True)
class Convolution:
    """The geometry of a convolution, whose gradients are computations of the same geometry.

    Attributes:
        x_shape: of its input.
        w_shape: of its weights as Chainer has them: output channels, input channels of a group, then axes.
        y_shape: of its output.
        stride: of each axis.
        dilate: of each axis; 1 is dense.
        pad: before the input, of each axis.
        groups: number of groups of channels.
    """

    x_shape: Shape
    w_shape: Shape
    y_shape: Shape
    stride: Shape
    dilate: Shape
    pad: Shape
    groups: int

    def grouped_w_shape(self) -> Shape:
        """The weights' shape as oneDNN has it: the groups are an axis of their own."""
        if self.groups == 1:
            return self.w_shape
        return self.groups, self.w_shape[0] // self.groups, *self.w_shape[1:]


class Primitive:
    """A computation that is ready to run. May be run by several threads at once.

    Args:
        library: the library.
        descriptor: of the primitive.
        layouts: the memory descriptor of each argument, but for the scratchpad.
        weights: the argument that may have to be laid out anew, or None.

    Attributes:
        scratch_bytes: of the scratchpad of a run.
    """

    def __init__(self, library: Library, descriptor: Handle, layouts: Mapping[int, c_void_p],
                 weights: int | None = None) -> None:
        self._library, self._layouts = library, dict(layouts)
        self._descriptor = descriptor  # what is queried lives no longer
        self._primitive = library.created('primitive_create', descriptor)
        self.scratch_bytes = 0
        scratchpad = library.queried_descriptor(descriptor, QUERIES[SCRATCHPAD])
        if scratchpad is not None:
            self._layouts[SCRATCHPAD], self.scratch_bytes = scratchpad, library.nbytes(scratchpad)
        self._weights, self._reorder = weights, None
        if weights is not None:
            wanted = library.queried_descriptor(descriptor, QUERIES[weights])
            assert wanted is not None, 'a primitive with weights has no layout of them'
            if not library.equal(wanted, self._layouts[weights]):
                ways = self._layouts[weights], wanted
                self._reorder = Reorder(library, *(reversed(ways) if weights == WEIGHTS_GRADIENT else ways))
                self._layouts[weights] = wanted

    def run(self, arrays: Mapping[int, Array]) -> None:
        """Computes.

        Args:
            arrays: for each argument one that has its layout; results are written to.
        """
        given = dict(arrays)
        if self._reorder is not None and self._weights is not None:
            laid_out = np.empty(self._library.nbytes(self._layouts[self._weights]), np.uint8)
            given[self._weights] = laid_out
            if self._weights == WEIGHTS:
                self._reorder.run(arrays[WEIGHTS], laid_out)
        if self.scratch_bytes:
            given[SCRATCHPAD] = np.empty(self.scratch_bytes, np.uint8)
        execute(self._library, self._primitive, {each: (self._layouts[each], array) for each, array in given.items()})
        if self._reorder is not None and self._weights == WEIGHTS_GRADIENT:
            self._reorder.run(given[WEIGHTS_GRADIENT], arrays[WEIGHTS_GRADIENT])


class Reorder:
    """Copies an array to another layout; `source` and `target` are memory descriptors."""

    def __init__(self, library: Library, source: c_void_p, target: c_void_p) -> None:
        self._library, self._source, self._target = library, source, target
        self._descriptor = library.created('reorder_primitive_desc_create', source, library.engine, target,
                                           library.engine, library.attributes)
        self._primitive = library.created('primitive_create', self._descriptor)
        scratchpad = library.queried_descriptor(self._descriptor, QUERIES[SCRATCHPAD])
        self._scratchpad = scratchpad if scratchpad is not None and library.nbytes(scratchpad) else None

    def run(self, source: Array, target: Array) -> None:
        """Copies."""
        given = {SOURCE: (self._source, source), RESULT: (self._target, target)}
        if self._scratchpad is not None:
            given[SCRATCHPAD] = self._scratchpad, np.empty(self._library.nbytes(self._scratchpad), np.uint8)
        execute(self._library, self._primitive, given)


class _Argument(ctypes.Structure):
    """dnnl_exec_arg_t."""

    _fields_ = (('argument', c_int), ('memory', c_void_p))


def execute(library: Library, primitive: c_void_p, given: Mapping[int, tuple[c_void_p, Array]]) -> None:
    """Runs a primitive with arrays, each with its memory descriptor."""
    memories = [library.created('memory_create', layout, library.engine,
                                c_void_p(array.__array_interface__['data'][0])) for layout, array in given.values()]
    arguments = (_Argument * len(given))(*map(_Argument, given, memories))
    library.call('primitive_execute', primitive, library.stream, c_int(len(given)), arguments)
    library.call('stream_wait', library.stream)


# --- making them ------------------------------------------------------------------------------------------------------


@made_once(1024)
def convolution(of: Convolution, argument: int, with_bias: bool = False) -> Primitive:
    """Makes one of the three computations of a convolution.

    Args:
        of: its geometry.
        argument: what is computed: RESULT, SOURCE_GRADIENT or WEIGHTS_GRADIENT.
        with_bias: a bias is added to the result.

    Raises:
        UnsupportedError: oneDNN cannot compute it.
    """
    library = loaded()
    names = {RESULT: (SOURCE, WEIGHTS, RESULT), SOURCE_GRADIENT: (SOURCE_GRADIENT, WEIGHTS, RESULT_GRADIENT),
             WEIGHTS_GRADIENT: (SOURCE, WEIGHTS_GRADIENT, RESULT_GRADIENT)}[argument]
    x, y = channels_last_layout(library, of.x_shape), channels_last_layout(library, of.y_shape)
    w_shape = of.grouped_w_shape()
    any_w = library.created('memory_desc_create_with_tag', c_int(len(w_shape)), dimensions(w_shape), c_int(_FLOAT32),
                            c_int(_ANY_LAYOUT))
    layouts = {names[0]: x, names[1]: plain_layout(library, w_shape), names[2]: y}
    if with_bias:
        layouts[BIAS] = plain_layout(library, (of.w_shape[0],))
    geometry = [dimensions(each) for each in (
        of.stride, [each - 1 for each in of.dilate], of.pad,
        pad_after(of.x_shape, of.y_shape, of.w_shape[2:], of.stride, of.dilate, of.pad))]
    bias = layouts.get(BIAS) or c_void_p()
    direct, no_hint = c_int(_CONVOLUTION_DIRECT), c_void_p()
    name, arguments = {
        RESULT: ('forward', (c_int(FORWARD_TRAINING), direct, x, any_w, bias, y, *geometry)),
        SOURCE_GRADIENT: ('backward_data', (direct, x, any_w, y, *geometry, no_hint)),
        WEIGHTS_GRADIENT: ('backward_weights', (direct, x, any_w, c_void_p(), y, *geometry, no_hint))}[argument]
    descriptor = library.created(f'convolution_{name}_primitive_desc_create', library.engine, *arguments,
                                 library.attributes)
    return Primitive(library, descriptor, layouts, names[1])


@made_once(1024)
def to_channels_last(shape: Shape) -> Reorder:
    """Makes the copy of a C-contiguous array to a channels-last one."""
    library = loaded()
    return Reorder(library, plain_layout(library, shape), channels_last_layout(library, shape))


def pad_after(x_shape: Shape, y_shape: Shape, kernel: Shape, stride: Shape, dilate: Shape, pad: Shape) -> Shape:
    """The padding after the input that gives just this output; negative where pixels are left over."""
    return tuple((out - 1) * step + (size - 1) * dilated + 1 - extent - before for out, step, size, dilated, extent,
                 before in zip(y_shape[2:], stride, kernel, dilate, x_shape[2:], pad, strict=True))


def loaded() -> Library:
    """The library, where it is known to be there."""
    library = load()
    assert library is not None, 'a primitive is made without the library'
    return library


# --- layouts ----------------------------------------------------------------------------------------------------------


def plain_layout(library: Library, shape: Shape) -> Handle:
    """The memory descriptor of a C-contiguous float32 array."""
    return _strided(library, shape, [math.prod(shape[axis + 1:]) for axis in range(len(shape))])


def channels_last_layout(library: Library, shape: Shape, data_type: int = _FLOAT32) -> Handle:
    """The memory descriptor of a channels-last array, of float32 unless told."""
    return _strided(library, shape, channels_last_strides(shape), data_type)


def channels_last_strides(shape: Shape) -> list[int]:
    """Steps of each axis, in elements."""
    channels = shape[1]
    inner = [channels * math.prod(shape[axis + 1:]) for axis in range(2, len(shape))]
    return [channels * math.prod(shape[2:]), 1, *inner]


def _strided(library: Library, shape: Shape, strides: list[int], data_type: int = _FLOAT32) -> Handle:
    return library.created('memory_desc_create_with_strides', c_int(len(shape)), dimensions(shape), c_int(data_type),
                           dimensions(strides))
