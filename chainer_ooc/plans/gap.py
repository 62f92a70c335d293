"""How far a plan is from the best that is possible, worked out when it is asked for.

The bound behind a gap takes half a second and the memory of SciPy, which no iteration should pay for. So what is frozen
when a plan is made, or an iteration ends, remembers what to ask, and asks once. What it remembers is no field: it is
neither compared nor shown, and neither copies nor files have it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, TypeVar

from chainer_ooc.classify.bound import known_bound
from chainer_ooc.problem import Problem

#: For one linear program. The limit of a problem is that of a search, which in training ends after a moment.
LIMIT_SECONDS = 60.0
_Own = TypeVar('_Own', bound='WithGap')


class WithGap:
    """The base of a frozen dataclass that has a gap."""

    _ask: Callable[[], float | None] | None = None

    @cached_property
    def gap(self) -> float | None:
        """How much longer the plan takes than a time that no plan is below: 0.02 is two percent.

        Both are simulated times, and the second is proven (docs/bound.md), so that the best plan is as near or nearer.
        It is worked out when it is first asked for, which takes half a second or more, and SciPy's memory (40 MB).
        None where there is no plan; where SciPy (extra `auto`) is missing; of policy `unified`, whose swapped maps take
        none of the budget; of a plan from a file, and of a copy, which do not know what it was made for.
        """
        return None if self._ask is None else self._ask()

    def asking(self: _Own, ask: Callable[[], float | None]) -> _Own:
        """Has a value that was just made ask this for its gap; returns it."""
        object.__setattr__(self, '_ask', ask)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]


def gap_of(problem: Problem, seconds: float) -> float | None:
    """The gap of a time that was simulated for a problem; None without SciPy."""
    bound = known_bound(replace(problem, limit_seconds=LIMIT_SECONDS))
    return None if bound is None else bound.gap(seconds)
