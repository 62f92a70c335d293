"""What PoocH's Chainer has in memory, where that is not what Chainer 7.8.1 has.

- All arrays are in a pool, which takes 95 % of the device when the program begins.
- The network's input stays there: its node has no creator, and such nodes are neither swapped nor recomputed.
- Backward runs in blocks, from one retained map back to the next ones, and a map is freed at the end of its own block,
  not after the last step that reads it. So c, which the normalisation reads, stays through the block of c::

      conv -> [c] -> norm -> relu -> [r] -> conv -> [c']        [c], [r]: retained
                     '----- block of r ----' '-- block of c' --'

- Local response normalisation is cuDNN's, which works from input and output, and needs no array of scales.

Source: the program that PoocH's authors published, github.com/yukiito2/chainer and /cupy, branches 3.0.0rc1-pooch and
2.0.0rc1-pooch, August 2018: `SingleDeviceMemoryPool.__init__` in cupy/cuda/memory.pyx; in chainer/variable.py
`VariableNode.ancestors_swapout`, `VariableNode.ancestors_free` and `Variable.backward`; `LocalResponseNormalization`.
Left out: that the pool is in pieces, and is compacted; that backward waits for all swap-outs, which have ended anyway
where memory is full; that Python's variables hold some maps of forward a call or more longer; that a shortcut's
normalisation belongs to the block of the sum.
"""

from __future__ import annotations

from dataclasses import replace

from chainer_ooc.cost.machine import Machine
from chainer_ooc.problem import Problem
from chainer_ooc.trace import Trace

#: Of what the driver shows of a device the pool takes so much.
POOL_SHARE = 0.95
#: A V100's driver shows 16,160 of its 16,384 MiB; see cost/machines.
SHOWN_SHARE = 16160 / 16384


def as_pooch_has_it(problem: Problem, machine: Machine) -> Problem:
    """The iteration with the memory of PoocH's Chainer, within its pool."""
    return replace(problem, trace=freed_with_blocks(problem.trace), budget_bytes=pool_bytes(machine))


def pool_bytes(machine: Machine) -> int:
    """What the pool takes of a device."""
    return int(POOL_SHARE * SHOWN_SHARE * machine.near_bytes)


def without_scales(trace: Trace) -> Trace:
    """Returns the iteration without what Chainer's own local response normalisation keeps besides input and output."""
    scales = {each for call in trace.calls if call.label == 'LocalResponseNormalization' for each in call.hidden}
    maps = tuple(replace(each, nbytes=0, retained=False, backward_uses=()) if each.id in scales else each
                 for each in trace.maps)
    return replace(trace, maps=maps)


def blocks_of(trace: Trace) -> tuple[tuple[int, int], ...]:
    """First and last position of each block of backward."""
    starts = [step.position for step in trace.steps
              if step.position == trace.backward_start or _makes_retained(trace, step.call)]
    return tuple(zip(starts, [each - 1 for each in (*starts[1:], trace.positions)], strict=True))


def _makes_retained(trace: Trace, call: int) -> bool:
    outputs = trace.calls[call].outputs if call >= 0 else ()
    return any(trace.maps[each].retained for each in outputs if each >= 0)


def freed_with_blocks(trace: Trace) -> Trace:
    """Returns the iteration with each retained map in memory until the end of its own block, and the input always."""
    end_of = {position: last for first, last in blocks_of(trace) for position in range(first, last + 1)}
    step_of = {step.call: step.position for step in trace.steps}
    maps = tuple(
        replace(each, foreign=True) if each.producer is None else
        replace(each, backward_uses=tuple(sorted({*each.backward_uses, end_of[step_of[each.producer]]})))
        if each.retained and each.backward_uses and each.producer in step_of else each for each in trace.maps)
    read: dict[int, list[int]] = {}
    for each in maps:
        for position in each.backward_uses:
            read.setdefault(position, []).append(each.id)
    steps = tuple(replace(step, maps=tuple(read.get(step.position, ()))) for step in trace.steps)
    return replace(trace, maps=maps, steps=steps)
