"""The end of the maps of one iteration: each is dropped after its last backward use (P6).

What has neither a far copy nor a recipe becomes spare, and lost when its room is needed: not before every function that
has it as an input has run backward. Such a function does not need the map, but a hook that gets its inputs may read it.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterable, Sequence

from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage


class Liveness:
    """Drops maps in backward; `storages` are those of the iteration's feature maps, by id, and grow."""

    def __init__(self, storages: Sequence[weakref.ref[Storage]]):
        self._storages = storages
        self._unread: collections.defaultdict[int, int] = collections.defaultdict(int)
        self._waiting: set[int] = set()
        self._dropped: list[weakref.ref[Storage]] = []

    def read(self, inputs: Iterable[int]) -> None:
        """A call has read these maps; its backward is to come."""
        for map_id in set(inputs):
            self._unread[map_id] += 1

    def step_over(self, inputs: Sequence[int], freed: list[tuple[int, bool]]) -> None:
        """Drops what is not needed any more after a step.

        `inputs` are the maps that its call read in forward, `freed` those that had their last use, each with whether it
        may be lost.
        """
        over = set(inputs)
        for map_id in over:
            self._unread[map_id] -= 1
        for map_id, may_lose in [*((each, True) for each in sorted(over & self._waiting)), *freed]:
            storage = self._storages[map_id]() if map_id < len(self._storages) else None
            if may_lose and self._unread[map_id] > 0:
                self._waiting.add(map_id)
                continue
            self._waiting.discard(map_id)
            if storage is not None:
                self.drop(storage, may_lose)

    def drop(self, storage: Storage, may_lose: bool) -> None:
        """Drops one map of the iteration now."""
        storage.memory.drop(storage, may_lose)
        if storage.state in (State.AWAY, State.LOST, State.SPARE):
            self._dropped.append(weakref.ref(storage))

    def held(self) -> list[int]:
        """Maps that were dropped and are there all the same.

        To be called at the end of backward: while a step runs, Chainer's loop itself holds arrays.
        """
        dropped, self._dropped = self._dropped, []
        return [storage.map for ref in dropped if (storage := ref()) is not None and storage.is_held_on()]
