"""How often it is worth having Python's collector look for memory that the program has no more.

A collection takes a tenth of a second in a process that has much in it. A plan that is short of memory by a little asks
for one in every iteration, and ordinary programs have nothing to be found.
"""

from __future__ import annotations

#: So many requests are left out at most between two collections.
MOST_LEFT_OUT = 1023


class Garbage:
    """Each collection in vain has twice as many requests left out after it; one that found something, none."""

    def __init__(self) -> None:
        self._left_out = self._to_leave_out = 0

    def is_due(self) -> bool:
        """Asks for a collection."""
        if not self._to_leave_out:
            return True
        self._to_leave_out -= 1
        return False

    def note(self, found: bool) -> None:
        """Says what a collection came to."""
        self._left_out = 0 if found else min(2 * self._left_out + 1, MOST_LEFT_OUT)
        self._to_leave_out = self._left_out
