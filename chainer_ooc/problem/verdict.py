"""What can happen to a feature map between its last forward use and its first backward use."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from chainer_ooc.trace import FeatureMap, Trace

#: What comes from outside of the graph and is not retained is copied for a recomputation if it is this small.
COPIED_BYTES = 1 << 16


class Verdict(enum.Enum):
    """The closed set of answers; `code` numbers them from 0."""

    KEEP = 'keep'
    SWAP = 'swap'
    RECOMPUTE = 'recompute'

    def __init__(self, _: str):
        self.code = len(type(self).__members__)


def can_leave(feature_map: FeatureMap, min_bytes: int) -> bool:
    """Whether freeing the map gives memory worth a transfer.

    Not so for what no function retains (it dies by itself), for what is smaller than `min_bytes`, and for what the
    program holds (the batch), which stays in memory all the same.
    """
    return feature_map.retained and not feature_map.foreign and feature_map.nbytes >= max(min_bytes, 1)


def everything(trace: Trace, min_bytes: int) -> tuple[Verdict, ...]:
    """Swaps each map that can leave."""
    return tuple(Verdict.SWAP if can_leave(each, min_bytes) else Verdict.KEEP for each in trace.maps)


def changed(verdicts: tuple[Verdict, ...], maps: Iterable[int], verdict: Verdict) -> tuple[Verdict, ...]:
    """Returns verdicts in which some maps have another one."""
    new = list(verdicts)
    for each in maps:
        new[each] = verdict
    return tuple(new)


def from_the_output(trace: Trace, maps: Iterable[int]) -> list[int]:
    """Puts maps in order: those that forward uses last first, of one call the younger first."""
    return sorted(maps, key=lambda each: (-trace.maps[each].last_forward_use, -each))


def can_recompute(trace: Trace, min_bytes: int) -> tuple[bool, ...]:
    """Which maps can be recomputed, whatever the verdicts on the others: one bool for each.

    A map can be made again if its producer is repeatable and each of the producer's inputs is at hand: as it is
    retained (then every verdict brings it back), as it can be made again itself, or as it is no feature map. Left out
    are maps that were written to after they were made; those that a Variable of the program's shows, since the program
    may read them when the parameters have changed; and those that a later iteration's backward pass reads.
    """
    producible: list[bool] = []
    for each in trace.maps:  # a producer's inputs were seen before its outputs
        call = trace.calls[each.producer] if each.producer is not None else None
        producible.append(call is not None and call.repeatable and not each.written
                          and _at_hand(trace, call.inputs, producible))
    return tuple(ready and can_leave(each, min_bytes) and not each.shown and not each.reused
                 for ready, each in zip(producible, trace.maps, strict=True))


def _at_hand(trace: Trace, inputs: Iterable[int], producible: list[bool]) -> bool:
    maps = trace.maps
    return all(
        each < 0 or maps[each].retained or (maps[each].producer is None and maps[each].nbytes <= COPIED_BYTES)
        or (each < len(producible) and producible[each]) for each in inputs)
