"""Paired times: what two ways of doing the same cost, measured in turns so that a slow moment hits both.

    plain ooc | ooc plain | plain ooc | ooc plain     each | ends a pair; who goes first alternates

The ratio is taken within each pair and the median over the pairs is what counts. The spread is that of the middle half
of the ratios; the interval is where the true median lies with 95 % confidence (order statistics, no assumption on the
distribution of times).
"""
from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class PairedSeconds:
    """Times of the two ways, pair by pair.

    Attributes:
        first: Seconds of the way that the other is held against.
        second: Seconds of the other.
    """

    first: tuple[float, ...]
    second: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Second over first, in ascending order."""
        return sorted(second / first for first, second in zip(self.first, self.second, strict=True))

    @property
    def ratio(self) -> float:
        """Median of the ratios."""
        return statistics.median(self.ratios)

    @property
    def middle_half(self) -> tuple[float, float]:
        """The quartiles of the ratios."""
        ratios = self.ratios
        if len(ratios) < 2:
            return ratios[0], ratios[0]
        low, _, high = statistics.quantiles(ratios, n=4, method='inclusive')
        return low, high

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds of the true median with 95 % confidence, or the extremes where there are too few pairs for that."""
        ratios = self.ratios
        rank = max(0, math.floor(len(ratios) / 2 - 0.98 * math.sqrt(len(ratios))))
        return ratios[rank], ratios[-1 - rank]


def in_turns(first: Callable[[], float], second: Callable[[], float], pairs: int,
             show: Callable[[int, float, float], None] | None = None) -> PairedSeconds:
    """Runs both ways in turns.

    Args:
        first: Does the work once; returns its seconds.
        second: The same the other way.
        pairs: How often.
        show: Called after each pair with its number from 1 and the two times.
    """
    times: tuple[list[float], list[float]] = [], []
    for number in range(pairs):
        if number % 2:
            times[1].append(second())
            times[0].append(first())
        else:
            times[0].append(first())
            times[1].append(second())
        if show:
            show(number + 1, times[0][-1], times[1][-1])
    return PairedSeconds(tuple(times[0]), tuple(times[1]))
