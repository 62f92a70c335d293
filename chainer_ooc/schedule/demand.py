"""How many bytes each position of an iteration needs under a classification, before any swap-in is moved early.

    demand(p) = what lives through the iteration + feature maps resident at p + what the computation at p allocates

What runs again before a step comes before the step's own computation: the larger of the two counts.

Source: PoocH 4.3 ("profiled memory usage"). Left out: the time that transfers take, which the simulator models.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence

import numpy as np
import numpy.typing as npt

from chainer_ooc.problem import Standing, Verdict
from chainer_ooc.schedule.chains import Chains, chain_peak_bytes, find_chains
from chainer_ooc.trace import FeatureMap, Trace

Bytes = npt.NDArray[np.int64]


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
