"""What unknown graphs need, estimated from recorded ones (`KnownNeeds`), where memory is ample.

    arrays    those that calls are given from outside, and those that they make: counted as they come
    beside    what lives beside maps, such as gradients: as large a share of the maps as in any recorded graph
    scratch   the most that a call of a kind, or its step, allocates: as large a share of what it is given and makes

Of a kind of function that no recorded graph has, nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from chainer_ooc.trace import Trace


@dataclass(frozen=True)
class KnownNeeds:
    """What recorded graphs need.

    Attributes:
        most_bytes: the largest of them, with all of its maps and its largest computation.
        computing_bytes: the largest computation.
        share: the most that lives at once beside the maps of any, over these, and 1 for the maps themselves.
        scratch_shares: by the names of functions, the most that one allocates over what it is given and makes.
    """

    most_bytes: int
    computing_bytes: int
    share: float
    scratch_shares: Mapping[str, float]

    @classmethod
    def of(cls, traces: Iterable[Trace]) -> KnownNeeds:
        """Those of recordings, one at least."""
        known = [*traces]
        shares: dict[str, float] = {}
        for trace in known:
            for label, share in trace.scratch_shares.items():
                shares[label] = max(share, shares.get(label, 0.0))
        return cls(max(each.most_bytes for each in known), max(each.most_computing_bytes for each in known),
                   1 + max(each.most_other_bytes / max(1, each.maps_bytes) for each in known), shares)

    def need_bytes(self, maps_bytes: int, scratch_bytes: float) -> int:
        """What a graph needs of such maps, of whose calls none allocates more scratch."""
        return math.ceil(self.share * maps_bytes + scratch_bytes)
