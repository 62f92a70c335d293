"""PoocH to the letter of its paper, where policies `swap-opt` and `pooch` go further.

Step 1 keeps maps from the output backwards as far as memory holds them. The paper searches the maps whose swap-in
stalls as well, and does not say how that stays feasible where nearly all of them stall, as on x86; but its table 3
keeps 66 maps of ResNet50 on both machines, as many as superneurons does, who keeps from the output. Ours searches.

Step 2 recomputes the map with the smallest r(X) below 1, and settles every map whose r(X) is 1 or more as swapped. Ours
looks at those again, since later changes may make them cheap, and starts from other first steps too.

Source: PoocH 4.4.2 and 4.4.3.
"""

from __future__ import annotations

from chainer_ooc.classify.decision import Decision
from chainer_ooc.classify.policies import capacity, keep, pooch
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import Search
from chainer_ooc.classify.verdict import Verdict, changed
from chainer_ooc.cost.problem import Problem
from chainer_ooc.simulate.evaluate import evaluate


def decide_step_1(problem: Problem) -> Decision:
    """Step 1."""
    kept = keep.decide(problem)
    if evaluate(problem, kept).fits:
        return kept
    return capacity.decide(problem)


def decide(problem: Problem) -> Decision:
    """Steps 1 and 2."""
    search = Search(problem, decide_step_1(problem))
    left = pooch.recomputable(search)
    while left and not search.is_over:
        seconds = search.found.seconds
        ratios = {each: pooch.overhead_ratio(problem, search.best, seconds, each)
                  for each in search.watched(left, 'swap or recompute')}
        left = sorted((each for each in left if ratios.get(each, 1.0) < 1), key=lambda each: (ratios[each], each))
        if left:
            search.try_verdicts(changed(search.best.verdicts, [left.pop(0)], Verdict.RECOMPUTE))
    return search.best


SWAP_OPT, POOCH = 'swap-opt as published', 'pooch as published'
PUBLISHED = {policy.name: policy for policy in (
    Policy(SWAP_OPT, 'step 1 of PoocH to the letter', decide_step_1),
    Policy(POOCH, 'PoocH to the letter', decide))}
