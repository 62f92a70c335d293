"""What can happen to a feature map between its last forward use and its first backward use."""

from __future__ import annotations

import enum

from chainer_ooc.trace import FeatureMap, Trace


class Verdict(enum.Enum):
    """The closed set of answers; a recomputed map is a later issue's."""

    KEEP = 'keep'
    SWAP = 'swap'


def can_leave(feature_map: FeatureMap, min_bytes: int) -> bool:
    """Whether letting go of the map frees memory worth a transfer.

    Not so for what no function retains (it dies by itself), for what is smaller than `min_bytes`, and for what
    somebody outside of Chainer holds (the user's batch): that stays in memory whatever we do.
    """
    return feature_map.retained and not feature_map.foreign and feature_map.nbytes >= max(min_bytes, 1)


def everything(trace: Trace, min_bytes: int) -> tuple[Verdict, ...]:
    """Swaps each map that can leave."""
    return tuple(Verdict.SWAP if can_leave(each, min_bytes) else Verdict.KEEP for each in trace.maps)
