"""The allocator hook of the host: how much each call allocates.

NumPy reports each array's memory to tracemalloc, so that its current and peak figures, the peak reset before a call,
give what the call allocates at its highest. tracemalloc is switched on for recorded iterations alone, and a program
that already uses it keeps it running: then what goes of older blocks counts as well, as less.

Objects of Python are not counted: there are hundreds for each array, and counting them took two thirds of the time of a
recorded iteration. tracemalloc hooks Python's allocators when it starts; these are put back at once, and what NumPy
reports by itself remains. So no thread can be in a hook when tracemalloc stops.

Up to Python 3.12 tracemalloc loses memory at each stop, 40 bytes for each line that allocated: 2.5 kB an iteration.
A training whose graph changes all the time would lose gigabytes, so that the number of starts is limited there; 60 MB
may be lost at most.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import sys
import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from chainer_ooc.backends.metering import Meter

#: How often a process may start tracemalloc.
MOST_STARTS = sys.maxsize if sys.version_info >= (3, 13) else 20_000

_starts = itertools.count()

#: The meters that count now; tracemalloc is one for all threads, and the last one ends it.
_counting: weakref.WeakSet[HostMeter] = weakref.WeakSet()
_ours = False


#: Where the block of some domain at some address was allocated, or None if tracemalloc was not told of it.
_traceback_of = ctypes.pythonapi._PyTraceMalloc_GetTraceback
_traceback_of.restype, _traceback_of.argtypes = ctypes.py_object, (ctypes.c_uint, ctypes.c_size_t)


class _Allocator(ctypes.Structure):
    """PyMemAllocatorEx of Python's C API: a context, and malloc, calloc, realloc and free."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ('context', 'malloc', 'calloc', 'realloc', 'free'))


@contextlib.contextmanager
def _allocators_kept() -> Iterator[None]:
    """Puts Python's allocators back as they were, of raw memory, of memory and of objects."""
    domains = [(domain, _Allocator()) for domain in range(3)]
    for domain, allocator in domains:
        ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(allocator))
    try:
        yield
    finally:
        for domain, allocator in domains:
            ctypes.pythonapi.PyMem_SetAllocator(domain, ctypes.byref(allocator))


class HostMeter(Meter):
    """Counts by tracemalloc. `start` is False if the process has started it too often (`MOST_STARTS`).

    What other threads allocate meanwhile counts as well. tracemalloc has one peak for all: who resets it has each meter
    note its own. The caller holds a lock of the process meanwhile, as execution does; an interrupt could leave one of
    our own taken.
    """

    def __init__(self) -> None:
        self.running = False
        self._before_bytes = self._mark_bytes = self._peak_bytes = 0
        self._excluded: dict[int, weakref.ref[Any]] = {}  # by identity

    def start(self) -> bool:
        global _ours
        if self.running:
            return True
        if not tracemalloc.is_tracing():
            if next(_starts) >= MOST_STARTS:
                return False
            _ours = True
            with _allocators_kept():
                tracemalloc.start(1)
        _counting.add(self)
        self._before_bytes = self._mark_bytes = self._peak_bytes = tracemalloc.get_traced_memory()[0]
        self._excluded.clear()
        self.running = True
        return True

    @property
    def counts_older(self) -> bool:  # type: ignore[override]
        """Whether the program has begun to trace before: then tracemalloc knows of older blocks."""
        return self.running and not _ours

    def stop(self) -> None:
        global _ours
        self.running = False
        _counting.discard(self)
        if _ours and not _counting:
            _ours = False
            tracemalloc.stop()

    def current_bytes(self) -> int:
        if not self.running:
            return 0
        return tracemalloc.get_traced_memory()[0] - self._before_bytes - self._excluded_bytes()

    def _excluded_bytes(self) -> int:
        return sum(int(root.nbytes) for ref in self._excluded.values() if (root := ref()) is not None)

    def exclude(self, root: Any) -> bool:
        has_counted = self.has_counted(root)
        if has_counted:
            self._excluded[id(root)] = weakref.ref(root)
        return has_counted

    def has_counted(self, root: Any) -> bool:
        if root is None or not (self.running and _ours):
            return False
        ref = self._excluded.get(id(root))
        if ref is not None and ref() is root:
            return False
        return _traceback_of(np.lib.tracemalloc_domain, root.ctypes.data) is not None

    @contextlib.contextmanager
    def leaves_out(self) -> Iterator[None]:
        before_bytes = self.current_bytes()
        try:
            yield
        finally:
            self._before_bytes += self.current_bytes() - before_bytes

    def mark(self) -> None:
        if self.running:
            for each in _counting:
                each.note_peak()
            tracemalloc.reset_peak()
            self._mark_bytes = self._peak_bytes = tracemalloc.get_traced_memory()[0]

    def note_peak(self) -> None:
        """Notes the peak since it was noted last, which is about to be reset."""
        self._peak_bytes = max(self._peak_bytes, tracemalloc.get_traced_memory()[1])

    def above_mark_bytes(self) -> int:
        if not self.running:
            return 0
        self.note_peak()
        return self._peak_bytes - self._mark_bytes


os.register_at_fork(after_in_child=_counting.clear)  # the meters of other threads are gone there
