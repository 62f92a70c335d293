"""swap-all: every map leaves after its last forward use and comes back as early as the profiled free memory allows.

Source: PoocH 4.3.
"""

from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.verdict import Verdict, everything
from chainer_ooc.trace import Trace


def classify(trace: Trace, budget_bytes: int, min_bytes: int) -> tuple[Verdict, ...]:
    """Swaps each map that can leave."""
    return everything(trace, min_bytes)


POLICY = Policy('swap-all', 'every map is swapped; swap-ins start as early as memory allows', classify, early=True)
