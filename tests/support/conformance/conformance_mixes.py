"""The mixes of verdicts that the conformance test asks for, as rows of the table of policies.

swap-all is the package's own. recompute-all and the random ones say of every map what they may: recomputation if the
map can be recomputed, a swap if it can leave.
"""
import random

from chainer_ooc.classify.policies import Policy
from chainer_ooc.problem import Decision, Verdict, can_leave, can_recompute

SWAP_ALL = 'swap-all'
RECOMPUTE_ALL = 'recompute-all'
RANDOM_MIX = 'random-mix-'


def allowed(trace, min_bytes):
    """For each map its verdicts, the most drastic last."""
    leaving = [can_leave(each, min_bytes) for each in trace.maps]
    again = can_recompute(trace, min_bytes)
    return [
        [Verdict.KEEP, *[Verdict.SWAP] * swap, *[Verdict.RECOMPUTE] * recompute]
        for swap, recompute in zip(leaving, again, strict=True)]


def recompute_all(problem):
    return Decision(tuple(each[-1] for each in allowed(problem.trace, problem.min_bytes)))


def random_mix(seed):
    def decide(problem):
        chance = random.Random(f'{seed} {problem.trace.fingerprint}')
        return Decision(tuple(chance.choice(each) for each in allowed(problem.trace, problem.min_bytes)))
    return decide


def row(name):
    """The policy of that name, or None if the package has it."""
    if name == RECOMPUTE_ALL:
        return Policy(name, 'recomputes what can be, swaps the rest', recompute_all)
    if name.startswith(RANDOM_MIX):
        return Policy(name, 'verdicts by chance', random_mix(name.removeprefix(RANDOM_MIX)))
    return None
