"""How many bytes each position of an iteration needs under a classification, before any swap-in is moved early.

    demand(p) = what lives through the iteration + feature maps resident at p + what the computation at p allocates

Source: PoocH 4.3 ("profiled memory usage"). Left out: transfers that take time; execution waits for those, and the
simulator models them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chainer_ooc.classify.verdict import Verdict
from chainer_ooc.trace import FeatureMap, Trace

Bytes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Standing:
    """Bytes that live through an iteration: parameters, optimizer state, a user's own; in forward old gradients."""

    forward_bytes: int
    backward_bytes: int


def demand(trace: Trace, verdicts: tuple[Verdict, ...], standing: Standing, min_bytes: int) -> Bytes:
    """Returns the bytes needed at each position, int64, shape (trace.positions,)."""
    need = np.zeros(trace.positions, np.int64)
    start = trace.backward_start
    need[:start] = standing.forward_bytes
    need[start:] = standing.backward_bytes
    need[:start] += np.array([call.peak_bytes for call in trace.calls], np.int64)
    need[start:] += np.array([step.peak_bytes + step.other_bytes for step in trace.steps], np.int64)
    for feature_map, verdict in zip(trace.maps, verdicts, strict=True):
        for first, last in residency(trace, feature_map, verdict, min_bytes):
            need[first:last + 1] += feature_map.nbytes
    return need


def residency(
        trace: Trace, feature_map: FeatureMap, verdict: Verdict, min_bytes: int) -> tuple[tuple[int, int], ...]:
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
    uses = feature_map.backward_uses
    if verdict is Verdict.SWAP:
        away = (born, feature_map.last_forward_use)
        return (away, (uses[0], uses[-1])) if uses else (away,)
    if uses and feature_map.nbytes >= min_bytes:
        return ((born, uses[-1]),)
    return ((born, end),)
