"""keep: in-core, but each map dies after its last backward use (P6); see docs/policies/keep.md.

It is the measure for every other policy: same bits, no transfer.

Source: SuperNeurons 3.2 (liveness analysis).
"""

from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import evaluate
from chainer_ooc.problem import Decision, Problem, Verdict


def decide(problem: Problem) -> Decision:
    """Keeps everything."""
    return Decision((Verdict.KEEP,) * len(problem.trace.maps))


def if_it_fits(problem: Problem) -> Decision | None:
    """Keeps everything if the budget is enough for that: nothing is faster than to wait for nothing."""
    kept = decide(problem)
    return kept if evaluate(problem, kept).fits else None


POLICY = Policy('keep', 'nothing leaves the device; a map is freed after its last backward use', decide)
