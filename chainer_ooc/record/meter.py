"""The allocator hook of the host: how much each call allocates.

NumPy reports each array's memory to tracemalloc, so that its current and peak figures, the peak reset before a call,
give what the call allocates at its highest. tracemalloc is switched on for recorded iterations alone: it costs some
time for each Python object, and a program that already uses it keeps it running.
"""

from __future__ import annotations

import tracemalloc


class AllocationMeter:
    """Current and peak bytes allocated since `start`."""

    def __init__(self) -> None:
        self.running = False
        self._ours = False
        self._before_bytes = 0

    def start(self) -> None:
        """Begins to count; nothing happens if it counts already."""
        if self.running:
            return
        self._ours = not tracemalloc.is_tracing()
        if self._ours:
            tracemalloc.start(1)
        self._before_bytes = tracemalloc.get_traced_memory()[0]
        self.running = True

    def stop(self) -> None:
        """Ends counting, and leaves tracemalloc as it was found."""
        if self.running and self._ours:
            tracemalloc.stop()
        self.running = False

    def current_bytes(self) -> int:
        """Bytes allocated since `start` that still live, or 0 when it does not count."""
        return tracemalloc.get_traced_memory()[0] - self._before_bytes if self.running else 0

    def mark(self) -> None:
        """Begins a stretch whose peak `above_mark_bytes` gives."""
        if self.running:
            tracemalloc.reset_peak()
            self._mark_bytes = tracemalloc.get_traced_memory()[0]

    def above_mark_bytes(self) -> int:
        """The peak since `mark`, above what lived then."""
        return tracemalloc.get_traced_memory()[1] - self._mark_bytes if self.running else 0
