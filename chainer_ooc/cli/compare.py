"""``chainer-ooc compare TRACE``: policies beside each other, under several budgets, by simulation."""

from __future__ import annotations

import argparse
from typing import Any

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cli import arguments as common
from chainer_ooc.cli.answer import Answer
from chainer_ooc.cli.prediction import Prediction, in_core, lower_bound_seconds, predict, problem_of, read_trace
from chainer_ooc.problem import Verdict
from chainer_ooc.quantities import format_bytes, format_enough
from chainer_ooc.report.table import Column, Table, percent, seconds

HELP = 'simulate several policies under several budgets'
#: The budgets by default, as shares of what the iteration holds when nothing leaves.
SHARES = (1.0, 0.75, 0.5, 0.35)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the trace, and which policies and budgets."""
    common.add_trace(parser)
    parser.add_argument('--policies', type=common.several(common.policy), default=list(POLICIES), metavar='P1,P2',
                        help='policies (all)')
    shares = ', '.join(f'{share:.0%}'.replace('%', ' %%') for share in SHARES)
    parser.add_argument('--budgets', type=common.several(common.budget), metavar='B1,B2',
                        help=f'budgets, such as 800MB,1.5GiB ({shares} of the peak of policy keep)')


def run(arguments: argparse.Namespace) -> Answer:
    """Simulates each pair.

    Raises:
        OocError: the trace cannot be read.
    """
    trace = read_trace(arguments.trace)
    reference = in_core(problem_of(trace, 1, arguments.min_bytes))
    budgets = arguments.budgets or [int(reference.peak_bytes * share) for share in SHARES]
    rows = [_row(predict(policy, problem_of(trace, budget_bytes, arguments.min_bytes)), reference.seconds)
            for budget_bytes in budgets for policy in arguments.policies]
    facts = {
        'in_core_seconds': reference.seconds, 'in_core_peak_bytes': reference.peak_bytes,
        'lower_bound_seconds': lower_bound_seconds(problem_of(trace, 1, arguments.min_bytes)), 'rows': rows,
    }
    title = f'in-core: {seconds(reference.seconds)} at a peak of {format_bytes(reference.peak_bytes)}'
    return Answer(facts, [_table(rows, title)])


def _row(found: Prediction, in_core_seconds: float) -> dict[str, Any]:
    plan = found.plan
    return {
        'policy': found.policy, 'budget_bytes': found.budget_bytes, 'feasible': plan is not None,
        'seconds': plan.seconds if plan else None,
        'overhead': plan.seconds / in_core_seconds - 1 if plan and in_core_seconds else None,
        'peak_bytes': plan.peak_bytes if plan else None,
        **{verdict.value: found.count(verdict) for verdict in Verdict},
        'floor_bytes': found.floor_bytes, 'floor_set_by': found.where,
    }


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    columns = [
        Column('budget_bytes', 'budget', format_bytes, right=True), Column('policy', 'policy'),
        Column('seconds', 'time', seconds, right=True), Column('overhead', 'to in-core', percent, right=True),
        Column('peak_bytes', 'peak', format_bytes, right=True),
        *(Column(verdict.value, verdict.value, right=True) for verdict in Verdict),
        Column('floor_bytes', 'refused', lambda floor_bytes: f'needs {format_enough(floor_bytes)}'),
    ]
    return Table(columns, rows, title)
