"""A decision laid out over the positions of an iteration: what runs again, what each needs, what comes when.

How many bytes a position needs, before any swap-in is moved early::

    demand(p) = what lives through the iteration + feature maps resident at p + what the computation at p allocates

What runs again before a step comes before the step's own computation: the larger of the two counts. Swap-ins run one
after the other in the order of their uses. One that may be moved early starts at the first position from which its
bytes fit beside all that the positions up to its use need, and never before the swap-in ahead of it::

    free memory     ....XX......XXX...                X: too little for this map
    positions       F  .  .  .  .  .  . use
    swap-in                      [=========]          starts after the last X

Source: PoocH 4.3 ("profiled memory usage", and figure 10). Left out: the time that transfers take, which the simulator
models.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chainer_ooc.problem import Decision, Problem, Shared, Standing, Starts, Verdict
from chainer_ooc.schedule.chains import Chains, chain_peak_bytes, find_chains
from chainer_ooc.trace import FeatureMap, Trace

Bytes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SwapIn:
    """One feature map's way back: it may start when position `start` begins, and is first read at position `use`."""

    map: int
    start: int
    use: int


@dataclass(frozen=True, eq=False)
class Schedule:
    """What an iteration does under a decision.

    Attributes:
        verdicts: one for each feature map.
        leaves: for each map, the position after which it leaves if it is swapped.
        chains: what runs again, and when.
        need: bytes at each position, int64, shape (positions,), if transfers take no time and nothing comes early.
        swap_ins: in the order in which they start.
        synchronous, mapped: see `Decision`.
        floor_bytes: the smallest budget that is enough for `need`.
        floor_at: the position that sets it.
        scheduled_bytes: the highest point of `need` with the swap-ins that come early.
    """

    verdicts: tuple[Verdict, ...]
    leaves: tuple[int, ...]
    chains: Chains
    need: Bytes
    swap_ins: tuple[SwapIn, ...]
    synchronous: bool
    mapped: bool
    floor_bytes: int
    floor_at: int
    scheduled_bytes: int

    @property
    def needed_bytes(self) -> int:
        """The smallest budget within which every position keeps, early swap-ins included."""
        return max(self.floor_bytes, self.scheduled_bytes)

    def fits(self, budget_bytes: int) -> bool:
        """Whether no position needs more than the budget."""
        return self.needed_bytes <= budget_bytes


class Demand(NamedTuple):
    """What a decision needs before any swap-in comes early; the fields are those of `Schedule`."""

    chains: Chains
    leaves: tuple[int, ...]
    need: Bytes

    @property
    def floor_bytes(self) -> int:
        """The smallest budget that is enough for `need`."""
        return int(self.need.max(initial=0))


def demand_of(problem: Problem, decision: Decision) -> Demand:
    """Works out what runs again and what each position needs.

    Chains share what they make if the decision says so, or else if memory allows it.
    """
    leaves = problem.trace.leaves_at
    if decision.leaves:
        leaves = tuple(max(decision.leaves.get(map_id, 0), leave) for map_id, leave in enumerate(leaves))
    ways: tuple[Shared, ...] = (True, False) if decision.shares_chains is None else (decision.shares_chains,)
    for shared in ways if Verdict.RECOMPUTE in decision.verdicts else (True,):
        chains = find_chains(problem.trace, decision.verdicts, shared)
        found = Demand(chains, leaves, demand(problem.trace, decision.verdicts, problem.standing, problem.min_bytes,
                                              chains, leaves, decision.mapped))
        if found.floor_bytes <= problem.budget_bytes:
            break
    return found


def lay_out(problem: Problem, decision: Decision) -> Schedule:
    """Works out chains, demand and swap-ins."""
    trace, verdicts = problem.trace, decision.verdicts
    found = demand_of(problem, decision)
    chains, leaves, need = found
    swap_ins = schedule_swap_ins(trace, verdicts, chains, problem.budget_bytes - need, decision.starts)
    scheduled = need.copy()
    for each in swap_ins if not decision.mapped else ():
        scheduled[each.start:each.use] += trace.maps[each.map].nbytes
    return Schedule(verdicts, leaves, chains, need, swap_ins, decision.synchronous, decision.mapped,
                    found.floor_bytes, int(need.argmax()) if need.size else 0, int(scheduled.max(initial=0)))


