"""The meter of the device: how much each call allocates at its highest, counted where memory is given.

What it counts is device memory alone, in the sizes that the allocator rounds to, and it costs an addition for each
allocation. Blocks that were given before `start` are none of its own, even if they die while it runs::

    lives before start   [####    ]     freed while it runs
    since start               [##   ]  [####
    current_bytes()      0    2     0  4
    above_mark_bytes()   the highest of all that lives, older blocks too, above what lived at the mark
"""

from __future__ import annotations

import weakref
from typing import Any

from chainer_ooc.backends.cuda.allocators.ledger import Count, Ledger
from chainer_ooc.backends.metering import Meter


class DeviceMeter(Meter):
    """See the module, and `Meter`. What other threads allocate meanwhile counts as well."""

    def __init__(self, live: Ledger) -> None:
        self.running = False
        self._live = live
        self._ours = Count()
        self._mark_bytes = 0

    def start(self) -> bool:
        if not self.running:
            self._ours = Count()
            self._live.count_in(self._ours)
            self._mark_bytes = self._live.mark(self._ours)
            self.running = True
        return True

    def stop(self) -> None:
        self._live.stop_counting(self._ours)
        self.running = False

    def current_bytes(self) -> int:
        return self._live.total_of(self._ours) if self.running else 0

    def has_counted(self, root: Any) -> bool:
        return self.running and any(map(self._ours.has, weakref.getweakrefs(root)))

    def mark(self) -> None:
        if self.running:
            self._mark_bytes = self._live.mark(self._ours)

    def above_mark_bytes(self) -> int:
        return self._ours.peak_bytes - self._mark_bytes if self.running else 0
