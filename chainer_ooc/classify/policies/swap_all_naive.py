"""swap-all-naive: every map is swapped, and its swap-in starts together with the computation before its use.

Source: PoocH 5.1, "swap-all (w/o scheduling)".
"""

from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.problem import WITH_THE_STEP_BEFORE, Decision, Problem, everything


def decide(problem: Problem) -> Decision:
    """Swaps each map that can leave."""
    return Decision(everything(problem.trace, problem.min_bytes), WITH_THE_STEP_BEFORE)


POLICY = Policy(
    'swap-all-naive', 'every map is swapped; a swap-in starts with the computation before its use', decide)
