"""Time in which a device has nothing to do, because the program waits for memory in the midst of a computation.

A computation's time is that between two events on its stream. Where the program waits in between, for a swap-out or
until chunks are mapped, the device may come to the end of what it was given, and be idle; a plan would take that for
the computation. So there are two events around each wait, and what lies between them on the stream does not count::

    program   (start) launch k1   [wait .................]  launch k2 (end)
    stream     start      k1      before ... idle ... after    k2      end
    counted    |------------------|                       |------------|

Where the device was busy all the time, the two events are passed one right after the other, and nothing is left out.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator, Sequence

from chainer_ooc.backends.cuda.driver import Driver, Event

#: So many waits are remembered, should nobody ask: an iteration of ResNet50 has some tens.
MOST_WAITS = 4096


class Waits:
    """The waits of a session's iterations, in their order, whichever thread has waited."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._waits: deque[tuple[Event, Event]] = deque(maxlen=MOST_WAITS)
        self._is_open = False

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Around a wait; what is within another counts once."""
        if self._is_open:
            yield
            return
        before = self._record()
        try:
            self._is_open = True
            yield
        finally:
            self._is_open = False
            self._waits.append((before, self._record()))

    def without(self, spans: Sequence[tuple[Event, Event]]) -> list[float]:
        """Seconds of computations, in their order, without the waits in them; waits for the last of them.

        Waits that were before the first of them are forgotten: later ones will be asked for, if any.
        """
        if not spans:
            return []
        first, last = spans[0][0], spans[-1][1]
        self._driver.synchronize(last)
        between = self._driver.seconds_between
        waits = []
        for before, after in [*self._waits]:
            if not self._driver.passed(after):
                break  # of the next iteration, and so are those that follow
            waits.append((between(first, before), between(first, after)))
        over = sum(end <= 0 for _, end in waits)
        for _ in range(over):
            self._waits.popleft()
        found, number = [], over
        for start, end in ((between(first, start), between(first, end)) for start, end in spans):
            while number < len(waits) and waits[number][1] <= start:
                number += 1
            idle = 0.0
            for before, after in itertools.islice(waits, number, None):
                if before >= end:
                    break
                idle += min(end, after) - max(start, before)
            found.append(max(0.0, end - start - idle))
        return found

    def _record(self) -> Event:
        return self._driver.record(self._driver.compute(), timed=True)
