"""window: what the iteration uses next stays or comes in, as far ahead as memory holds it; see docs/policies/window.md.

The variable sequence is what the calls and steps use, in order. At each position a window lies on it, as long as the
budget holds. A map whose next use is in it when its forward uses end stays. Another leaves, and its swap-in starts when
the head of the window reaches its use::

    position      0    1    2    3  | 4    5    6    7
    sequence      a    a b  b c  c d  d    c    b    a
    window at 1        [= =]                               two maps: a leaves, its next use is at 7
    window at 3                  [= = = = = =]             c and d stay
    window at 5                            [= = = =]       b starts back, a does not yet

Source: Window+VA 3. What differs: the size of the window is a parameter there, and memory is watched beside it; here
the window is as large as memory allows. A map is away once, and comes back no earlier than backward begins.
"""

from __future__ import annotations

from collections import Counter

from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.problem import Decision, Problem, Starts, Verdict, everything
from chainer_ooc.schedule.schedule import Bytes, lay_out
from chainer_ooc.trace import FeatureMap


def decide(problem: Problem) -> Decision:
    """Slides the window over the iteration."""
    swapped = everything(problem.trace, problem.min_bytes)
    entered = _slide(problem, swapped)
    stays = {map_id for map_id, position in entered.items() if _stays(problem.trace.maps[map_id], position)}
    verdicts = tuple(Verdict.KEEP if map_id in stays else verdict for map_id, verdict in enumerate(swapped))
    return Decision(verdicts, Starts(positions={
        map_id: position for map_id, position in entered.items() if map_id not in stays}))


def _stays(feature_map: FeatureMap, entered: int) -> bool:
    """Whether a map is in the window when it could leave. One that is read later still would stay for good."""
    return entered <= feature_map.leaves_at and not feature_map.reused


def _slide(problem: Problem, swapped: tuple[Verdict, ...]) -> dict[int, int]:
    """Returns, for each map that may leave, the position at which its first use in backward enters the window."""
    trace = problem.trace
    sequence = _uses(problem, swapped)
    room = problem.budget_bytes - _others(problem, swapped)
    entered: dict[int, int] = {}
    inside: Counter[int] = Counter()
    nbytes = tail = head = 0
    for position in range(trace.positions):
        while tail < head and sequence[tail][0] < position:
            map_id = sequence[tail][1]
            inside[map_id] -= 1
            nbytes -= 0 if inside[map_id] else trace.maps[map_id].nbytes
            tail += 1
        while head < len(sequence):
            use, map_id = sequence[head]
            larger = nbytes + (0 if inside[map_id] else trace.maps[map_id].nbytes)
            if use > position and larger > room[position:use + 1].min():
                break
            nbytes, head = larger, head + 1
            inside[map_id] += 1
            if trace.maps[map_id].backward_uses[0] == use:
                entered[map_id] = position
    return entered


def _uses(problem: Problem, swapped: tuple[Verdict, ...]) -> list[tuple[int, int]]:
    """The variable sequence, of the maps that may leave and come back: positions and ids, in order.

    Of a map's uses in forward the last stands for all: a window that reaches from any of them into backward holds it.
    So does the last position at which it is held elsewhere, if that is later.
    """
    return sorted((position, each.id) for each in problem.trace.maps
                  if swapped[each.id] is Verdict.SWAP and each.backward_uses
                  for position in (each.leaves_at, *each.backward_uses))


def _others(problem: Problem, swapped: tuple[Verdict, ...]) -> Bytes:
    """Bytes at each position beside the maps that may leave and come back."""
    others = lay_out(problem, Decision(swapped)).need.copy()
    for each in problem.trace.maps:
        if swapped[each.id] is not Verdict.SWAP or not each.backward_uses:
            continue
        allocated = 0 if each.producer is None else each.producer  # by the call that makes it
        others[allocated:each.leaves_at + 1] -= each.nbytes
        others[each.backward_uses[0]:each.backward_uses[-1] + 1] -= each.nbytes
    return others


POLICY = Policy('window', 'what is used next stays or comes in, as far ahead as memory holds it', decide)
