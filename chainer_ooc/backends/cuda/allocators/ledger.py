"""A sum of bytes that anybody may lower at any time: a finalizer, the garbage collector, another thread.

A block of device memory dies wherever its last view dies. That may be inside this package's own code, between two lines
that hold a lock, since the garbage collector runs when it likes. A finalizer that took a lock could wait for itself.
So it appends to a deque, which is atomic and takes no lock, and whoever asks for the sum next books what lies there::

    main thread     add(4)             add(2)        total() -> 2
    collector                lower(4)
    appended                 [4]       []            .
    sum             4        4         2             2

The order of events is kept: a free is booked before whatever is allocated after it, and the peak of the sum, which only
rises in `add`, is exact.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

#: Told 'malloc' or 'free' and the bytes, in order, by the thread that books.
Listener = Callable[[str, int], None]


class Ledger:
    """Bytes that live.

    Attributes:
        listeners: who is told of each change; replaced, never changed in place.
        peak_bytes: the highest sum since `mark`.
    """

    def __init__(self) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self.peak_bytes = 0
        self._sum_bytes = 0
        self._lowered: deque[int] = deque()
        # Reentrant: a finalizer may end in `total` on the thread that is in `total` already.
        self._lock = threading.RLock()

    def add(self, nbytes: int, limit_bytes: int | None = None) -> bool:
        """Adds to the sum; False, and nothing is added, if the sum would pass `limit_bytes`."""
        with self._lock:
            self._settle()
            if limit_bytes is not None and self._sum_bytes + nbytes > limit_bytes:
                return False
            self._sum_bytes += nbytes
            self.peak_bytes = max(self.peak_bytes, self._sum_bytes)
            for listener in self.listeners:
                listener('malloc', nbytes)
            return True

    def lower(self, nbytes: int) -> None:
        """Subtracts; never blocks and never raises, whoever calls it."""
        self._lowered.append(nbytes)

    def total(self) -> int:
        """The sum of all that was added and not subtracted, in bytes."""
        with self._lock:
            self._settle()
            return self._sum_bytes

    def mark(self) -> int:
        """Begins a stretch whose highest sum `peak_bytes` gives; returns the sum now."""
        with self._lock:
            self._settle()
            self.peak_bytes = self._sum_bytes
            return self._sum_bytes

    def _settle(self) -> None:
        while self._lowered:
            nbytes = self._lowered.popleft()
            self._sum_bytes -= nbytes
            for listener in self.listeners:
                listener('free', nbytes)
