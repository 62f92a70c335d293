"""vdnn-all, vdnn-conv and vdnn++: swap-ins start with a step before their use, and two of three wait at each layer.

vdnn-all: every map is swapped, and copies are waited for at the end of each layer::

    compute    [ step l+1 ]..[ step l ]          . idle: the map of step l has not come
    copy-in    [ map of l     ][ map of l-1 ]

vdnn-conv: only what convolutions read is swapped, which take long enough to hide a copy::

    compute    [ conv 3 ..........][relu][norm][ conv 2 ..........]
    copy-in    [ input of conv 2 ]             [ input of conv 1 ]

vdnn++: vdnn-all without the waits, which is what `swap-all-naive` decides::

    compute    [ step l+1 ]..[ step l ].[ step l-1 ]
    copy-in    [ map of l  ][ map of l-1 ][ map of l-2 ]      a copy may outlast the step that it began with

Source: OOC-Paleo 2.1 and 3.4 for the schedules; vdnn-conv is of the vDNN paper that OOC-Paleo cites. What differs: a
swap-in for which there is no memory starts later, where vDNN fails; and a swap-out starts after the layer that reads
the map last, not beside it (see `Transit.synchronise`). Left out: vDNN++'s compression and its heuristics for memory.
"""

from chainer_ooc.classify.kinds import steps_of
from chainer_ooc.classify.policies import swap_all
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.cost.analytic import is_convolution
from chainer_ooc.problem import WITH_THE_STEP_BEFORE, Decision, Problem, Starts, Verdict, can_leave, everything


def decide_all(problem: Problem) -> Decision:
    """Swaps each map that can leave, with a wait at the end of each call and step."""
    return Decision(everything(problem.trace, problem.min_bytes), WITH_THE_STEP_BEFORE, synchronous=True)


def decide_conv(problem: Problem) -> Decision:
    """Swaps each map that a convolution reads, and keeps the others."""
    trace = problem.trace
    read = {map_id for call in trace.calls if is_convolution(call.label) for map_id in call.inputs}
    verdicts = tuple(Verdict.SWAP if each.id in read and can_leave(each, problem.min_bytes) else Verdict.KEEP
                     for each in trace.maps)
    return Decision(verdicts, Starts(ahead=1, gates=steps_of(trace, is_convolution)), synchronous=True)


ALL = Policy('vdnn-all', "vDNN: every map is swapped; copies are waited for at each layer's end", decide_all)
CONV = Policy('vdnn-conv', "vDNN: only inputs of convolutions are swapped, with waits at each layer's end", decide_conv)
PLUS_PLUS = Policy(
    'vdnn++', 'vDNN++: every map is swapped; a computation waits for its own maps alone', swap_all.decide_naive)
