"""A sum of bytes that may be lowered at any time: by a finalizer, the garbage collector, another thread.

A block of device memory is freed where its last view is. That may be inside this package's own code, between two lines
that hold a lock, since the garbage collector may run at any line. A finalizer that took a lock could wait for itself.
So it appends to a deque, which is atomic and takes no lock, and the next call for the sum books what lies there::

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


class Ledger:
    """Bytes that live; `peak_bytes` is the highest sum since `mark`."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._sum_bytes = 0
        self._lowered: deque[int] = deque()
        # Reentrant: a finalizer may end in `total` on the thread that is in `total` already.
        self._lock = threading.RLock()

    def add(self, nbytes: int, limit_bytes: int | None = None) -> bool:
        """Adds to the sum; False, and nothing is added, if the sum would pass `limit_bytes`."""
        with self._lock:
            if self._lowered:
                self._settle()
            sum_bytes = self._sum_bytes + nbytes
            if limit_bytes is not None and sum_bytes > limit_bytes:
                return False
            self._sum_bytes = sum_bytes
            if sum_bytes > self.peak_bytes:
                self.peak_bytes = sum_bytes
            return True

    def lower(self, nbytes: int) -> None:
        """Subtracts; never blocks and never raises, wherever it is called."""
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
        lowered = self._lowered
        try:
            while lowered:
                self._sum_bytes -= lowered[0]  # in one stretch: an interrupt, or a handler, may come with any call
                lowered.popleft()
        except IndexError:  # a finalizer that came in between has booked the rest
            pass


class Ledgers:
    """The ledger of all that lives (`live`), and others that count beside it for a while."""

    def __init__(self) -> None:
        self.live = Ledger()
        self._all: tuple[Ledger, ...] = (self.live,)

    def add(self, nbytes: int) -> tuple[Ledger, ...]:
        """Adds to each that counts now; returns them, to be lowered when the memory is freed."""
        ledgers = self._all
        for ledger in ledgers:
            ledger.add(nbytes)
        return ledgers

    def count_in(self, ledger: Ledger) -> int:
        """Has `ledger` count what is given from now on, for as long as that lives; marks `live`, returns its sum."""
        self._all = (*self._all, ledger)
        return self.live.mark()

    def stop_counting(self, ledger: Ledger) -> None:
        """Ends that; what `ledger` has counted is still subtracted when it is freed."""
        self._all = tuple(each for each in self._all if each is not ledger)

    def stop_all(self) -> None:
        """Ends it for all but `live`."""
        self._all = (self.live,)
