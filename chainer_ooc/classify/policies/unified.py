"""unified: what does not fit is left to the system, which pages it; nothing is swapped in.

    forward    [0][1][2][3]                  budget: two maps beside the computation
    backward               [3][2][1][0]
    copy-out      [0 ][1 ]                   2 and 3 stay, as with `capacity`
    prefetch               ^1 ^0             pages come while 3 and 2 compute

Source: OOC-Paleo 4.3 (UM-Chainer). What differs: managed memory of a GPU moves pages both ways by itself; on the host a
map is written to the file whole, by the swap-out. More in docs/policies/unified.md.
"""

from chainer_ooc.classify.policies.capacity import keep_what_fits
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.problem import Decision, Problem, Starts, Verdict

#: A map is prefetched so many steps before it is read: it costs none of the budget, and pages that come too early are
#: the first that the system evicts.
AHEAD = 4


def decide(problem: Problem) -> Decision:
    """Keeps as many maps, counted from the output, as the budget holds; the others are mapped."""
    return keep_what_fits(problem, _mapping)


def _mapping(verdicts: tuple[Verdict, ...]) -> Decision:
    return Decision(verdicts, Starts(ahead=AHEAD, checks_memory=False), mapped=True)


POLICY = Policy(
    'unified', 'what fits stays, from the output backwards; the rest is paged by the system', decide,
    takes_long=True)
