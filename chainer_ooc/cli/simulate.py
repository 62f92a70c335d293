"""``chainer-ooc simulate TRACE``: how long an iteration would take under a policy and a budget, and what it would hold.

Seconds and bytes are the simulator's, from the times that were recorded with the trace, or from a description of
another machine. Where no plan of the policy keeps within the budget, the answer is the smallest budget that has one.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from chainer_ooc.classify.bound import Bound, known_bound
from chainer_ooc.cli import across, gap
from chainer_ooc.cli import arguments as common
from chainer_ooc.cli.answer import Answer, listing
from chainer_ooc.cli.prediction import Prediction, batch_of, predict, read_trace, trace_for
from chainer_ooc.cli.stage import stage
from chainer_ooc.errors import WORKSPACE
from chainer_ooc.plans.making import in_core
from chainer_ooc.problem import Verdict, problem_of
from chainer_ooc.quantities import format_bytes, format_enough
from chainer_ooc.report.table import percent, seconds

HELP = 'simulate an iteration under a policy and a budget'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the trace, policy, budget, machine and batch size."""
    common.add_trace(parser)
    common.add_policy_and_budget(parser)
    common.add_machine_and_batch(parser)
    parser.add_argument('--ranks', type=common.several(common.positive), metavar='N1,N2', help=(
        'also images per second of so many ranks that exchange gradients in a ring; in-core too, at the batch that '
        'fits'))
    parser.add_argument('--network', type=common.network, metavar='SPEED',
                        help='of the link of each rank in that ring, such as 100Gbit or 12.5GB')


def run(arguments: argparse.Namespace) -> Answer:
    """Simulates.

    Raises:
        OocError: the trace cannot be read, or does not tell how it grows with the batch; there is no such machine.
    """
    recorded = read_trace(arguments.trace)
    at = partial(trace_for, recorded, common.machine_of(arguments))
    trace, batch = at(arguments.batch), arguments.batch or batch_of(recorded)
    across.check(arguments.ranks, arguments.network, batch)
    problem = problem_of(trace, arguments.budget, arguments.min_bytes)
    with stage(f'planning with {arguments.policy}'):
        found, in_core_plan = predict(arguments.policy, problem), in_core(problem)
    with stage('looking for what is possible at best'):
        plan, bound = found.plan, known_bound(problem)
    facts = {
        'policy': arguments.policy, 'machine': arguments.machine, 'batch': batch, 'feasible': plan is not None,
        'seconds': plan.seconds if plan else None, 'exchange_seconds': trace.exchange_seconds,
        'images_per_second': _rate(batch, plan.seconds + trace.exchange_seconds if plan else None),
        'in_core_images_per_second': _rate(batch, in_core_plan.seconds + trace.exchange_seconds),
        'peak_bytes': plan.peak_bytes if plan else None, 'budget_bytes': arguments.budget,
        'floor_bytes': found.floor_bytes, 'floor_set_by': found.where,
        'workspace_floor_bytes': found.workspace_floor_bytes,
        **found.counts(),
        'in_core_seconds': in_core_plan.seconds, **gap.facts_of(plan, bound),
    }
    shown = _shown(found, facts, bound)
    title = arguments.policy if batch is None else f'{arguments.policy}, batch {batch}'
    tables = [listing(title, shown)]
    if arguments.ranks is not None:
        assert batch is not None  # by `check`
        facts['across'] = across.across(problem, plan, batch, batch_of(recorded) or batch, at, arguments.ranks,
                                        arguments.network)
        tables.append(across.table(facts['across'], arguments.policy, batch))
    return Answer(facts, tables, gap.hints([bound]))


def _rate(batch: int | None, seconds: float | None) -> float | None:
    return batch / seconds if batch and seconds else None


def _shown(found: Prediction, facts: dict[str, Any], bound: Bound | None) -> dict[str, object]:
    in_core_seconds = facts['in_core_seconds']
    before: dict[str, object] = {'budget': format_bytes(found.budget_bytes)}
    after = {'in-core': seconds(in_core_seconds), **gap.shown(found.plan, bound)}
    if found.plan is None:
        assert found.floor_bytes is not None
        floor = format_enough(found.floor_bytes)
        refused = {'refused': f'needs at least {floor}, set by {found.where}'}
        if found.workspace_floor_bytes is not None:
            least = format_enough(found.workspace_floor_bytes)
            refused['with a workspace'] = f'about {least}, profiled with {WORKSPACE}'
        return {**before, **refused, **after}
    rate = facts['images_per_second']
    slower = f', {percent(found.plan.seconds / in_core_seconds - 1)} to in-core' if in_core_seconds else ''
    return {
        **before, 'time': f'{seconds(found.plan.seconds)}{slower}',
        'exchange': seconds(facts['exchange_seconds']) if facts['exchange_seconds'] else None,
        'images per second': f'{rate:.1f}' if rate else None, 'peak': format_bytes(found.plan.peak_bytes),
        'feature maps': ', '.join(f'{facts[verdict.value]} {verdict.value}' for verdict in Verdict), **after}
