"""Which resident storage is evicted first when near memory is short: the one whose next use is farthest (P3).

A heap, into which those that were used are put when memory is short, by their next use as it is known then. So while
there is room a use costs next to nothing. A new entry makes the older ones of its storage stale; they are removed when
they are at the top. What could not be evicted is put aside: it is tried again after its next use, a few at a time when
memory is short again, and all before anything is refused. So each use and each shortage costs the same, however many
storages there are.

Source: PoocH 4.3 and SuperNeurons 3.3.2 have the order; the lazy heap is the usual one for keys that change.
"""

from __future__ import annotations

import heapq
import itertools
import weakref
from collections import deque
from collections.abc import Callable

from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage

#: So many of those that were put aside are tried again at each shortage.
AGAIN = 4

#: Minus the next use, the order of use, and the storage.
_Entry = tuple[float, int, weakref.ref[Storage]]


class Candidates:
    """Storages that may be evicted."""

    def __init__(self) -> None:
        self._used: dict[weakref.ref[Storage], None] = {}  # in the order of their last use; not ranked yet
        self._latest: dict[weakref.ref[Storage], _Entry] = {}
        self._heap: list[_Entry] = []
        self._aside: deque[_Entry] = deque()
        self._serial = itertools.count()

    def add(self, storage: Storage) -> None:
        """Adds a storage that was used: its next use is another one now."""
        ref = weakref.ref(storage)
        self._used.pop(ref, None)
        self._used[ref] = None

    def clear(self) -> None:
        """Forgets all: positions of another iteration follow."""
        for known in (self._used, self._latest, self._heap, self._aside):
            known.clear()

    def take_again(self, everything: bool) -> None:
        """Tries some of those that were put aside once more, or all."""
        for _ in range(len(self._aside) if everything else min(AGAIN, len(self._aside))):
            heapq.heappush(self._heap, self._aside.popleft())

    def pop(self, next_use: Callable[[Storage], float]) -> Storage | None:
        """Takes out the one whose next use is farthest; None if there is none."""
        self._rank(next_use)
        while self._heap:
            entry = heapq.heappop(self._heap)
            storage = entry[2]()
            if (storage is not None and self._latest[entry[2]] is entry
                    and storage.state in (State.RESIDENT, State.ARRIVING)):
                self._aside.append(entry)
                return storage
        return None

    def _rank(self, next_use: Callable[[Storage], float]) -> None:
        for ref in self._used:
            storage = ref()
            if storage is not None:
                self._latest[ref] = entry = -next_use(storage), next(self._serial), ref
                heapq.heappush(self._heap, entry)
        self._used.clear()
