"""keep: in-core, but each map dies after its last backward use (P6).

Chainer holds the whole graph from `loss`, so its peak never falls during backward; liveness alone frees about half of
ResNet50's. It is the measure for every other policy: same bits, no transfer.

Source: SuperNeurons 3.2 (liveness analysis).
"""

from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.verdict import Verdict
from chainer_ooc.trace import Trace


def classify(trace: Trace, budget_bytes: int, min_bytes: int) -> tuple[Verdict, ...]:
    """Keeps everything."""
    return (Verdict.KEEP,) * len(trace.maps)


POLICY = Policy('keep', 'nothing leaves the device; a map is freed after its last backward use', classify, early=False)
