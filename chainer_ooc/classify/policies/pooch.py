"""pooch: keep, swap or recompute, by simulation.

After `swap_opt` has decided what is kept, each swapped map X is looked at again::

    r(X) = (time with X recomputed - time if X cost nothing) / (time with X swapped - time if X cost nothing)

"cost nothing" is an iteration in which X has no bytes and no transfer. The map with the smallest r(X) below 1 is
recomputed; maps with r(X) of 1 and more stay swapped for good; then r is worked out anew for those that are left, as
each change moves the copies of all others.

Source: PoocH 4.4.3. Where it speaks of the overhead of swapping and recomputing, ours are differences of simulated
times, which count what a change does to all other transfers and to memory. A map whose swap costs nothing is left.
"""

from __future__ import annotations

from dataclasses import replace

from chainer_ooc.classify.decision import Decision
from chainer_ooc.classify.policies import swap_opt
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import Search, with_verdicts
from chainer_ooc.classify.verdict import Verdict, can_recompute
from chainer_ooc.cost.problem import Problem
from chainer_ooc.simulate.evaluate import evaluate


def decide(problem: Problem) -> Decision:
    """Step 1, then step 2 of PoocH."""
    found = swap_opt.search(problem)
    if found.found.fits:
        recompute(found)
    return found.best


def recompute(found: Search) -> None:
    """Step 2: recomputes swapped maps as long as that is faster."""
    trace, min_bytes = found.problem.trace, found.problem.min_bytes
    possible = can_recompute(trace, min_bytes)
    left = [each for each, verdict in enumerate(found.best.verdicts) if verdict is Verdict.SWAP and possible[each]]
    while left and not found.is_over:
        swapped_seconds = found.found.seconds
        ratios = {each: overhead_ratio(found.problem, found.best, swapped_seconds, each)
                  for each in found.watched(left, 'swap or recompute')}
        left = [each for each, ratio in ratios.items() if ratio < 1]
        if left:
            chosen = min(left, key=lambda each: (ratios[each], each))
            left.remove(chosen)
            found.try_verdicts(with_verdicts(found.best.verdicts, {chosen: Verdict.RECOMPUTE}))


def overhead_ratio(problem: Problem, decision: Decision, swapped_seconds: float, map_id: int) -> float:
    """r(X) of a swapped map under the verdicts on all others; infinite if it is not below 1.

    Args:
        problem: what is decided about.
        decision: swaps the map.
        swapped_seconds: its time.
        map_id: X.
    """
    again = replace(decision, verdicts=with_verdicts(decision.verdicts, {map_id: Verdict.RECOMPUTE}))
    recomputed_seconds = evaluate(problem, again).seconds
    if recomputed_seconds >= swapped_seconds:
        return float('inf')
    free_seconds = evaluate(_without(problem, map_id), decision).seconds
    if free_seconds >= swapped_seconds:
        return 0.0
    return max(0.0, recomputed_seconds - free_seconds) / (swapped_seconds - free_seconds)


def _without(problem: Problem, map_id: int) -> Problem:
    """The same iteration, in which one map has no bytes."""
    maps = list(problem.trace.maps)
    maps[map_id] = replace(maps[map_id], nbytes=0)
    return replace(problem, trace=replace(problem.trace, maps=tuple(maps)))


POLICY = Policy('pooch', 'keep, swap or recompute, whichever the simulated timeline finds fastest', decide)
