"""Kinds of functions, by their names, for the policies that decide by kind of layer.

A feature map is *of* the layer that makes it: a convolution's map is its output. PoocH does not say whether producer or
reader counts; SuperNeurons swaps the outputs of convolutions, and only by the producer do the first 39 of ResNet50's
105 maps divide into the 21 and 18 of PoocH's table 3 (by the reader it would be 18 and 21).

Where no function retains the output itself, the map that is made from it takes its place: to make that again, the
convolution would have to run::

    Convolution2D -> (not retained) -> ReLU -> retained      the ReLU's output is the convolution's map
    Convolution2D -> retained -> BatchNormalization -> (not retained) -> ReLU -> retained      it is the ReLU's own

A *segment* of cheap layers begins at a checkpoint, and also where two segments meet, such as the sum at the end of a
residual block: from there a chain would reach back through every block before. SuperNeurons does not say so, but only
so do its segments give the recomputations of its table 1, for all networks and strategies (`papers/superneurons.py`).

Source: SuperNeurons 3.3.1 (which layers are worth a transfer), 3.4 and table 1 (which are cheap); PoocH 5.2, table 3.
"""

from __future__ import annotations

from collections.abc import Callable

from chainer_ooc.cost.analytic import is_convolution
from chainer_ooc.trace import Trace

#: Chainer's other functions whose work grows faster than the bytes that they make.
_PRODUCTS = frozenset({
    'LinearFunction', 'BilinearFunction', 'MatMul', 'BatchMatMul', 'CooMatMul', 'TensorDot', 'EinSum', 'Inv',
    'BatchInv'})


def is_checkpoint(name: str) -> bool:
    """Whether a function is too expensive to run again: a convolution, a product of matrices, a whole recurrence."""
    return is_convolution(name) or name in _PRODUCTS or name.startswith('NStep')


def calls_of(trace: Trace, is_kind: Callable[[str], bool]) -> frozenset[int]:
    """The calls of a kind of layer."""
    return frozenset(call.index for call in trace.calls if is_kind(call.label))


def segment_starts(trace: Trace) -> frozenset[int]:
    """The calls with which a segment of cheap layers begins: checkpoints, and what joins two segments."""
    starts: set[int] = set()
    segment_of: dict[int, int] = {}  # map: the call with which its segment begins
    for call in trace.calls:
        met = {segment_of[each] for each in call.inputs if each in segment_of}
        if is_checkpoint(call.label) or len(met) > 1:
            starts.add(call.index)
            met = {call.index}
        segment_of.update(dict.fromkeys(trace.made_by(call.index), min(met, default=call.index)))
    return frozenset(starts)


def are_of(trace: Trace, calls: frozenset[int]) -> tuple[bool, ...]:
    """Which maps are of one of these calls: one bool for each."""
    found: list[bool] = []
    for each in trace.maps:  # a producer's inputs were seen before its outputs
        producer = each.producer
        found.append(producer is not None and (producer in calls or any(
            found[other] for other in trace.calls[producer].inputs
            if 0 <= other < len(found) and not trace.maps[other].retained)))
    return tuple(found)


def steps_of(trace: Trace, is_kind: Callable[[str], bool]) -> tuple[int, ...]:
    """Positions of the backward steps of a kind of layer, ascending."""
    return tuple(each.position for each in trace.steps if each.call >= 0 and is_kind(trace.calls[each.call].label))
