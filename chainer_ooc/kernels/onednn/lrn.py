"""Local response normalization by oneDNN, called by Chainer's functions as those of `seam` are (patch 0082).

oneDNN keeps for the gradient what it likes, as many bytes as Chainer's two arrays of the map's size have. It is the
node's `indexes`, where Chainer had iDeep's: a node that has it is for oneDNN in backward too. The result, which Chainer
keeps as well, is not needed then.

Only compiled code is taken, which oneDNN has for some exponents and processors; the other is many times as slow as
NumPy. And only sums of five neighbours, Chainer's default: oneDNN 3.2 crashes where there is one.
"""

from __future__ import annotations

from ctypes import c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainer_ooc.kernels.onednn.layouts import Array, channels_last, empty
from chainer_ooc.kernels.onednn.library import Library, UnsupportedError, made_once
from chainer_ooc.kernels.onednn.primitives import (
    FORWARD_TRAINING,
    QUERIES,
    RESULT,
    RESULT_GRADIENT,
    SOURCE,
    SOURCE_GRADIENT,
    WORKSPACE,
    Primitive,
    Shape,
    channels_last_layout,
    loaded,
)
from chainer_ooc.kernels.onednn.seam import or_none, serves

_ACROSS_CHANNELS = 0xaff
_NEIGHBOURS = 5


@dataclass(frozen=True)
class Response:
    """A normalization of maps: y = x * (k + alpha * sum of five squares) ** -beta."""

    shape: Shape
    k: float
    alpha: float
    beta: float

    def numbers(self) -> tuple[Any, ...]:
        """What oneDNN takes; it divides alpha by the number of neighbours."""
        return c_int64(_NEIGHBOURS), c_float(self.alpha * _NEIGHBOURS), c_float(self.beta), c_float(self.k)


@dataclass(frozen=True)
class Computations:
    """Both directions, and the size of what the first leaves for the second."""

    forward: Primitive
    backward: Primitive
    workspace_bytes: int


@or_none
def local_response_normalization(node: Any, x: Array) -> Any:
    """Forward of LocalResponseNormalization."""
    if x.ndim != 4 or node.n // 2 != _NEIGHBOURS // 2 or not serves(x):
        return None
    made = computations(_response(node, x))
    y, workspace = empty(x.shape), np.empty(made.workspace_bytes, np.uint8)
    made.forward.run({SOURCE: channels_last(x), RESULT: y, WORKSPACE: workspace})
    node.indexes = workspace
    return y,


def local_response_normalization_grad(node: Any, x: Array, gy: Array, workspace: Array) -> Any:
    """Forward of LocalResponseNormalizationGrad, whose forward was oneDNN's."""
    gx = empty(x.shape)
    computations(_response(node, x)).backward.run({
        SOURCE: channels_last(x), RESULT_GRADIENT: channels_last(np.asarray(gy, np.float32)), SOURCE_GRADIENT: gx,
        WORKSPACE: workspace})
    return gx,


def _response(node: Any, x: Array) -> Response:
    return Response(x.shape, float(node.k), float(node.alpha), float(node.beta))


@made_once(64)
def computations(of: Response) -> Computations:
    """Makes both directions.

    Raises:
        UnsupportedError: oneDNN has one of them not, or not as compiled code.
    """
    library = loaded()
    layout = channels_last_layout(library, of.shape)
    forward = library.created(
        'lrn_forward_primitive_desc_create', library.engine, c_int(FORWARD_TRAINING), c_int(_ACROSS_CHANNELS), layout,
        layout, *of.numbers(), library.attributes)
    backward = library.created(
        'lrn_backward_primitive_desc_create', library.engine, c_int(_ACROSS_CHANNELS), layout, layout, layout,
        *of.numbers(), forward, library.attributes)
    if any(library.implementation(each).startswith('ref') for each in (forward, backward)):
        raise UnsupportedError('oneDNN has this normalization as code that is not compiled, which is slow')
    workspace = library.queried_descriptor(forward, QUERIES[WORKSPACE])
    if workspace is None:
        raise UnsupportedError('oneDNN leaves nothing for the gradient of this normalization')
    return Computations(
        Primitive(library, forward, _layouts(library, of.shape, workspace, (SOURCE, RESULT))),
        Primitive(library, backward,
                  _layouts(library, of.shape, workspace, (SOURCE, RESULT_GRADIENT, SOURCE_GRADIENT))),
        library.nbytes(workspace))


def _layouts(library: Library, shape: Shape, workspace: c_void_p, maps: tuple[int, ...]) -> dict[int, c_void_p]:
    return {**{each: channels_last_layout(library, shape) for each in maps},
            WORKSPACE: library.created('memory_desc_clone', workspace)}
