"""swap-opt: keep or swap, by simulation.

The timeline of swapping everything shows which transfers are hidden behind computations. Those maps are swapped. Two
sets remain, of which maps are kept as docs/policies/swap-opt.md says::

    compute    [0][1][2][3][4]      .[4]...[3][2][1][0]
    copy-out      [ 0 ][ 1 ][ 2 ][ 3 ]                      L_O = {2, 3}: they end after the last forward call
    copy-in                           [ 3 ][ 2 ]            L_I = {3}: its use waits

Source: PoocH 4.4.2. It does not say how its "semi brute-force" search stays feasible; the orders and the last pass are
ours.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Iterator, Sequence

from chainer_ooc.classify.policies import keep, swap_all
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import Search, Verdicts
from chainer_ooc.problem import Decision, Problem, Verdict, changed, everything, from_the_output
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.simulate.timeline import Cause, Stream, Timeline

#: The whole tree over so many maps is searched.
TREE_DEPTH = 8
#: So many steps lead along all maps.
STEPS = 128
#: After so many maps in a row that do not fit, the rest is not tried.
MISFITS = 128


def decide(problem: Problem) -> Decision:
    """Keeps what makes the iteration faster, as far as memory allows."""
    return keep.if_it_fits(problem) or finish(search(problem))


def finish(found: Search) -> Decision:
    """What comes after step 1: the schedule of swap-all, which may have taken later swap-ins, and spared copies."""
    found.try_decision(swap_all.decide(found.problem))
    found.spare_copies()
    return found.best


def search(problem: Problem) -> Search:
    """Step 1 of PoocH, where not everything can be kept."""
    swapped = everything(problem.trace, problem.min_bytes)
    found = Search(problem, Decision(swapped))
    if found.found.fits:
        timeline = simulate(problem, lay_out(problem, found.best))
        out_waits, in_waits = unhidden_swap_outs(problem, timeline), unhidden_swap_ins(timeline)
        rest = from_the_output(problem.trace, out_waits - in_waits.keys())
        if len(in_waits) <= TREE_DEPTH:
            _search_tree(found, swapped, sorted(in_waits), rest)
        else:
            for order in _orders(problem, in_waits):
                _keep_along(found, swapped, [*order, *rest])
        _change_sides(found, from_the_output(problem.trace, out_waits | in_waits.keys()))
    return found


def unhidden_swap_outs(problem: Problem, timeline: Timeline) -> set[int]:
    """L_O: maps whose swap-out ends after the last forward call, or was waited for; all, if copies cost computation."""
    start = problem.trace.backward_start
    ends = [each.end_seconds for each in timeline.of(Stream.COMPUTE) if each.subject < start]
    late = {each.subject for each in timeline.of(Stream.COPY_OUT)
            if problem.costs.slowdown or each.end_seconds > max(ends, default=0.0)}
    return late | {each.map for each in timeline.stalls if each.cause is not Cause.SWAP_IN}


def unhidden_swap_ins(timeline: Timeline) -> dict[int, float]:
    """L_I: maps whose swap-in was waited for, and how long."""
    waits: dict[int, float] = {}
    for each in timeline.stalls:
        if each.cause is Cause.SWAP_IN:
            waits[each.map] = waits.get(each.map, 0.0) + each.seconds
    return waits


def _orders(problem: Problem, waits: dict[int, float]) -> Iterator[list[int]]:
    yield from_the_output(problem.trace, set(waits))
    yield sorted(waits, key=lambda each: (problem.trace.maps[each].nbytes, -each))
    yield sorted(waits, key=lambda each: (-problem.trace.maps[each].nbytes, -each))
    yield sorted(waits, key=lambda each: (-waits[each] / problem.trace.maps[each].nbytes, -each))


def _search_tree(found: Search, swapped: Verdicts, branches: list[int], rest: list[int]) -> None:
    leaves = list(itertools.product((False, True), repeat=len(branches)))
    for number in found.watched(range(len(leaves)), 'keep or swap'):
        leaf = changed(swapped, itertools.compress(branches, leaves[number]), Verdict.KEEP)
        if found.try_verdicts(leaf).fits:
            _keep_along(found, leaf, rest)


def _keep_along(found: Search, verdicts: Verdicts, order: Sequence[int]) -> None:
    """Keeps one map after the other, except those that do not fit any more."""
    stride, misfits, waiting = math.ceil(len(order) / STEPS), 0, collections.deque(order)
    size = stride
    while waiting and misfits < MISFITS and not found.is_over:
        several = list(itertools.islice(waiting, size))
        kept = changed(verdicts, several, Verdict.KEEP)
        fits = found.try_verdicts(kept).fits
        if fits or size == 1:
            verdicts, misfits = (kept, 0) if fits else (verdicts, misfits + 1)
            for _ in several:
                waiting.popleft()
        size = min(2 * size, stride) if fits else max(1, size // 2)


def _change_sides(found: Search, maps: Sequence[int]) -> None:
    stride = max(1, math.ceil(len(maps) / STEPS))
    for first in found.watched(range(0, len(maps), stride), 'keep or swap'):
        several = maps[first:first + stride]
        verdicts = found.best.verdicts
        other = Verdict.KEEP if verdicts[several[0]] is Verdict.SWAP else Verdict.SWAP
        found.try_verdicts(changed(verdicts, several, other))


POLICY = Policy('swap-opt', 'keeps the maps whose transfers nothing hides, as far as memory allows', decide,
                searches=True, takes_long=True)
