"""superneurons: what fits stays, from the output backwards; of the rest convolutions are swapped, others recomputed.

    produced    c0   r1   c2   r3   c4   r5  | loss      c: output of a convolution, r: of another layer
    verdict     SWAP rec. SWAP rec. KEEP KEEP            as many of the last as fit stay

A swap-in starts together with the backward computation of the convolution before its use, whether memory is there or
not.

Source: PoocH 5.2, which describes its own implementation after SuperNeurons, and not SuperNeurons itself (that is
`tensor-cache`). Where it is silent: docs/policies/superneurons.md.
"""

from __future__ import annotations

from chainer_ooc.classify.kinds import are_of, calls_of, steps_of
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import evaluate, largest_fitting
from chainer_ooc.cost.analytic import is_convolution
from chainer_ooc.problem import Decision, Problem, Starts, Verdict, can_leave, can_recompute, changed, everything


def decide(problem: Problem) -> Decision:
    """Keeps a long run of maps up to the output that fits, by bisection.

    It is the longest where each kept map adds to the demand. One from which others are recomputed may lessen it.
    """
    trace = problem.trace
    starts = Starts(ahead=1, gates=steps_of(trace, is_convolution), checks_memory=False)
    rest = _verdicts_of_the_rest(problem)
    movable = sorted((each for each in trace.maps if can_leave(each, problem.min_bytes)),
                     key=lambda each: (-1 if each.producer is None else each.producer, each.id))

    def keeping(count: int) -> Decision:
        last = (each.id for each in movable[len(movable) - count:])
        return Decision(changed(rest, last, Verdict.KEEP), starts)

    def fits(count: int) -> bool:
        return evaluate(problem, keeping(count)).floor_bytes <= problem.budget_bytes

    # Most budgets that are refused have no room for one.
    return keeping(largest_fitting(1, len(movable) + 1, fits) if movable and fits(1) else 0)


def _verdicts_of_the_rest(problem: Problem) -> tuple[Verdict, ...]:
    """What happens to each map if it does not stay."""
    trace, min_bytes = problem.trace, problem.min_bytes
    of_convolution = are_of(trace, calls_of(trace, is_convolution))
    again = [number for number, may in enumerate(can_recompute(trace, min_bytes)) if may and not of_convolution[number]]
    return changed(everything(trace, min_bytes), again, Verdict.RECOMPUTE)


POLICY = Policy(
    'superneurons', 'the last maps that fit stay; of the rest convolutions are swapped and others recomputed', decide,
    takes_long=True)
