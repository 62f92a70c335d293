"""What is in near memory, by the account: every block from its birth until it is really gone.

A block counts as long as anything refers to it, ours or not; a weak reference tells when it dies. That may happen in
another thread or in the garbage collector, so a death is only queued there, and booked when somebody asks.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from chainer_ooc.backends import arrays
from chainer_ooc.execute.places import Array
from chainer_ooc.execute.storage import State, Storage


class Account:
    """The blocks that are alive.

    Attributes:
        standing_bytes: arrays that are no feature maps and live now: parameters, gradients, optimizer state.
        metering: whether new blocks count as seen by the allocation meter.
        on_event: called with ('malloc' or 'free', token, map id, bytes) when a block appears or goes.
    """

    def __init__(self) -> None:
        self.standing_bytes = 0
        self.metering = False
        self.on_event: Callable[[str, object, int, int], None] = lambda kind, token, map_id, nbytes: None
        self._by_root: dict[int, tuple[weakref.ref[Array], Storage]] = {}
        self._deaths: deque[tuple[int, weakref.ref[Array], object, int, int, int]] = deque()
        # Kept here, as a reference that dies before its block would not tell; with the bytes that it counts.
        self._refs: dict[int, tuple[weakref.ref[Array], int]] = {}
        self._near_bytes = 0
        self._metered_bytes = 0
        self._epoch = 0

    def near_bytes(self) -> int:
        """Bytes in near memory as far as they are known: feature maps and what stands."""
        self._bury()
        return self._near_bytes + self.standing_bytes

    def metered_bytes(self) -> int:
        """Bytes of the feature maps in near memory that were allocated while the meter ran."""
        self._bury()
        return self._metered_bytes

    def storages(self) -> list[Storage]:
        """All that are in near memory."""
        self._bury()
        return [storage for _, storage in self._by_root.values()]

    def forget_metered(self) -> None:
        """A new stretch of metering begins: what is there now was not seen by it."""
        self._epoch += 1
        self._metered_bytes = 0

    def find(self, array: Any) -> Storage | None:
        """Returns the storage under an array, or None if it is not known or cannot be moved."""
        root = arrays.root_of(array)
        ref, storage = self._by_root.get(id(root), (None, None))
        return storage if ref is not None and ref() is root else None

    def put(self, root: Array, storage: Storage) -> None:
        """Makes a storage findable by the root that it was counted with."""
        self._by_root[id(root)] = storage.root, storage

    def detach(self, storage: Storage) -> None:
        """The user has the array for himself from now on: it still counts, but is the storage's no more."""
        root = storage.root()
        if root is not None and self._by_root.get(id(root), (None, None))[1] is storage:
            del self._by_root[id(root)]
        storage.root, storage.state = _dead_reference(), State.LOST if storage.copy is None else State.AWAY

    def count(self, root: Array, storage: Storage, metered: bool) -> None:
        """Counts a block that came into being, until it dies; the meter saw it unless it is older or a mapping.

        What the system pages costs none of the budget.
        """
        key, token, map_id = id(root), storage.token, storage.map
        nbytes = 0 if storage.mapped else storage.counted_bytes
        epoch = self._epoch if metered else -1
        ref = weakref.ref(root, lambda ref: self._deaths.append((key, ref, token, map_id, nbytes, epoch)))
        self._refs[id(ref)] = ref, nbytes
        storage.root = ref
        self._near_bytes += nbytes
        if metered:
            self._metered_bytes += nbytes
        self.on_event('malloc', token, map_id, nbytes)

    def recount(self) -> None:
        """Puts the account right after an exception, which may have come between any two of its steps."""
        self._bury()
        self._refs = {key: (ref, nbytes) for key, (ref, nbytes) in self._refs.items() if ref() is not None}
        self._by_root = {key: found for key, found in self._by_root.items() if found[0]() is not None}
        self._near_bytes = sum(nbytes for _, nbytes in self._refs.values())

    def _bury(self) -> None:
        while self._deaths:
            key, dead, token, map_id, nbytes, epoch = self._deaths.popleft()
            if self._refs.pop(id(dead), None) is None:
                continue
            self._near_bytes -= nbytes
            if epoch == self._epoch:
                self._metered_bytes -= nbytes
            if self._by_root.get(key, (None, None))[0] is dead:
                del self._by_root[key]
            self.on_event('free', token, map_id, nbytes)


def _dead_reference() -> weakref.ref[Array]:
    return weakref.ref(np.empty(0))
