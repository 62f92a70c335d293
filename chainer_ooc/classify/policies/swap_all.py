"""swap-all and swap-all-naive: every map leaves after its last forward use.

swap-all brings maps back as early as the profiled free memory allows, swap-all-naive together with the computation
before their use. Early is not always faster, so that swap-all takes the faster schedule of the two; see
docs/policies/swap-all.md.

Source: PoocH 4.3, and 5.1 for "swap-all (w/o scheduling)"; the comparison is ours.
"""

from chainer_ooc.classify.policies import keep
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import evaluate
from chainer_ooc.problem import EARLY, WITH_THE_STEP_BEFORE, Decision, Problem, everything


def decide(problem: Problem) -> Decision:
    """Swaps each map that can leave, with the faster schedule."""
    early, naive = Decision(everything(problem.trace, problem.min_bytes), EARLY), decide_naive(problem)
    return naive if evaluate(problem, naive).seconds < evaluate(problem, early).seconds else early


def decide_naive(problem: Problem) -> Decision:
    """Swaps each map that can leave; each comes back with the computation before its use."""
    return Decision(everything(problem.trace, problem.min_bytes), WITH_THE_STEP_BEFORE)


def decide_at_once(problem: Problem) -> Decision:
    """What a training of a very large graph begins with where its policy takes long: every map is kept, or swapped."""
    return keep.if_it_fits(problem) or decide(problem)


POLICY = Policy('swap-all', 'every map is swapped; swap-ins start as early as memory allows', decide)
NAIVE = Policy(
    'swap-all-naive', 'every map is swapped; a swap-in starts with the computation before its use', decide_naive)
