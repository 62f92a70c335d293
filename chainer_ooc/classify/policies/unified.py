"""unified: what does not fit is left to the system, which pages it; nothing is swapped in.

Maps stay from the output backwards as far as memory holds them, as with `capacity`. Each other one goes to far memory
after its last forward use and is read there: on the host through a mapping of the spill file, of which the system reads
the pages that are touched, and evicts those whose room it needs. Some steps before a map is read it is prefetched::

    forward    [0][1][2][3]                  budget: two maps beside the computation
    backward               [3][2][1][0]
    copy-out      [0 ][1 ]                   2 and 3 stay
    prefetch               ^1 ^0             pages come while 3 and 2 compute

The budget covers what is not mapped. So mapped maps cost nothing of it in backward, more of them can stay than with
`capacity`, and maps need not wait for room to come.

Source: OOC-Paleo 4.3 (UM-Chainer). What differs: managed memory of a GPU moves pages both ways by itself; on the host a
map is written to the file whole, by the swap-out. The paper calls its strategy similar to the capacity-based one, and
says that in-core speed is kept: so here what fits is left alone. The paper does not say how far ahead it prefetches;
`AHEAD` is ours. The simulator treats a mapped map as one that is swapped in by a copy that needs no memory, and leaves
out what a page fault costs in the middle of a step.
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
