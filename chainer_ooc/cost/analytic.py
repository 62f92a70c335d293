"""Times of an iteration on a machine that is not at hand: a roofline over what each computation calculates and moves.

    seconds = max(operations / peak operations per second, bytes / memory bandwidth)

An operation is a multiplication or an addition. Convolutions and linear functions calculate; in backward they do so
twice, for their inputs and for their weights. All others are as fast as their arrays are read and written: inputs,
parameters, outputs and what they keep for backward, each once, and some twice (`_READS_TWICE`).

No kernel reaches its roofline. Where a paper states how fast its in-core training was, `in_core_seconds`, all times are
multiplied by the factor that makes them add up to that, as if each kernel missed its roof by as much. Without one they
stay as they are.

Source: OOC-Paleo 2.2 and 3.6 (PALEO: time from operations and bytes by layer). What differs: PALEO looks up which
algorithm cuDNN takes; here all take as many operations as the definition has. Left out: the time between kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from chainer_ooc.cost.costs import Costs
from chainer_ooc.cost.gradients import (
    PASSING,
    Gradients,
    arguments_of,
    follow_gradients,
    needs_gradient,
    parameter_bytes,
)
from chainer_ooc.cost.machine import Machine
from chainer_ooc.errors import OocError
from chainer_ooc.trace import Call, Trace

#: They read their input for the statistics, and again to normalise it; their backward pass likewise, with the gradient.
_READS_TWICE = ('BatchNormalization', 'GroupNormalization', 'LayerNormalization')


@dataclass(frozen=True)
class Work:
    """What a computation does: multiplications and additions, and bytes that it reads and writes."""

    operations: int
    nbytes: int


def work_of(trace: Trace) -> tuple[Work, ...]:
    """What each position does: the calls, then the steps."""
    gradients = follow_gradients(trace)
    return (*(_forward(trace, call) for call in trace.calls),
            *(_backward(trace, number, gradients) for number in range(len(trace.steps))))


def analytic(trace: Trace, machine: Machine, in_core_seconds: float | None = None) -> Costs:
    """Returns the times of an iteration on a machine.

    Args:
        trace: the iteration; its shapes and dtypes count, its times do not.
        machine: where it runs; feature maps of the dtype that takes most bytes decide the rate of operations.
        in_core_seconds: what all computations take together, if that is known.
    """
    rate = machine.operations_per_second(_dtype(trace))
    seconds = [max(each.operations / rate, each.nbytes / machine.memory_bytes_per_second) for each in work_of(trace)]
    total = sum(seconds)
    stretch = in_core_seconds / total if in_core_seconds is not None and total else 1.0
    return Costs(tuple(stretch * each for each in seconds), machine.write_bytes_per_second,
                 machine.read_bytes_per_second, machine.latency_seconds)


def with_memory(trace: Trace, workspace_bytes: int, adds_in_place: bool = False) -> Trace:
    """Returns the iteration with what each computation allocates, worked out from the graph and not as recorded.

    A convolution takes `workspace_bytes` beside its arrays. For `adds_in_place` see `follow_gradients`.
    """
    gradients = follow_gradients(trace, adds_in_place)

    def scratch_bytes(call: Call) -> int:
        return workspace_bytes if is_convolution(call.label) else 0

    calls = tuple(replace(each, peak_bytes=made_bytes(trace, each) + scratch_bytes(each), other_bytes=0)
                  for each in trace.calls)
    steps = tuple(replace(each, other_bytes=live, peak_bytes=made + (
        scratch_bytes(trace.calls[each.call]) if each.call >= 0 else 0)) for each, live, made in zip(
            trace.steps, gradients.live_bytes, gradients.made_bytes, strict=True))
    return replace(trace, calls=calls, steps=steps)


def is_convolution(name: str) -> bool:
    """Whether a function is a convolution: of any number of dimensions, grouped, dilated, transposed or local."""
    return 'convolution' in name.lower()


def made_bytes(trace: Trace, call: Call) -> int:
    """Bytes of the feature maps that a call makes."""
    return sum(trace.maps[each].nbytes for each in trace.made_by(call.index))


def _products(call: Call) -> int:
    """Multiplications and additions of the call's product with its weights; 0 if it has none."""
    if not is_convolution(call.label) and call.label != 'LinearFunction':
        return 0
    if len(arguments_of(call)) < 2 or not call.results:
        raise OocError(f'the trace has too few shapes for call {call.index} ({call.label}), which multiplies its input '
                       'with weights, so that nothing can be worked out; record it again')
    x, weights, *_ = arguments_of(call)
    many = x if 'deconvolution' in call.label.lower() else call.results[0]
    return 2 * math.prod(many.shape) * math.prod(weights.shape[1:])


def _again_bytes(call: Call) -> int:
    return sum(each.nbytes for each in arguments_of(call)[:1]) if call.label.endswith(_READS_TWICE) else 0


def _forward(trace: Trace, call: Call) -> Work:
    if call.label == 'Reshape':
        return Work(0, 0)
    hidden_bytes = sum(trace.maps[each].nbytes for each in call.hidden)
    nbytes = sum(each.nbytes for each in (*arguments_of(call), *call.results)) + hidden_bytes + _again_bytes(call)
    return Work(_products(call), nbytes)


def _backward(trace: Trace, number: int, gradients: Gradients) -> Work:
    step = trace.steps[number]
    call = trace.calls[step.call] if step.call >= 0 else None
    nbytes = gradients.moved_bytes[number]
    if call is None or call.label in PASSING:
        return Work(0, nbytes)
    nbytes += sum(trace.maps[each].nbytes for each in step.maps) + parameter_bytes(call) + 2 * _again_bytes(call)
    products = 1 + any(needs_gradient(trace, each) for each in call.inputs)
    if products == 2 and _products(call):  # each of the two reads the gradient of the output
        nbytes += sum(each.nbytes for each in call.results)
    return Work(products * _products(call), nbytes)


def _dtype(trace: Trace) -> str:
    """Of the feature maps, by bytes."""
    nbytes: dict[str, int] = {}
    for each in trace.maps:
        if each.dtype.startswith('float'):
            nbytes[each.dtype] = nbytes.get(each.dtype, 0) + each.nbytes
    return max(nbytes, key=nbytes.__getitem__, default='float32')