def demand(trace: Trace, verdicts: tuple[Verdict, ...], standing: Standing, min_bytes: int,
           chains: Chains | None = None, leaves: Sequence[int] | None = None, mapped: bool = False) -> Bytes:
    """Returns the bytes needed at each position, int64, shape (trace.positions,).

    A map leaves after the position that `leaves` has for it, by default as early as it can. If `mapped`, swapped maps
    do not come back, since they are read where they are.
    """
    chains = chains or find_chains(trace, verdicts)
    change = [0] * (trace.positions + 1)  # of what is resident, from the position before
    for feature_map, verdict in zip(trace.maps, verdicts, strict=True):
        leave = None if leaves is None else leaves[feature_map.id]
        add_intervals(change, residency(trace, feature_map, verdict, min_bytes, chains, leave, mapped),
                      feature_map.nbytes)
    need = np.cumsum(np.array(change[:-1], np.int64)) + np.array(trace.computing_bytes, np.int64)
    need[:trace.backward_start] += standing.forward_bytes
    need[trace.backward_start:] += standing.backward_bytes
    for position in chains.calls_at:
        more_bytes = chain_peak_bytes(trace, chains, position) - trace.steps[position - trace.backward_start].peak_bytes
        need[position] += max(0, more_bytes)
    return need


def add_intervals(change: MutableSequence[int] | Bytes, intervals: Iterable[tuple[int, int]], nbytes: int) -> None:
    """Notes in the changes from each position to the next that so many bytes are there in some of `residency`."""
    for first, last in intervals:
        if last >= first:
            change[first] += nbytes
            change[last + 1] -= nbytes


def residency(
        trace: Trace, feature_map: FeatureMap, verdict: Verdict, min_bytes: int,
        chains: Chains, leave: int | None = None, mapped: bool = False) -> tuple[tuple[int, int], ...]:
    """Returns the intervals of positions, both ends included, in which the map lies in near memory.

    The call that makes a map allocates it within its `peak_bytes`, so that it counts from the position after. A map
    smaller than `min_bytes` is not worth freeing, and a foreign one cannot be freed: they live as long as the graph.
    """
    born = 0 if feature_map.producer is None else feature_map.producer + 1
    end = trace.positions - 1
    if feature_map.foreign:
        return ((born, end),)
    if not feature_map.retained:
        return ((born, max(feature_map.last_forward_use, feature_map.last_alive)),)
    uses = chains.uses[feature_map.id]
    if verdict is not Verdict.KEEP:
        away = (born, feature_map.leaves_at if leave is None else leave)
        if not uses or (mapped and verdict is Verdict.SWAP):
            return (away,)
        back = uses[0] if verdict is Verdict.SWAP else chains.restored[feature_map.id]
        return away, (back, end if feature_map.held else uses[-1])
    if uses and feature_map.nbytes >= min_bytes and not feature_map.reused and not feature_map.held:
        return ((born, uses[-1]),)
    return ((born, end),)


def schedule_swap_ins(trace: Trace, verdicts: tuple[Verdict, ...], chains: Chains, free_bytes: Bytes,
                      starts: Starts) -> tuple[SwapIn, ...]:
    """Chooses where each swap-in starts; gives them in that order.

    `free_bytes`, int64 of shape (trace.positions,), is what is left at each position when each map comes back only
    where it is read.
    """
    first_uses = sorted((chains.uses[each.id][0], each.id) for each, verdict in zip(trace.maps, verdicts, strict=True)
                        if verdict is Verdict.SWAP and chains.uses[each.id])
    # In the order of uses `behind` never passes `use`: each start is at most its own use, and uses only grow.
    free, chosen, behind = free_bytes.copy(), [], trace.backward_start
    for use, map_id in first_uses:
        nbytes = trace.maps[map_id].nbytes
        behind = max(behind, _wished(starts, map_id, use))
        if starts.checks_memory:
            behind = _earliest(free, behind, use, nbytes)
        free[behind:use] -= nbytes
        chosen.append(SwapIn(map_id, behind, use))
    return tuple(chosen)


def _wished(starts: Starts, map_id: int, use: int) -> int:
    if starts.positions is not None and map_id in starts.positions:
        return min(starts.positions[map_id], use)
    if starts.ahead is None:
        return 0
    if starts.gates is None:
        return use - starts.ahead
    before = bisect.bisect_left(starts.gates, use) - starts.ahead
    return starts.gates[before] if before >= 0 else 0


def _earliest(free: Bytes, behind: int, use: int, nbytes: int) -> int:
    """The first position from which `nbytes` fit up to `use`, not before `behind`."""
    too_little = (free[behind:use] < nbytes).nonzero()[0]
    return behind + int(too_little[-1]) + 1 if too_little.size else behind
