"""sublinear: the forward pass is cut into segments; their borders stay, what lies inside is made again in backward.

    maps        m0  m1  m2 [m3] m4  m5  m6 [m7] m8  m9        [ ]: a border, kept
    bytes       :----------->   :----------->   :----->       a segment ends with the border that makes it
                                                              larger than the chosen size
    backward    m8 and m9 from m7, at once; then m4 to m6 from m3; then m0 to m2

Source: Chen et al. 2016, section 4 and algorithm 3 (segments of a given number of bytes, a search over it). What
differs: the search, see docs/policies/sublinear.md. Nothing is ever swapped: what cannot be recomputed stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate, product

from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import evaluate
from chainer_ooc.problem import Decision, Problem, Verdict, can_recompute
from chainer_ooc.trace import FeatureMap, Trace

#: How finely sizes of segments are tried: a fourth root of two apart.
SIZES_PER_DOUBLING = 4


def decide(problem: Problem) -> Decision:
    """Chooses the fastest size of segments that fits, or the one that needs the least."""
    tried = []
    for number, verdicts in enumerate(_classifications(problem)):
        decision = Decision(verdicts, shares_chains=True)
        found = evaluate(problem, decision)
        if found.fits and not number:
            return decision
        tried.append((not found.fits, found.seconds if found.fits else found.floor_bytes, number, decision))
    return min(tried, key=lambda row: row[:3])[3]


def _classifications(problem: Problem) -> Iterator[tuple[Verdict, ...]]:
    """Keeps everything first, then gives each way to cut the iteration, once."""
    trace = problem.trace
    everything = (Verdict.KEEP,) * len(trace.maps)
    yield everything
    candidates = [each for each, recomputable in zip(
        trace.maps, can_recompute(trace, problem.min_bytes), strict=True) if recomputable]
    candidates.sort(key=lambda each: (each.producer, each.id))
    every = frozenset(each.id for each in candidates if not each.hidden)
    seen = {everything}
    for sizes in ([each.nbytes for each in candidates], [1] * len(candidates)):
        for borders, segment in product((_narrow(trace), every), _segments(sizes)):
            verdicts = _cut(everything, candidates, sizes, borders, segment)
            if verdicts not in seen:
                seen.add(verdicts)
                yield verdicts


def _segments(sizes: list[int]) -> list[float]:
    """Sizes of segments to try: from one for everything to one for each map."""
    if not sizes:
        return []
    whole = sum(sizes)
    steps = math.ceil(math.log2(whole / min(sizes)) * SIZES_PER_DOUBLING)
    return [whole * 2 ** (-step / SIZES_PER_DOUBLING) for step in range(steps + 2)]


def _cut(everything: tuple[Verdict, ...], candidates: list[FeatureMap], sizes: list[int], borders: frozenset[int],
         segment: float) -> tuple[Verdict, ...]:
    """Keeps each possible border with which a segment has become larger than its size."""
    verdicts, reached = list(everything), 0
    for each, size in zip(candidates, sizes, strict=True):
        reached += size
        if reached > segment and each.id in borders:
            reached = 0
        else:
            verdicts[each.id] = Verdict.RECOMPUTE
    return tuple(verdicts)


def _narrow(trace: Trace) -> frozenset[int]:
    """The maps that are, when they have been made, the only ones from inside the graph that later calls still read."""
    changes = [0] * (len(trace.calls) + 1)
    for each in trace.maps:
        if each.producer is not None:
            changes[each.producer] += 1
            changes[each.last_forward_use] -= 1
    waiting = list(accumulate(changes))
    return frozenset(each.id for each in trace.maps
                     if each.producer is not None and each.last_forward_use > each.producer
                     and waiting[each.producer] == 1)


POLICY = Policy(
    'sublinear', 'segment borders stay and the rest is recomputed; nothing is swapped', decide,
    takes_long=True)
