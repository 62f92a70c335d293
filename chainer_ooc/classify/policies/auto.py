"""auto: the fastest plan of the other policies, made faster by simulated annealing; see docs/policies/auto.md.

So no other policy is faster in simulation, unless the time limit stops the search. `unified` is left out: its maps are
read from far memory, outside of the budget. Where nothing fits, the decision, and so the least budget, is `pooch`'s.

Source: ours.
"""

from __future__ import annotations

from dataclasses import replace

from chainer_ooc.classify.annealing import anneal
from chainer_ooc.classify.policies import (
    capacity,
    keep,
    lms,
    pooch,
    sublinear,
    superneurons,
    tensor_cache,
    vdnn,
    window,
)
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import Search
from chainer_ooc.problem import EARLY, Decision, Problem, fault_of

#: What a walk may begin with beside `pooch`, which has seen the plans of `swap-opt` and of `swap-all`, by both of its
#: schedules, one of which is that of `swap-all-naive` and `vdnn++`.
OTHERS = (
    superneurons.POLICY, tensor_cache.POLICY, sublinear.POLICY, vdnn.ALL, vdnn.CONV, capacity.POLICY, lms.POLICY,
    window.POLICY)
#: Of an iteration with more positions they are left out: some take the square of their number, and a minute.
MANY_POSITIONS = 5_000


def decide(problem: Problem) -> Decision:
    """Begins with the fastest plan of all others, and takes what is faster."""
    kept = Search(problem, keep.decide(problem))
    if kept.found.fits:  # nothing is faster than to wait for nothing
        return kept.best
    first = pooch.decide(problem)
    found = Search(replace(problem, limit_seconds=kept.left_seconds), first)
    if not found.found.fits:
        return found.best
    for policy in OTHERS if problem.trace.positions <= MANY_POSITIONS else ():
        if found.is_over:
            break
        found.try_decision(policy.decide(replace(problem, limit_seconds=found.left_seconds)))
    for decision in problem.known:
        if not (decision.mapped or fault_of(problem.trace, decision, problem.min_bytes)):
            found.try_decision(decision)
            found.try_decision(replace(decision, starts=EARLY))
    anneal(found)
    found.spare_copies()
    return found.best


POLICY = Policy('auto', 'the fastest plan of all the others, made faster by simulated annealing', decide,
                searches=True, takes_long=True, floors_of=pooch.POLICY)
