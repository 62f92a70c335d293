"""What holds in every plan, checked where one is read: execution follows it without a second look.

A plan alone names maps, calls and positions by number; whether there are so many is known with its trace, which a file
of plans has beside it. Left out: whether the plan is a good one. Whatever it says, a map that is read while it is away
is brought back first.
"""

from __future__ import annotations

from chainer_ooc.plans.plan import Plan
from chainer_ooc.problem import Verdict
from chainer_ooc.trace import Trace
from chainer_ooc.trace.invariants import check_ascending, check_index
from chainer_ooc.trace.tables import Damage


def check_fit(plan: Plan, trace: Trace) -> None:
    """Passes if a plan is for a trace: for its maps, its calls and its positions.

    Raises:
        Damage: it is for others; the error says what and in which row.
    """
    calls, positions = len(trace.calls), trace.positions
    if len(plan.verdicts) != len(trace.maps):
        raise Damage('maps', f'verdicts for {len(plan.verdicts)} feature maps, and the trace has {len(trace.maps)}')
    for number, (leave, uses, restored) in enumerate(zip(
            plan.leaves, plan.chains.uses, plan.chains.restored, strict=True)):
        where = f'maps, row {number}'
        check_index(f'{where}, leave', leave, max(positions, 1), 'position', trace.maps[number].last_forward_use)
        check_index(f'{where}, restored', restored, positions, 'position of a step', -1)
        check_ascending(f'{where}, uses', uses)
        for each in uses:
            check_index(f'{where}, uses', each, positions, 'position of a step', calls)
    for number, swap_in in enumerate(plan.swap_ins):
        where = f'swap_ins, row {number}'
        check_index(f'{where}, map', swap_in.map, len(trace.maps), 'feature map')
        if plan.verdicts[swap_in.map] is not Verdict.SWAP:
            raise Damage(f'{where}, map', f'map {swap_in.map} is not swapped')
        check_index(f'{where}, use', swap_in.use, positions, 'position of a step', calls)
        check_index(f'{where}, start', swap_in.start, swap_in.use + 1, 'position up to its use', calls)
    _check_chains(plan, trace)


def _check_chains(plan: Plan, trace: Trace) -> None:
    for position, again in plan.chains.calls_at.items():
        check_index('chains, position', position, trace.positions, 'position of a step', len(trace.calls))
        check_ascending(f'chains, position {position}, calls', again)
        for each in again:
            check_index(f'chains, position {position}, calls', each, len(trace.calls), 'call')
    for each in plan.chains.shared if isinstance(plan.chains.shared, frozenset) else ():
        check_index('shares_chains', each, len(trace.maps), 'feature map')
