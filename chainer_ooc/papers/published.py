"""PoocH and what it is compared with, to the letter of the paper and of its authors' program.

The paper leaves open how the search stays feasible, what r(X) is made of, and what of a recomputation stays. The
program that its authors published answers these, and is followed here; policies `swap-opt` and `pooch` go further.

- Step 1 keeps maps from the output backwards as far as memory holds them, then of the others, in the same order, those
  that still fit. The maps whose swap-in stalls are not searched: the program has the search, but gives it no maps.
- Step 2: r(X) is the time of the calls that would run again, over what the timeline would save if X's copies took no
  time. The map with the smallest r(X) below 1 is recomputed, and r is worked out anew; a map whose r(X) is once 1 or
  more stays swapped.
- Of a recomputation stays what the step at hand reads, and nothing else: the next step begins again.
- When all is decided, each swap-in is put off as long as it is still in time.
- superneurons keeps as many maps as step 1 before it skips one; of the others those that convolutions make are swapped.

Source: PoocH 4.3, 4.4.2, 4.4.3, 5.1 and 5.2; github.com/yukiito2/chainer, branch 3.0.0rc1-pooch, August 2018,
`Trainer.optimize_targets` in chainer/training/trainer.py.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable
from dataclasses import replace

from chainer_ooc.classify.kinds import are_of, calls_of, steps_of
from chainer_ooc.classify.policies import capacity, keep, pooch
from chainer_ooc.classify.search import Evaluation, Search, evaluate, without_bytes_of
from chainer_ooc.cost.analytic import is_convolution
from chainer_ooc.papers.pooch_chainer import blocks_of
from chainer_ooc.problem import EARLY, Decision, Problem, Starts, Verdict, changed, everything, from_the_output
from chainer_ooc.schedule.schedule import Schedule, lay_out
from chainer_ooc.simulate.simulator import run


def swap_all_at_once(problem: Problem) -> Decision:
    """Everything is swapped, and comes in with the block before its use, if memory allows it."""
    decision = _decision(everything(problem.trace, problem.min_bytes))
    starts = [first for first, _ in blocks_of(problem.trace)]
    positions = {each.map: starts[max(0, bisect.bisect_right(starts, each.use) - 2)]
                 for each in lay_out(problem, decision).swap_ins}
    return replace(decision, starts=Starts(positions=positions))


def swap_all(problem: Problem) -> Decision:
    """Everything is swapped."""
    return put_off(problem, _decision(everything(problem.trace, problem.min_bytes)))


def swap_opt(problem: Problem) -> Decision:
    """Step 1."""
    return put_off(problem, step_1(problem))


def both_steps(problem: Problem) -> Decision:
    """Steps 1 and 2."""
    return put_off(problem, step_2(problem, step_1(problem)))


def superneurons(problem: Problem) -> Decision:
    """As many maps are kept as in step 1 before it skips one; convolutions are swapped, others recomputed."""
    kept = _kept_from_the_output(problem)
    search = Search(problem, kept)
    of_convolution = are_of(problem.trace, calls_of(problem.trace, is_convolution))
    others = [each for each in pooch.recomputable(search) if not of_convolution[each]]
    starts = Starts(ahead=1, gates=steps_of(problem.trace, is_convolution), checks_memory=False)
    return replace(_decision(changed(kept.verdicts, others, Verdict.RECOMPUTE)), starts=starts)


def step_1(problem: Problem) -> Decision:
    """What is kept."""
    decision = _kept_from_the_output(problem)
    swapped = [each for each, verdict in enumerate(decision.verdicts) if verdict is Verdict.SWAP]
    for map_id in from_the_output(problem.trace, swapped):
        more = replace(decision, verdicts=changed(decision.verdicts, [map_id], Verdict.KEEP))
        if evaluate(problem, more).fits:
            decision = more
    return decision


def step_2(problem: Problem, decision: Decision) -> Decision:
    """What is recomputed of the rest."""
    search = Search(problem, decision)
    left = pooch.recomputable(search)
    while left and not search.is_over:
        found, schedule = evaluate(problem, decision), lay_out(problem, decision)
        ratios = {each: overhead_ratio(problem, found, schedule, each)
                  for each in search.watched(left, 'swap or recompute')}
        left = sorted((each for each in left if ratios.get(each, 1.0) < 1), key=lambda each: (ratios[each], each))
        if left:
            decision = _recomputing(decision, left.pop(0))
    return decision


def overhead_ratio(problem: Problem, found: Evaluation, schedule: Schedule, map_id: int) -> float:
    """r(X) of a swapped map; infinite if its copies cost nothing, or if recomputing it needs too much memory.

    `found` is of a decision that swaps the map, and `schedule` is that decision laid out.
    """
    again = evaluate(problem, _recomputing(found.decision, map_id))
    if not again.fits or not found.fits:
        return float('inf')
    # The schedule still counts the map's bytes.
    copied_seconds = found.seconds - run(without_bytes_of(problem, map_id), schedule)[0]
    if copied_seconds <= 0:
        return float('inf')
    seconds = problem.costs.seconds
    more_seconds = lay_out(problem, again.decision).chains.seconds(seconds) - schedule.chains.seconds(seconds)
    return more_seconds / copied_seconds


def put_off(problem: Problem, decision: Decision) -> Decision:
    """Starts each swap-in as late as it is in time for its use, and for the swap-ins behind it.

    One that cannot be in time starts as early as memory allows, as before.
    """
    schedule = lay_out(problem, decision)
    seconds = list(problem.costs.seconds)
    for position, calls in schedule.chains.calls_at.items():
        seconds[position] += sum(problem.costs.seconds[each] for each in calls)
    begin = list(itertools.accumulate(seconds, initial=0.0))
    positions, next_one = {}, float('inf')
    for each in reversed(schedule.swap_ins):
        latest = min(next_one, begin[each.use]) - problem.costs.read_seconds(problem.trace.maps[each.map].nbytes)
        positions[each.map] = min(each.use, max(each.start, bisect.bisect_right(begin, latest) - 1))
        next_one = max(latest, begin[each.start])
    return replace(decision, starts=Starts(positions=positions))


def _kept_from_the_output(problem: Problem) -> Decision:
    return keep.if_it_fits(problem) or capacity.keep_what_fits(problem, _decision)


def _decision(verdicts: tuple[Verdict, ...]) -> Decision:
    return Decision(verdicts, EARLY, shares_chains=False)


def _recomputing(decision: Decision, map_id: int) -> Decision:
    return replace(decision, verdicts=changed(decision.verdicts, [map_id], Verdict.RECOMPUTE))


SWAP_ALL_NAIVE, SWAP_ALL, SWAP_OPT, POOCH, SUPERNEURONS = (f'{name} as published' for name in (
    'swap-all-naive', 'swap-all', 'swap-opt', 'pooch', 'superneurons'))
PUBLISHED: dict[str, Callable[[Problem], Decision]] = {
    SWAP_ALL_NAIVE: swap_all_at_once, SWAP_ALL: swap_all, SWAP_OPT: swap_opt, POOCH: both_steps,
    SUPERNEURONS: superneurons}
