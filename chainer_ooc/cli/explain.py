"""``chainer-ooc explain TRACE``: why each of the largest feature maps got its verdict.

The reason is what the iteration would be with each of the other verdicts (`chainer_ooc.report.reasons`).
"""

from __future__ import annotations

import argparse
from typing import Any

from chainer_ooc.classify.policies import policy_of
from chainer_ooc.cli import arguments as common
from chainer_ooc.cli import gap
from chainer_ooc.cli.answer import Answer, maker_of
from chainer_ooc.cli.prediction import read_trace, trace_for
from chainer_ooc.cli.stage import stage
from chainer_ooc.plans.making import plan_within
from chainer_ooc.problem import Problem, problem_of
from chainer_ooc.quantities import counted, format_bytes
from chainer_ooc.report.reasons import Reasons
from chainer_ooc.report.table import Column, Table, figures, seconds
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.trace.rows import place

HELP = 'say why each of the largest feature maps is kept, swapped or recomputed'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the trace, policy, budget and the number of maps."""
    common.add_trace(parser)
    common.add_policy_and_budget(parser)
    common.add_machine_and_batch(parser)
    parser.add_argument('--top', type=common.positive, default=10, metavar='N',
                        help='feature maps to show (%(default)s)')


def run(arguments: argparse.Namespace) -> Answer:
    """Explains a plan.

    Raises:
        InfeasibleBudgetError: no plan of the policy keeps within the budget.
        OocError: the trace cannot be read, or does not tell how it grows with the batch; there is no such machine.
    """
    trace = trace_for(read_trace(arguments.trace), common.machine_of(arguments), arguments.batch)
    problem = problem_of(trace, arguments.budget, arguments.min_bytes)
    plan = plan_within(policy_of(arguments.policy), problem)
    timeline = simulate(problem, lay_out(problem, plan.decision()))
    reasons = Reasons(problem, plan, timeline)
    retained = [each for each in trace.maps if each.retained]  # the others are freed by themselves
    largest = sorted(retained, key=lambda each: (-each.nbytes, each.id))[:arguments.top]
    rows = [_row(problem, reasons, each.id) for each in largest]
    bound = gap.bound_of(problem)
    with stage('looking for what binds'):
        binds = gap.binding(problem, plan, bound, arguments.top)
    facts = {'policy': plan.policy, 'budget_bytes': plan.budget_bytes, 'seconds': plan.seconds,
             'peak_bytes': plan.peak_bytes, 'stall_seconds': timeline.stall_seconds,
             **gap.facts_of(plan, bound), **binds, 'maps': rows}
    title = (f'{plan.policy} within {format_bytes(plan.budget_bytes)}: {seconds(plan.seconds)}, of which '
             f'{seconds(timeline.stall_seconds)} stalled; the largest {len(rows)} of '
             f'{counted(len(retained), "map")}')
    closing = [*gap.hints([bound]), *(
        f'map {row["map"]}{place(row["path"], row["line"])}, {row["verdict"]}: {row["why"]}' for row in rows)]
    return Answer(facts, [_table(rows, title), *gap.binding_tables(plan, bound, binds)], closing)


def _row(problem: Problem, reasons: Reasons, map_id: int) -> dict[str, Any]:
    """One row of the answer."""
    trace = problem.trace
    reason = reasons.of(trace.maps[map_id])
    return {
        'map': reason.map, **maker_of(trace, reason.map), 'nbytes': trace.maps[reason.map].nbytes,
        'verdict': reason.verdict.value, 'swap_out_seconds': reason.swap_out_seconds,
        'swap_in_seconds': reason.swap_in_seconds, 'recompute_seconds': reasons.recompute_seconds(map_id),
        'stall_seconds': reason.stall_seconds,
        'alternatives': [{'verdict': each.verdict.value, 'seconds': each.seconds, 'needed_bytes': each.needed_bytes}
                         for each in reason.others], 'why': reason.why}


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    return Table([
        Column('map', 'map', right=True), Column('producer', 'made by'), Column('verdict', 'verdict'),
        Column('nbytes', 'size', format_bytes, right=True), Column('swap_out_seconds', 'out [s]', figures, right=True),
        Column('swap_in_seconds', 'in [s]', figures, right=True),
        Column('recompute_seconds', 'again [s]', figures, right=True),
        Column('stall_seconds', 'stalls [s]', figures, right=True)], rows, title)
