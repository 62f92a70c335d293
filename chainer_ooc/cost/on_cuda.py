"""An iteration as it is on a GPU with cuDNN, from one that was recorded on the host.

Chainer's functions keep other arrays there. Max pooling keeps its input and output, from which cuDNN finds the largest
element, in place of indexes; local response normalisation has one array of scales, not two. The batch is an array of
the training loop like any other, and PoocH counts it among ResNet50's 105 maps. Convolutions take a workspace of up to
8 MiB, Chainer's default.

Source: `chainer.functions` (max_pooling_nd, local_response_normalization) and `chainer.backends.cuda`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from chainer_ooc.cost.analytic import with_memory
from chainer_ooc.trace import Call, Trace

#: `chainer.backends.cuda.get_max_workspace_size()` by default.
WORKSPACE_BYTES = 8 << 20


def on_cuda(trace: Trace, adds_in_place: bool = False) -> Trace:
    """Returns the iteration as a GPU has it; an array that it does not have keeps its number, with 0 bytes.

    If `adds_in_place`, gradients are added where they lie, unlike in Chainer.
    """
    absent: set[int] = set()
    more_uses: defaultdict[int, set[int]] = defaultdict(set)
    for step in trace.steps:
        if step.call >= 0:
            call = trace.calls[step.call]
            absent.update(_absent(call))
            for map_id in _kept_besides(call):
                more_uses[map_id].add(step.position)
    maps = tuple(
        replace(each, nbytes=0, retained=False, backward_uses=()) if each.id in absent else
        replace(each, foreign=False, retained=each.retained or each.id in more_uses,
                backward_uses=tuple(sorted(more_uses[each.id].union(each.backward_uses))))
        for each in trace.maps)
    read: defaultdict[int, list[int]] = defaultdict(list)
    for each in maps:
        for position in each.backward_uses:
            read[position].append(each.id)
    steps = tuple(replace(step, maps=tuple(read[step.position])) for step in trace.steps)
    return with_memory(replace(trace, device='cuda', maps=maps, steps=steps), WORKSPACE_BYTES, adds_in_place)


def _absent(call: Call) -> tuple[int, ...]:
    if call.label.startswith('MaxPooling'):
        return call.hidden
    return call.hidden[1:] if call.label == 'LocalResponseNormalization' else ()


def _kept_besides(call: Call) -> tuple[int, ...]:
    return (*call.inputs[:1], *call.outputs[:1]) if call.label.startswith('MaxPooling') else ()
