"""Graphs that come once only, such as those of sentences whose lengths never come together again.

Recording them is in vain, and where memory is ample they need no plan either. What one of them takes is estimated from
the bytes that its calls give, by those that were recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from chainer_ooc.trace import Trace

#: An unknown graph may need so many times what the largest recorded one does. Asked for at first, and as it grows.
ROOM_FOR_UNKNOWN = 2


@dataclass(frozen=True)
class OnceOnly:
    """What recorded graphs need.

    Attributes:
        most_bytes: the largest of them, with all of its maps and its largest computation.
        computing_bytes: the largest computation.
        share: the most that any needs, over what its calls give.
    """

    most_bytes: int
    computing_bytes: int
    share: float

    def need_bytes(self, given_bytes: int) -> int:
        """What a graph needs whose calls give so much."""
        return math.ceil(self.share * given_bytes)


def once_only(traces: Iterable[Trace]) -> OnceOnly:
    """Sums recordings up."""
    known = list(traces)
    return OnceOnly(max(each.most_bytes for each in known), max(each.most_computing_bytes for each in known),
                    max(each.most_bytes / max(1, each.given_bytes) for each in known))
