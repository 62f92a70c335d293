"""The blocks that copies write to: they must live until their copies have ended, though their storages may not."""

from __future__ import annotations

import weakref
from collections import deque

from chainer_ooc.backends.base import Backend, ByteArray, Transfer
from chainer_ooc.execute.storage import Storage


class Arrivals:
    """Swap-ins under way, in the order in which they began."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[ByteArray, weakref.ref[Storage], list[Transfer]]] = deque()

    def begin(self, backend: Backend, storage: Storage, block: ByteArray) -> Transfer:
        """Starts a swap-in; its block lives until the copy has ended, also if this is interrupted.

        Raises:
            SpillError: as `Backend.swap_in`.
        """
        assert storage.copy is not None
        started: list[Transfer] = []
        self._blocks.append((block, weakref.ref(storage), started))
        started.append(backend.swap_in(storage.copy, block))
        return started[0]

    def forget_ended(self) -> None:
        """Lets go of blocks whose copies have ended.

        Copies end in order, so that one that an interrupt hid from us has ended when a later one has.
        """
        ended = 0
        for number, (_, _, started) in enumerate(self._blocks, 1):
            if started and not started[0].done:
                break
            ended = number if started else ended
        for _ in range(ended):
            self._blocks.popleft()

    def storages(self) -> list[Storage]:
        """Those that wait for a copy."""
        return [storage for _, ref, _ in self._blocks if (storage := ref()) is not None]

    def clear(self) -> None:
        """Lets go of all: the backend is closed, and no copy runs any more."""
        self._blocks.clear()
