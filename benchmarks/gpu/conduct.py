"""Runs parts against the clock and notes what became of every row, also of those that could not run.

A part that states more seconds than are left is left out, and the file says so; a later, shorter one may still run. A
row that a part's time is over for is a row with that reason: nothing that was asked for is missing from the file.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from programme import Part, Row

#: Below this a row is not begun: not even a process starts in it.
LEAST_SECONDS = 2.0


class Asks(Protocol):
    """What rows are asked of: `processes.Worker`, or a stand-in of the tests."""

    def ask(self, kind: str, asks: dict[str, Any], most_seconds: float, *, alone: bool = False) -> dict[str, Any]: ...


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


def conduct(parts: Sequence[Part], worker: Asks, clock: Clock, stretch: float,
            note: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
    """Runs the parts in their order.

    Args:
        parts: What to run.
        worker: What rows are asked of.
        clock: The time that there is.
        stretch: How many times what they state parts and rows may take.
        note: Called after each row, and after each part that was left out, with all parts so far.

    Returns:
        list[dict[str, Any]]: Each part as JSON takes it.
    """
    done: list[dict[str, Any]] = []
    for part in parts:
        found: dict[str, Any] = {'name': part.name, 'title': part.title, 'kind': part.kind, 'state': 'running',
                                 'most_seconds': part.most_seconds * stretch, 'rows': []}
        done.append(found)
        if found['most_seconds'] > clock.left():
            found['state'] = 'left out'
            found['reason'] = (f'it may take {found["most_seconds"]:.0f} s and {max(clock.left(), 0):.0f} s were left; '
                               f'run again with --parts {part.name}')
        else:
            _run(part, found, worker, clock, stretch, lambda: note(done))
        note(done)
    return done


def _run(part: Part, found: dict[str, Any], worker: Asks, clock: Clock, stretch: float,
         note: Callable[[], None]) -> None:
    began = clock.now()
    rows = part.rows()
    try:
        row = next(rows)
        while True:
            seconds = min(row.most_seconds * stretch, began + found['most_seconds'] - clock.now())
            result = _result(row, worker, seconds, found['most_seconds'])
            found['rows'].append(result)
            found['part_seconds'] = clock.now() - began
            note()
            row = rows.send(result)
    except StopIteration:
        pass
    found['state'] = 'done'
    found['part_seconds'] = clock.now() - began


def _result(row: Row, worker: Asks, seconds: float, part_seconds: float) -> dict[str, Any]:
    if seconds < LEAST_SECONDS:
        answer = {'outcome': 'not run', 'reason': f"the part's {part_seconds:.0f} s were over"}
    else:
        answer = worker.ask(row.kind, dict(row.asks), seconds, alone=row.alone)
    return {'row': row.kind, **row.asks, **answer}
