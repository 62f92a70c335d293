"""How far plans are from the best that is possible, as commands say it, and what stands against a faster iteration.

What is found and what is proven are told apart: the time of a plan is found, by simulation; that no plan is faster than
the bound is proven (docs/bound.md). The best plan is somewhere between, so that a gap is rounded up. Policy `unified`
has none, as its swapped maps take none of the budget. Without SciPy there is no bound, and all else is said.

Against a faster iteration stand memory, at some function, and the link. The bound's prices say what a byte more is
worth at each position. Where maps are large they mislead: a byte may bring nothing, and the last one a whole map. So
for more memory, and for a faster link, the bound is solved again, and the policy plans again. What is proven and what
is found stand beside each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from chainer_ooc.classify.bound import Bound, known_bound
from chainer_ooc.cli.answer import listing
from chainer_ooc.cli.prediction import predict
from chainer_ooc.cli.stage import stage
from chainer_ooc.plans.making import in_core
from chainer_ooc.plans.plan import Plan
from chainer_ooc.problem import Problem
from chainer_ooc.quantities import format_bytes, format_enough
from chainer_ooc.report.table import Column, Table, seconds

#: Why policy `unified` has no gap.
OUTSIDE = 'reads maps that take none of the budget'
_NO_SOLVER = 'how far this is from the best possible: pip install "chainer-ooc[auto]", for SciPy'
#: How much memory more is asked about, unless less is enough for everything, and how many times as fast a link.
MORE_BYTES, TIMES = 10 ** 9, 2
_NOTHING = 1e-9  # sums in another order: as a share, or in seconds


def bound_of(problem: Problem) -> Bound | None:
    """What is possible at best; a terminal says meanwhile that it is being looked for."""
    with stage('looking for what is possible at best'):
        return known_bound(problem)


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


def binding(problem: Problem, plan: Plan, bound: Bound | None, top: int) -> dict[str, Any]:
    """What a plan and every plan lose against in-core, what that is due to, and what more of it would bring.

    The bound says nothing about a plan of policy `unified`. At most `top` positions are named, those where memory is
    dearest.
    """
    whole, valid = in_core(problem), None if plan.mapped else bound
    changes = [_changed(each, plan, valid) for each in _others(problem, whole)]
    return {
        'lost_seconds': plan.seconds - whole.seconds,
        'proven_lost_seconds': None if valid is None else max(0.0, valid.lost_seconds),
        'memory_binds_at': None if valid is None else [
            {'position': each.position, 'where': problem.trace.name_of(each.position),
             'seconds_per_gb': each.seconds_per_byte * 1e9} for each in valid.prices[:top]],
        'link_binds': None if valid is None else any(
            each['budget_bytes'] == problem.budget_bytes and each['proven_less_seconds'] > _NOTHING * valid.lost_seconds
            for each in changes),
        'with': changes,
    }


def _others(problem: Problem, whole: Plan) -> Iterator[tuple[str, Problem]]:
    """The same problem with more of something, and what that is; nothing where everything fits."""
    more_bytes = min(MORE_BYTES, whole.peak_bytes - problem.budget_bytes)
    if more_bytes <= 0:
        return
    amount = '1 GB' if more_bytes == MORE_BYTES else format_bytes(more_bytes)
    yield f'{amount} more memory', replace(problem, budget_bytes=problem.budget_bytes + more_bytes)
    costs = problem.costs
    yield f'a link {TIMES} times as fast', replace(problem, costs=replace(
        costs, write_bytes_per_second=costs.write_bytes_per_second * TIMES,
        read_bytes_per_second=costs.read_bytes_per_second * TIMES))


def _changed(change: tuple[str, Problem], plan: Plan, bound: Bound | None) -> dict[str, Any]:
    what, problem = change
    found = predict(plan.policy, replace(problem, known=(plan.decision(),))).plan  # so that more is not worse
    other = None if bound is None else known_bound(problem)
    return {'what': what, 'budget_bytes': problem.budget_bytes, 'lower_bound_seconds': seconds_of(other),
            'proven_less_seconds': _less(seconds_of(bound), seconds_of(other)),
            'seconds': None if found is None else found.seconds,
            'less_seconds': _less(plan.seconds, None if found is None else found.seconds)}


def _less(before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    return 0.0 if abs(before - after) < _NOTHING else before - after


def binding_tables(plan: Plan, bound: Bound | None, facts: dict[str, Any]) -> list[Table]:
    """What `binding` says, to read."""
    found = [] if bound is None or plan.mapped else [listing('the best possible', _lines(plan, bound, facts))]
    changes = [Table([
        Column('what', 'with'), Column('lower_bound_seconds', 'proven: at least', seconds, right=True),
        Column('proven_less_seconds', 'less', seconds, right=True),
        Column('seconds', 'found', seconds, right=True),
        Column('less_seconds', 'less', seconds, right=True)], facts['with'])] if facts['with'] else []
    return found + changes


def _lines(plan: Plan, bound: Bound, facts: dict[str, Any]) -> dict[str, object]:
    places, others = facts['memory_binds_at'], len(bound.prices) - 1
    where = f'{places[0]["where"]}{f", and {others} more" if others else ""}' if places else 'nowhere'
    return {
        **shown(plan, bound),
        'lost to in-core': f'{seconds(facts["lost_seconds"])}, of which {seconds(facts["proven_lost_seconds"])} by '
                           'every plan (proven)',
        'memory binds': where, 'the link binds': 'yes' if facts['link_binds'] else 'no',
    }
