"""capacity: maps stay from the output backwards as far as memory holds them; the others come back as early as it does.

    forward    [0][1][2][3]                  budget: two maps beside the computation
    backward               [3][2][1][0]
    copy-out      [0 ][1 ]                   2 and 3 stay
    copy-in                   [1 ][0 ]       1 as soon as 3 is free, 0 as soon as 2 is

Source: OOC-Paleo 3.5 (figure 4). What differs: the figure counts layers of one size; here the simulator's own account
says what fits. More in docs/policies/capacity.md.
"""

from collections.abc import Callable

from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import evaluate, largest_fitting
from chainer_ooc.problem import EARLY, Decision, Problem, Verdict, changed, everything, from_the_output


def decide(problem: Problem) -> Decision:
    """Keeps as many maps, counted from the output, as the budget holds."""
    return keep_what_fits(problem, lambda verdicts: Decision(verdicts, EARLY))


def keep_what_fits(problem: Problem, decision_of: Callable[[tuple[Verdict, ...]], Decision]) -> Decision:
    """Finds the decision that keeps most maps of those that fit; with no map kept if none does.

    One more map that stays must never make what `decision_of` decides of verdicts need less memory.
    """
    swapped = everything(problem.trace, problem.min_bytes)
    latest_first = from_the_output(problem.trace, (
        each.id for each in problem.trace.maps if swapped[each.id] is Verdict.SWAP and each.backward_uses))

    def keeping(count: int) -> Decision:
        return decision_of(changed(swapped, latest_first[:count], Verdict.KEEP))

    return keeping(largest_fitting(0, len(latest_first) + 1, lambda count: evaluate(problem, keeping(count)).fits))


POLICY = Policy(
    'capacity', 'what fits stays, from the output backwards; the rest comes in as memory allows', decide,
    takes_long=True)
