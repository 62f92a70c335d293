"""The allocator hook of the host: how much each call allocates.

NumPy reports each array's memory to tracemalloc, so that its current and peak figures, the peak reset before a call,
give what the call allocates at its highest. tracemalloc is switched on for recorded iterations alone: it costs some
time for each Python object, and a program that already uses it keeps it running.

Up to Python 3.12 tracemalloc loses memory at each stop, some 40 bytes for each line that allocated: 30 kB an iteration.
A training whose graph changes all the time would lose gigabytes, so that the number of starts is limited there; 60 MB
may be lost at most.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import tracemalloc
import weakref

from chainer_ooc.backends.base import Meter

#: How often a process may start tracemalloc.
MOST_STARTS = sys.maxsize if sys.version_info >= (3, 13) else 2_000

_starts = itertools.count()

#: The meters that count now; tracemalloc is one for all threads, and the last one ends it.
_counting: weakref.WeakSet[HostMeter] = weakref.WeakSet()
_lock = threading.Lock()
_ours = False


class HostMeter(Meter):
    """Counts by tracemalloc. `start` is False if the process has started it too often (`MOST_STARTS`)."""

    def __init__(self) -> None:
        self.running = False
        self._before_bytes = 0

    def start(self) -> bool:
        global _ours
        with _lock:
            if self.running:
                return True
            if not tracemalloc.is_tracing():
                if next(_starts) >= MOST_STARTS:
                    return False
                _ours = True
                tracemalloc.start(1)
            _counting.add(self)
            self._before_bytes = tracemalloc.get_traced_memory()[0]
            self.running = True
        return True

    def stop(self) -> None:
        global _ours
        with _lock:
            self.running = False
            _counting.discard(self)
            if _ours and not _counting:
                _ours = False
                tracemalloc.stop()

    def current_bytes(self) -> int:
        return tracemalloc.get_traced_memory()[0] - self._before_bytes if self.running else 0

    def mark(self) -> None:
        if self.running:
            tracemalloc.reset_peak()
            self._mark_bytes = tracemalloc.get_traced_memory()[0]

    def above_mark_bytes(self) -> int:
        return tracemalloc.get_traced_memory()[1] - self._mark_bytes if self.running else 0


def _forget_threads() -> None:
    """In a forked child: the meters of other threads are gone, and one of them may have held the lock."""
    _lock._at_fork_reinit()  # type: ignore[attr-defined]
    _counting.clear()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_forget_threads)
