"""Graphs that come once only, such as those of sentences whose lengths never come together again.

Recording them is in vain, and where memory is ample they need no plan either. What one of them takes is estimated from
the bytes that its calls give, by those that were recorded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chainer_ooc.errors import OocError
from chainer_ooc.execute.graphs.graph import Graph, Sources
from chainer_ooc.execute.graphs.orders import Conditions

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


def once_only(graphs: Sequence[Graph], conditions: Conditions, sources: Sources) -> OnceOnly | None:
    """Sums up what such graphs need, the largest first; None if there are none, or an unknown one may lack room."""
    try:
        plan = graphs[0].orders_for(conditions, sources).plan if graphs else None
    except OocError:  # it is told when that graph is followed
        return None
    if plan is None or not plan.moves_nothing:
        return None
    known = [each.trace for each in graphs]
    needs = OnceOnly(max(each.most_bytes for each in known), max(each.most_computing_bytes for each in known),
                     max(each.most_bytes / max(1, each.given_bytes) for each in known))
    has_room = plan.peak_bytes + (ROOM_FOR_UNKNOWN - 1) * needs.most_bytes <= conditions.budget_bytes
    return needs if has_room else None
