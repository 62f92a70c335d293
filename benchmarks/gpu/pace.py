"""How many iterations a row runs in the time that it has; it measures its own first ones.

    settle   1   2   3   4   5   |   timed   1   2   3   (4   5)   |   watched   1
                     ^ each: can those that must come end?   ^ each: is there time for this one and the watched one?

A row that cannot end stops when it knows, with what it has measured so far, instead of being killed at its limit.
"""
from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable

#: Fewer are no median.
LEAST_TIMED = 3


class OutOfTimeError(Exception):
    """A row cannot end in its time."""

    outcome = 'dropped'


#: When the row in hand has to be over, by `time.monotonic`, which all processes of a machine share.
_row_ends = math.inf


def row_ends(at: float) -> None:
    """Says when the row in hand has to be over."""
    global _row_ends
    _row_ends = at


class Pace:
    """The time of one row.

    Args:
        until: when it has to be over; None: what `row_ends` was told.
        now: gives seconds that only grow.
    """

    def __init__(self, until: float | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until = _row_ends if until is None else until

    def has(self, seconds: float) -> bool:
        """Whether so many seconds are left."""
        return self._now() + seconds <= self._until

    def run(self, iterate: Callable[[], float], settle: int, iterations: int,
            timing: contextlib.AbstractContextManager[object], note: Callable[[str, list[float]], None],
            timed_one: Callable[[], object] = lambda: None) -> tuple[list[float], list[float]]:
        """Runs iterations and returns the seconds of those that settled and of those that count.

        Args:
            iterate: runs one, and returns its seconds.
            settle: iterations before any that counts.
            iterations: that count, at most; at least `LEAST_TIMED` or as many as are asked for.
            timing: around those that count.
            note: told of the seconds so far after each iteration, by a name.
            timed_one: called after each that counts.

        Raises:
            OutOfTimeError: it cannot end in time.
        """
        least = min(LEAST_TIMED, iterations)
        settled: list[float] = []
        for number in range(settle):
            settled.append(iterate())
            note('settle_seconds', settled)
            to_come = settle - number - 1 + least + 1
            fastest = min(settled[2:], default=0.0)  # the first compiles, the second pins: they say nothing of others
            if not self.has(to_come * fastest):
                raise OutOfTimeError(
                    f'{to_come} iterations of {fastest:.2f} s or more were to come after {number + 1}, and '
                    f'{max(self._until - self._now(), 0):.0f} s were left')
        timed: list[float] = []
        with timing:
            while len(timed) < iterations and (len(timed) < least or self.has(2 * max(timed))):
                timed.append(iterate())
                note('all_seconds', timed)
                timed_one()
        return settled, timed
