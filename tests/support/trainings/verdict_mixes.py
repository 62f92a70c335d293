"""Policies for tests: recompute whatever can be, map it, or any mix of verdicts that is allowed.

`recompute-all`, `map-all`, `mix-0` to `mix-7` and `map-mix-0` to `map-mix-3` are put into the table while a test has
the fixture `verdict_mixes`.
"""
import dataclasses
import random

from chainer_ooc.classify.policies import Policy
from chainer_ooc.problem import Decision, Starts, Verdict, can_leave, can_recompute, everything

SEEDS = range(8)
MIXES = ('recompute-all', *(f'mix-{seed}' for seed in SEEDS))
MAPPED = ('map-all', *(f'map-mix-{seed}' for seed in range(4)))


def recompute_all(problem):
    """RECOMPUTE where it can be, else SWAP where it can be, else KEEP."""
    return Decision(tuple(verdicts[-1] for verdicts in allowed(problem.trace, problem.min_bytes)))


def mix(seed):
    """Draws each map's verdict from those allowed."""
    def decide(problem):
        draws = random.Random(seed)
        return Decision(tuple(draws.choice(verdicts) for verdicts in allowed(problem.trace, problem.min_bytes)))
    return decide


def map_all(problem):
    """Everything that can leave is read where it is."""
    return Decision(everything(problem.trace, problem.min_bytes), Starts(ahead=2, checks_memory=False), mapped=True)


def mapped(decide):
    """The same verdicts; what is swapped is read where it is."""
    return lambda problem: dataclasses.replace(decide(problem), mapped=True)


def allowed(trace, min_bytes):
    """The verdicts that each map may have."""
    for feature_map, recomputable in zip(trace.maps, can_recompute(trace, min_bytes), strict=True):
        swappable = can_leave(feature_map, min_bytes)
        yield [Verdict.KEEP] + [Verdict.SWAP] * swappable + [Verdict.RECOMPUTE] * recomputable


POLICIES = {'recompute-all': Policy('recompute-all', 'for tests', recompute_all)} | {
    f'mix-{seed}': Policy(f'mix-{seed}', 'for tests', mix(seed)) for seed in SEEDS} | {
    'map-all': Policy('map-all', 'for tests', map_all)} | {
    f'map-mix-{seed}': Policy(f'map-mix-{seed}', 'for tests', mapped(mix(seed))) for seed in range(4)}
