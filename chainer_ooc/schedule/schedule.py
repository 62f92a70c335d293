"""A decision laid out over the positions of an iteration: what runs again, what each needs, what comes when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from chainer_ooc.problem import Decision, Problem, Shared, Verdict
from chainer_ooc.schedule.chains import Chains, find_chains
from chainer_ooc.schedule.demand import Bytes, demand
from chainer_ooc.schedule.swap_ins import SwapIn, schedule_swap_ins


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
