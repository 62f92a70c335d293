"""vdnn++: vdnn-all without the waits: a computation begins as soon as its own maps have come.

    compute    [ step l+1 ]..[ step l ].[ step l-1 ]
    copy-in    [ map of l  ][ map of l-1 ][ map of l-2 ]      a copy may outlast the step that it began with

Source: OOC-Paleo 2.1. What differs: of the better schedule only its aim is told there, so that nothing but the waits
is taken away; that is the schedule which PoocH 5.1 measures as "w/o scheduling" (swap-all-naive). vDNN++'s compression
and its heuristics for memory are left out.
"""

from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.problem import WITH_THE_STEP_BEFORE, Decision, Problem, everything


def decide(problem: Problem) -> Decision:
    """Swaps each map that can leave; a swap-in starts with the step before its use."""
    return Decision(everything(problem.trace, problem.min_bytes), WITH_THE_STEP_BEFORE)


POLICY = Policy('vdnn++', 'vDNN++: every map is swapped; a computation waits for its own maps alone', decide)
