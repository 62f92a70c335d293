"""The search for the largest size that works, as a generator of rows: it is sent what became of each."""
from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any


def largest(make: Callable[[int], Any], low: int, high: int, step: int) -> Generator[Any, Any, None]:
    """Tries `low`, then `high`, then halves between what worked and what did not.

    Args:
        make: The row that tries a size.
        low: The first size; where it fails, nothing else is tried.
        high: The largest size of interest.
        step: How close to the limit the answer has to be.
    """
    if (yield make(low))['outcome'] != 'done' or high <= low:
        return
    if (yield make(high))['outcome'] == 'done':
        return
    while high - low > step:
        middle = low + max((high - low) // 2 // step, 1) * step
        if (yield make(middle))['outcome'] == 'done':
            low = middle
        else:
            high = middle
