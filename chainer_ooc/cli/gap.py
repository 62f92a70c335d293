"""How far plans are from the best that is possible, as commands say it.

What is found and what is proven are told apart: the time of a plan is found, by simulation; that no plan is faster than
the bound is proven (docs/bound.md). The best plan is somewhere between, so that a gap is rounded up. Policy `unified`
has none, as its swapped maps take none of the budget. Without SciPy there is no bound, and all else is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from chainer_ooc.classify.bound import Bound
from chainer_ooc.plans.plan import Plan
from chainer_ooc.quantities import format_enough
from chainer_ooc.report.table import seconds

#: Why policy `unified` has no gap.
OUTSIDE = 'reads maps that take none of the budget'
_NO_SOLVER = 'how far this is from the best possible: pip install "chainer-ooc[auto]", for SciPy'


def gap_of(plan: Plan | None, bound: Bound | None) -> float | None:
    """How much longer a plan takes than the bound of its problem; None where one of them is missing or holds not."""
    return None if plan is None or bound is None or plan.mapped else bound.gap(plan.seconds)


def facts_of(plan: Plan | None, bound: Bound | None) -> dict[str, float | None]:
    """What a command says about a plan, or about the lack of one."""
    return {'lower_bound_seconds': seconds_of(bound), 'gap': gap_of(plan, bound)}


def percent_at_most(gap: float) -> str:
    """A gap in percent, rounded up."""
    return f'{math.ceil(gap * 1000 - 1e-6) / 1000:.1%}'.replace('%', ' %')  # 1e-6: sums in another order


def nearness(gap: float) -> str:
    """A gap in words."""
    shown = percent_at_most(gap)
    return 'no plan is faster' if shown == percent_at_most(0.0) else f'within {shown} of the best possible'


def best_of(bound: Bound) -> str:
    """What is possible at best."""
    if bound.seconds == math.inf:
        return f'none, since {format_enough(bound.floor_bytes)} is the least'
    return f'{seconds(bound.seconds)} or more'


def shown(plan: Plan | None, bound: Bound | None) -> dict[str, object]:
    """The same as a line of a listing; none where the bound is not known."""
    if bound is None:
        return {}
    gap = gap_of(plan, bound)
    if gap is not None:
        return {'gap': f'{nearness(gap)} ({best_of(bound)})'}
    if plan is not None:
        return {'gap': f'none: {plan.policy} {OUTSIDE}'}
    return {'best possible': best_of(bound)}


def hints(bounds: Iterable[Bound | None]) -> list[str]:
    """A line about what is missing for bounds, if any is."""
    return [_NO_SOLVER] if any(each is None for each in bounds) else []


def seconds_of(bound: Bound | None) -> float | None:
    """The bound; None where it is not known, or no plan fits."""
    return None if bound is None or bound.seconds == math.inf else bound.seconds
