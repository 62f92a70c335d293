"""When each swap-in may start.

Swap-ins run one after the other in the order of their uses. One that may be moved early starts at the first position
from which its bytes fit beside all that the positions up to its use need, and never before the swap-in ahead of it::

    free memory     ....XX......XXX...                X: too little for this map
    positions       F  .  .  .  .  .  . use
    swap-in                      [=========]          starts after the last X

Source: PoocH 4.3, figure 10.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from chainer_ooc.problem import Starts, Verdict
from chainer_ooc.schedule.chains import Chains
from chainer_ooc.schedule.demand import Bytes
from chainer_ooc.trace import Trace


@dataclass(frozen=True)
class SwapIn:
    """One feature map's way back: it may start when position `start` begins, and is first read at position `use`."""

    map: int
    start: int
    use: int


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
