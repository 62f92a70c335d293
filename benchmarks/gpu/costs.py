"""What rows will take, by what rows like them took here; conduct drops what cannot end.

A row states what it is expected to take, which is a guess until one was measured. From then on rows alike (the same
kind, network and batch) are expected to take what the last one took, and rows of the same family (in-core, or within
the budget) as much more or less as those before them did beside what they had stated. A row that shares a process is
spared what the first one in it paid for: the start, and what its first iterations took beyond the later ones (kernels
compiled, cuDNN's plans, memory pinned)::

    fresh process    [start][settle: 30 s, 9 s, 2 s, 2 s, 2 s][timed: 5 x 2 s]      whole
    shared process          [settle:  2 s, 2 s, 2 s, 2 s, 2 s][timed: 5 x 2 s]      whole - start - 35 s

A row that was refused has recorded one iteration. If it was the first of its network and batch in its process, it has
paid for them what `35 s` stands for above, and a row of the same in a fresh process will pay it again.
"""
from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping
from typing import Any

from programme import Row

#: A row may take so much longer than the one before it before it was a mistake to begin it.
SLACK = 1.2
#: What is stated is off by so much at most, as far as one row tells.
LEAST_RATIO, MOST_RATIO = 0.3, 4.0


class Costs:
    """Learns from each row, and says what the next one will take."""

    def __init__(self) -> None:
        self._whole: dict[Hashable, float] = {}
        self._shared: dict[Hashable, float] = {}
        self._first: dict[Hashable, float] = {}
        self._ratios: dict[tuple[str, str], list[float]] = {}

    def expected(self, row: Row, fresh: bool) -> tuple[float, str]:
        """Seconds of a row, and by what they are known.

        Args:
            row: the row.
            fresh: a process has to be started for it.
        """
        like = _like(row)
        known = (self._whole if fresh else self._shared).get(like)
        if known is None and fresh and like in self._shared:
            known = self._shared[like] + row.start_seconds * self._ratio(row) + self._first.get(like, 0.0)
        if known is not None:
            return SLACK * known, 'by what rows alike took here'
        stated = row.expected_seconds + (row.start_seconds if fresh else 0.0)
        if (row.kind, row.family) in self._ratios:
            return stated * self._ratio(row), 'by what other rows took here'
        return stated, 'as stated beforehand'

    def note(self, row: Row, answer: Mapping[str, Any]) -> None:
        """Takes note of a row that came to an end of its own."""
        seconds, fresh = answer['row_seconds'], answer.get('fresh_process', False)
        started_seconds = seconds - answer.get('start_seconds', 0.0)
        if answer['outcome'] == 'refused':
            self._first.setdefault(_like(row), started_seconds)
        if answer['outcome'] != 'done':
            return
        shared = max(0.0, started_seconds - _excess(answer))
        self._shared[_like(row)] = shared
        if fresh:
            self._whole[_like(row)] = seconds
        stated = row.expected_seconds + (row.start_seconds if fresh else 0.0)
        self._ratios.setdefault((row.kind, row.family), []).append(seconds / stated)

    def _ratio(self, row: Row) -> float:
        found = self._ratios.get((row.kind, row.family))
        return min(max(statistics.median(found), LEAST_RATIO), MOST_RATIO) if found else 1.0


def _like(row: Row) -> Hashable:
    return (row.kind, row.like if row.like is not None else repr(row.asks))


def _excess(answer: Mapping[str, Any]) -> float:
    """What the first iterations took beyond those that were timed."""
    if 'seconds' not in answer:
        return 0.0
    return sum(max(0.0, each - answer['seconds']) for each in answer.get('settle_seconds', ()))
