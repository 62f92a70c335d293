"""vdnn-all: every map is swapped, and copies are waited for at the end of each layer.

    compute    [ step l+1 ]..[ step l ]          . idle: the map of step l has not come
    copy-in    [ map of l     ][ map of l-1 ]

A swap-in starts together with the step before the one that reads the map; that one starts when both have ended.

Source: OOC-Paleo 2.1 and 3.4. What differs: a swap-in for which there is no memory starts later, where vDNN fails; and
a swap-out starts after the layer that reads the map last, not beside it (see `execute.iteration`).
"""

from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.problem import WITH_THE_STEP_BEFORE, Decision, Problem, everything


def decide(problem: Problem) -> Decision:
    """Swaps each map that can leave, with a wait at the end of each call and step."""
    return Decision(everything(problem.trace, problem.min_bytes), WITH_THE_STEP_BEFORE, synchronous=True)


POLICY = Policy('vdnn-all', "vDNN: every map is swapped; copies are waited for at each layer's end", decide)
