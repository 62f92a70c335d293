"""pooch: keep, swap or recompute, by simulation; see docs/policies/pooch.md.

After `swap_opt` has decided what is kept, the swapped map X with the smallest r(X) below 1 is recomputed, again and
again, until there is none::

    r(X) = (time with X recomputed - time if X cost nothing) / (time with X swapped - time if X cost nothing)

Source: PoocH 4.4.3. What differs: its overheads are differences of simulated times here, a map whose ratio is once 1 or
more gets another chance, and two more beginnings are tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from chainer_ooc.classify.policies import capacity, keep, swap_opt
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import Evaluation, Search, evaluate
from chainer_ooc.problem import Decision, Problem, Verdict, can_recompute, changed, everything
from chainer_ooc.schedule.chains import calls_again

#: So many ratios are worked out anew before a map is chosen.
FRONT = 16
#: With more maps, ratios are estimated, and so many groups lead through all of them.
SIMULATED_MAPS = 256
GROUPS = 64


def decide(problem: Problem) -> Decision:
    """Step 1, then step 2 of PoocH; or step 2 from another beginning, where that is faster."""
    kept = keep.if_it_fits(problem)
    if kept is not None:
        return kept
    without_keeps = Search(problem, Decision(everything(problem.trace, problem.min_bytes)))
    possible = recomputable(without_keeps)
    if without_keeps.found.fits:
        _recompute_in_groups(without_keeps, list(possible))
    found = swap_opt.search(replace(problem, limit_seconds=without_keeps.left_seconds))
    without_recomputation = Search(found.problem, found.best)
    recompute(found)
    found.try_decision(without_keeps.best)
    if len(possible) <= SIMULATED_MAPS:
        from_the_output = Search(replace(problem, limit_seconds=found.left_seconds), capacity.decide(problem))
        recompute(from_the_output)
        found.try_decision(from_the_output.best)
    swap_opt.finish(found)
    found.try_decision(swap_opt.finish(without_recomputation))  # where spared copies may have saved more
    return found.best


def recompute(found: Search) -> None:
    """Step 2: recomputes swapped maps as long as that is faster; none if the first decision does not fit."""
    left = recomputable(found) if found.found.fits else []
    if len(left) <= SIMULATED_MAPS:
        _recompute_one_by_one(found, left)
    else:
        _recompute_in_groups(found, left)


def recomputable(found: Search) -> list[int]:
    """The swapped maps of the best decision that can be made again."""
    possible = can_recompute(found.problem.trace, found.problem.min_bytes)
    return [each for each, verdict in enumerate(found.best.verdicts) if verdict is Verdict.SWAP and possible[each]]


def _recompute_one_by_one(found: Search, left: list[int]) -> None:
    ratios: dict[int, float] = {}
    while left and not found.is_over:
        front = sorted(left, key=lambda each: (ratios.get(each, 0.0), each))[:FRONT if ratios else None]
        ratios |= {each: overhead_ratio(found.problem, found.best, found.found.seconds, each)
                   for each in found.watched(front, 'swap or recompute')}
        chosen = min(front, key=lambda each: (ratios.get(each, 1.0), each))
        if ratios.get(chosen, 1.0) < 1:
            left.remove(chosen)
            found.try_verdicts(changed(found.best.verdicts, [chosen], Verdict.RECOMPUTE))
        elif len(front) == len(left):
            return
        else:
            ratios.clear()


def _recompute_in_groups(found: Search, left: list[int]) -> None:
    size = stride = math.ceil(len(left) / GROUPS)
    estimated: Evaluation | None = None
    while left and not found.is_over:
        if found.found is not estimated:  # else they are as they were
            estimated = found.found
            ratios = estimated_ratios(found.problem, estimated, left)
            left.sort(key=lambda each: (ratios[each], each))
        before = found.found.seconds
        found.try_verdicts(changed(found.best.verdicts, left[:size], Verdict.RECOMPUTE))
        if found.found.seconds < before:
            left, size = left[size:], min(2 * size, stride)
        elif size > 1:
            size //= 2
        else:
            left = left[stride:]  # the cheapest does not pay, nor do its neighbours
            size = stride


def estimated_ratios(problem: Problem, found: Evaluation, maps: Iterable[int]) -> dict[int, float]:
    """What r(X) would be if nothing were hidden behind anything, and nothing waited."""
    costs, ratios = problem.costs, {}
    for each in maps:
        nbytes = problem.trace.maps[each].nbytes
        again_seconds = sum(costs.seconds[call] for call in calls_again(problem.trace, found.decision.verdicts, [each]))
        ratios[each] = again_seconds / max(costs.write_seconds(nbytes) + costs.read_seconds(nbytes), 1e-12)
    return ratios


def overhead_ratio(problem: Problem, decision: Decision, swapped_seconds: float, map_id: int) -> float:
    """r(X) of a map that the decision, which takes `swapped_seconds`, swaps; infinite if it is not below 1."""
    again = replace(decision, verdicts=changed(decision.verdicts, [map_id], Verdict.RECOMPUTE))
    recomputed_seconds = evaluate(problem, again).seconds
    if recomputed_seconds >= swapped_seconds:
        return float('inf')
    free_seconds = evaluate(problem, decision, without=map_id).seconds
    if free_seconds >= swapped_seconds:
        return 0.0
    return max(0.0, recomputed_seconds - free_seconds) / (swapped_seconds - free_seconds)


POLICY = Policy('pooch', 'keep, swap or recompute, whichever the simulated timeline finds fastest', decide,
                searches=True, takes_long=True)
