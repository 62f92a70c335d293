"""The meter of the device: how much each call allocates at its highest, counted where memory is given.

What it counts is device memory alone, in the sizes that the allocator rounds to, and it costs an addition for each
allocation. Blocks that were given before `start` are none of its own, even if they die while it runs::

    lives before start   [####    ]     freed while it runs
    since start               [##   ]  [####
    current_bytes()      0    2     0  4
    above_mark_bytes()   the highest of all that lives, older blocks too, above what lived at the mark
"""

from __future__ import annotations

from typing import Any

from chainer_ooc.backends.cuda.allocators.ledger import Ledger, Ledgers
from chainer_ooc.backends.metering import Meter


class DeviceMeter(Meter):
    """See the module, and `Meter`. One meter of a budget may mark at a time: there is one peak."""

    def __init__(self, ledgers: Ledgers) -> None:
        self.running = False
        self._ledgers = ledgers
        self._ours = Ledger()
        self._mark_bytes = 0

    def start(self) -> bool:
        if not self.running:
            self._ours = Ledger()
            self._mark_bytes = self._ledgers.count_in(self._ours)
            self.running = True
        return True

    def stop(self) -> None:
        self._ledgers.stop_counting(self._ours)
        self.running = False

    def current_bytes(self) -> int:
        return self._ours.total() if self.running else 0

    def has_counted(self, root: Any) -> bool:
        return self.running and self._ours in getattr(root, 'ledgers', ())

    def mark(self) -> None:
        if self.running:
            self._mark_bytes = self._ledgers.live.mark()

    def above_mark_bytes(self) -> int:
        return self._ledgers.live.peak_bytes - self._mark_bytes if self.running else 0
