"""Kinds of functions, told by their names, for the policies that decide by kind of layer.

A feature map is *of* the layer that makes it: a convolution's map is its output. PoocH does not say whether producer or
reader counts; SuperNeurons swaps the outputs of convolutions, and only by the producer do the first 39 of ResNet50's
105 maps divide into the 21 and 18 of PoocH's table 3 (by the reader it would be 18 and 21).

Where nobody retains the output itself, the map that is made from it takes its place: to make that again, the
convolution would have to run::

    Convolution2D -> (nobody's) -> ReLU -> retained      the ReLU's output is the convolution's map
    Convolution2D -> retained -> BatchNormalization -> (nobody's) -> ReLU -> retained      here it is the ReLU's own

Source: SuperNeurons 3.3.1 (which layers are worth a transfer), 3.4 (which are cheap); PoocH 5.2 and table 3.
"""

from __future__ import annotations

from collections.abc import Callable

from chainer_ooc.trace import Trace

#: Chainer's other functions whose work grows faster than the bytes that they make.
_PRODUCTS = frozenset({
    'LinearFunction', 'BilinearFunction', 'MatMul', 'BatchMatMul', 'CooMatMul', 'TensorDot', 'EinSum', 'Inv',
    'BatchInv'})


def is_convolution(name: str) -> bool:
    """Whether a function is a convolution: of any number of dimensions, grouped, dilated, transposed or local."""
    return 'convolution' in name.lower()


def is_checkpoint(name: str) -> bool:
    """Whether a function is too expensive to run again: a convolution, a product of matrices, a whole recurrence."""
    return is_convolution(name) or name in _PRODUCTS or name.startswith('NStep')


def made_by(trace: Trace, is_kind: Callable[[str], bool]) -> tuple[bool, ...]:
    """Which maps are of a kind of layer: one bool for each."""
    found: list[bool] = []
    for each in trace.maps:  # a producer's inputs were seen before its outputs
        call = None if each.producer is None else trace.calls[each.producer]
        found.append(call is not None and (is_kind(call.label) or any(
            found[other] for other in call.inputs if 0 <= other < len(found) and not trace.maps[other].retained)))
    return tuple(found)


def steps_of(trace: Trace, is_kind: Callable[[str], bool]) -> tuple[int, ...]:
    """Positions of the backward steps of a kind of layer, ascending."""
    return tuple(each.position for each in trace.steps if each.call >= 0 and is_kind(trace.calls[each.call].label))
