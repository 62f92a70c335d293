"""A plan: what happens to each feature map, and when its swap-in starts.

Swap-ins run one after the other in the order of their uses. One that may be moved early starts at the first position
from which its bytes fit beside all that the positions up to its use need, and never before the swap-in ahead of it::

    free memory     ....XX......XXX...                X: too little for this map
    positions       F  .  .  .  .  .  . use
    swap-in                      [=========]          starts after the last X

Source: PoocH 4.3, figure 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.verdict import Verdict
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.schedule.chains import Chains, find_chains
from chainer_ooc.schedule.demand import Bytes, Standing, demand
from chainer_ooc.trace import Trace


@dataclass(frozen=True)
class SwapIn:
    """One feature map's way back: it may start when position `start` begins, and is first read at position `use`."""

    map: int
    start: int
    use: int


@dataclass(frozen=True)
class Plan:
    """What execution follows for one graph.

    Attributes:
        policy: its name.
        budget_bytes: what it keeps within.
        verdicts: one for each feature map of the trace.
        swap_ins: in the order in which they start, which is the order of their uses.
        chains: what runs again, and when.
        peak_bytes: predicted peak of near memory.
        seconds: predicted time of an iteration if no transfer is waited for.
    """

    policy: str
    budget_bytes: int
    verdicts: tuple[Verdict, ...]
    swap_ins: tuple[SwapIn, ...]
    chains: Chains
    peak_bytes: int
    seconds: float

    def count(self, verdict: Verdict) -> int:
        """Number of feature maps with this verdict."""
        return self.verdicts.count(verdict)


def make_plan(policy: Policy, trace: Trace, standing: Standing, budget_bytes: int, min_bytes: int) -> Plan:
    """Classifies and schedules; recomputations share what they make if the budget allows it.

    Raises:
        InfeasibleBudgetError: some position needs more than the budget under the policy's verdicts; the error has the
            smallest budget that works and the position that sets it.
    """
    verdicts = policy.classify(trace, budget_bytes, min_bytes)
    for shared in (True, False) if Verdict.RECOMPUTE in verdicts else (True,):
        chains = find_chains(trace, verdicts, shared)
        need = demand(trace, verdicts, standing, min_bytes, chains)
        floor_bytes = int(need.max(initial=0))
        if floor_bytes <= budget_bytes:
            break
    if floor_bytes > budget_bytes:
        raise InfeasibleBudgetError(policy.name, budget_bytes, floor_bytes, trace.name_of(int(need.argmax())))
    swap_ins = schedule_swap_ins(trace, verdicts, budget_bytes - need, policy.early, chains)
    for each in swap_ins:
        need[each.start:each.use] += trace.maps[each.map].nbytes
    seconds = sum(call.seconds for call in trace.calls) + sum(step.seconds for step in trace.steps)
    seconds += sum(trace.calls[call].seconds for calls in chains.calls_at.values() for call in calls)
    return Plan(policy.name, budget_bytes, verdicts, swap_ins, chains, int(need.max(initial=0)), seconds)


def schedule_swap_ins(
        trace: Trace, verdicts: tuple[Verdict, ...], free_bytes: Bytes, early: bool,
        chains: Chains | None = None) -> tuple[SwapIn, ...]:
    """Chooses where each swap-in starts.

    Args:
        trace: the iteration.
        verdicts: one for each feature map.
        free_bytes: int64, shape (trace.positions,): what is left at each position.
        early: move each as early as `free_bytes` allows; else start with the position before the use.
        chains: recomputations, which read maps too.
    """
    chains = chains or find_chains(trace, verdicts)
    swapped = [each for each, verdict in zip(trace.maps, verdicts, strict=True)
               if verdict is Verdict.SWAP and chains.uses[each.id]]
    # In the order of uses `behind` never passes `use`: each start is at most its own use, and uses only grow.
    swapped.sort(key=lambda each: (chains.uses[each.id][0], each.id))
    free, chosen, behind = free_bytes.copy(), [], trace.backward_start
    for feature_map in swapped:
        use = chains.uses[feature_map.id][0]
        behind = behind if early else max(behind, use - 1)
        start = _earliest(free, behind, use, feature_map.nbytes)
        free[start:use] -= feature_map.nbytes
        behind = start
        chosen.append(SwapIn(feature_map.id, start, use))
    return tuple(chosen)


def _earliest(free: Bytes, behind: int, use: int, nbytes: int) -> int:
    """The first position from which `nbytes` fit up to `use`, not before `behind`."""
    too_little = np.flatnonzero(free[behind:use] < nbytes)
    return behind + int(too_little[-1]) + 1 if too_little.size else behind
