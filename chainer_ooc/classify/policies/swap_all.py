"""swap-all: every map leaves after its last forward use and comes back as early as the profiled free memory allows.

Source: PoocH 4.3.
"""

from chainer_ooc.classify.decision import EARLY, Decision
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.verdict import everything
from chainer_ooc.cost.problem import Problem


def decide(problem: Problem) -> Decision:
    """Swaps each map that can leave."""
    return Decision(everything(problem.trace, problem.min_bytes), EARLY)


POLICY = Policy('swap-all', 'every map is swapped; swap-ins start as early as memory allows', decide)
