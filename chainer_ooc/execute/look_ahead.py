"""The swap-ins of an iteration without a plan: those of the calls that backward probably comes to next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chainer_ooc.execute.residency import Residency
from chainer_ooc.execute.storage import State, Storage

#: While a graph is unknown, the maps of so many calls before the current one are on their way in backward, if near
#: memory has room for so many times their size: what the calls themselves allocate is not known yet.
LOOK_AHEAD_CALLS = 3
LOOK_AHEAD_ROOM = 8


def look_ahead(memory: Residency, retained: Sequence[Sequence[int]], latest: int,
               storage_of: Callable[[int], Storage | None]) -> None:
    """Starts swap-ins for the calls before the latest one.

    Args:
        memory: where they go.
        retained: for each call, the maps that it retained.
        latest: the call whose backward ran last, -1 if it is none of these.
        storage_of: finds a map's storage.
    """
    for call in range(latest - 1, max(latest - 1 - LOOK_AHEAD_CALLS, -1), -1):
        for map_id in retained[call]:
            storage = storage_of(map_id)
            if storage is None or storage.state is not State.AWAY or storage.pending_uses <= 0:
                continue
            if memory.has_room(LOOK_AHEAD_ROOM * storage.nbytes):
                storage.memory.prefetch(storage)
