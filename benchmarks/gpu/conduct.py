"""Runs parts against the clock and notes what became of every row, also of those that could not run.

A row is begun only if it can be expected to end (`costs`): before the programme has to be over, and early enough for
the parts to come that must not be missed. One that cannot is a row with that reason, and a shorter one may still run:
nothing that was asked for is missing from the file. What is begun is given up after three times what was expected, or
what was stated if that is more: one that was quick says little of the next.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from costs import Costs
from programme import Part, Row

#: Below this a row is not begun: not even a process starts in it.
LEAST_SECONDS = 2.0
#: A row may take so many times what was expected of it, and so much more, before it is given up.
GIVE_UP, GIVE_UP_SECONDS = 3.0, 10.0
#: Of all the time, what parts may reserve together: in less than the programme is made for, each has less of it.
MOST_RESERVED = 0.7


class Asks(Protocol):
    """What rows are asked of: `processes.Worker`, or a stand-in of the tests."""

    def ask(self, kind: str, asks: dict[str, Any], most_seconds: float, *, alone: bool = False) -> dict[str, Any]: ...

    def starts(self, alone: bool) -> bool: ...


class Clock:
    """The time that the programme has.

    Args:
        seconds: All of it, from now on.
        now: Gives seconds that only grow.
    """

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.end = now() + seconds

    def left(self) -> float:
        """Seconds until the programme has to be over."""
        return self.end - self.now()


class Conductor:
    """Runs the parts of one programme.

    Args:
        worker: What rows are asked of.
        clock: The time that there is.
        host_bytes: Memory of the host: rows that need more are left out.
        note: Called after each row, and after each part, with all parts so far.
    """

    def __init__(self, worker: Asks, clock: Clock, host_bytes: int,
                 note: Callable[[list[dict[str, Any]]], None]) -> None:
        self._worker, self._clock, self._host_bytes, self._note = worker, clock, host_bytes, note
        self._costs = Costs()
        self._done: list[dict[str, Any]] = []

    def conduct(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        """Runs the parts in their order.

        Returns:
            list[dict[str, Any]]: Each part as JSON takes it.
        """
        reserved = sum(part.reserved_seconds for part in parts)
        share = min(1.0, MOST_RESERVED * self._clock.left() / reserved) if reserved else 1.0
        for number, part in enumerate(parts):
            later = share * sum(each.reserved_seconds for each in parts[number + 1:])
            found: dict[str, Any] = {'name': part.name, 'title': part.title, 'kind': part.kind, 'state': 'running',
                                     'reserved_seconds': part.reserved_seconds, 'rows': []}
            self._done.append(found)
            self._run(part, found, later)
            self._note(self._done)
        return self._done

    def _run(self, part: Part, found: dict[str, Any], later: float) -> None:
        began = self._clock.now()
        rows = part.rows()
        try:
            row = next(rows)
            while True:
                result = {'row': row.kind, **row.asks, **self._result(row, self._left(part, later))}
                found['rows'].append(result)
                found['part_seconds'] = self._clock.now() - began
                self._note(self._done)
                row = rows.send(result)
        except StopIteration:
            pass
        found['state'] = 'done'
        found['part_seconds'] = self._clock.now() - began

    def _left(self, part: Part, later: float) -> float:
        """Seconds for the next row of a part; `later` is what those after it have reserved.

        That is a guess: a part that has reserved some itself may take half of what is left all the same.
        """
        left = self._clock.left()
        return max(left - later, left / 2) if part.reserved_seconds else left - later

    def _result(self, row: Row, left: float) -> dict[str, Any]:
        expected, why = self._costs.expected(row, self._worker.starts(row.alone))
        dropped = self._reason_to_drop(row, expected, why, left)
        if dropped:
            return {'outcome': 'dropped', 'reason': dropped, 'expected_seconds': expected}
        seconds = min(left, GIVE_UP * max(expected, row.expected_seconds) + GIVE_UP_SECONDS)
        answer = self._worker.ask(row.kind, dict(row.asks), seconds, alone=row.alone)
        self._costs.note(row, answer)
        return {**answer, 'expected_seconds': expected, 'expected_by': why}

    def _reason_to_drop(self, row: Row, expected: float, why: str, left: float) -> str:
        if row.host_bytes > self._host_bytes:
            return (f'it needs {row.host_bytes / 1e9:.0f} GB of the host, which has {self._host_bytes / 1e9:.0f} GB '
                    '(--host-memory)')
        if expected > left or left < LEAST_SECONDS:
            return f'it would take about {expected:.0f} s ({why}), and {max(left, 0):.0f} s were left for it'
        return ''
