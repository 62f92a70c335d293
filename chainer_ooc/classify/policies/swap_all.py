"""swap-all: every map leaves after its last forward use and comes back as early as the profiled free memory allows.

Early is not always faster. The profile knows no copies: a swap-in that begins early, or a map that is wanted back
before it is gone, can take memory that a computation then waits for, until a long swap-out ends. So both schedules are
simulated, and where swap-ins with the step before (`swap_all_naive`) make the iteration faster, they are taken.

Source: PoocH 4.3; the comparison is ours.
"""

from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import evaluate
from chainer_ooc.problem import EARLY, WITH_THE_STEP_BEFORE, Decision, Problem, everything


def decide(problem: Problem) -> Decision:
    """Swaps each map that can leave."""
    verdicts = everything(problem.trace, problem.min_bytes)
    early, naive = Decision(verdicts, EARLY), Decision(verdicts, WITH_THE_STEP_BEFORE)
    return naive if evaluate(problem, naive).seconds < evaluate(problem, early).seconds else early


POLICY = Policy('swap-all', 'every map is swapped; swap-ins start as early as memory allows', decide)
