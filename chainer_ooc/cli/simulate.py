"""``chainer-ooc simulate TRACE``: how long an iteration would take under a policy and a budget, and what it would hold.

Seconds and bytes are the simulator's, from the times that were recorded with the trace, or from a description of
another machine. Where no plan of the policy keeps within the budget, the answer is the smallest budget that has one.

``--ranks`` adds images per second of several ranks, out-of-core and in-core at the batch that fits. Out-of-core trains
larger batches, and so exchanges gradients less often for as many images. In-core is policy keep at the largest batch,
up to the other's, with which it fits into the same budget.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from chainer_ooc.classify.bound import Bound
from chainer_ooc.classify.search import largest_fitting
from chainer_ooc.cli import arguments as common
from chainer_ooc.cli import gap
from chainer_ooc.cli.answer import Answer, UsageError, listing
from chainer_ooc.cli.prediction import Prediction, batch_of, predict, read_trace, trace_for
from chainer_ooc.cli.stage import stage
from chainer_ooc.cost.network import Interconnect
from chainer_ooc.errors import WORKSPACE
from chainer_ooc.plans.making import in_core
from chainer_ooc.plans.plan import Plan
from chainer_ooc.problem import Problem, Verdict, problem_of
from chainer_ooc.quantities import format_bytes, format_enough
from chainer_ooc.report.table import Column, Table, percent, ratio, seconds
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.exchange import gradient_bytes, with_ranks
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.trace import Trace

HELP = 'simulate an iteration under a policy and a budget'
#: What a row of ranks has where a plan, or a batch in-core, fits; None where it does not.
_KEYS = ('exchange_seconds', *(f'{whose}{what}' for whose in ('', 'in_core_') for what in (
    'seconds', 'after_seconds', 'images_per_second', 'after_images_per_second')))


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
    _check_ranks(arguments.ranks, arguments.network, batch)
    problem = problem_of(trace, arguments.budget, arguments.min_bytes)
    with stage(f'planning with {arguments.policy}'):
        found, in_core_plan = predict(arguments.policy, problem), in_core(problem)
    plan, bound = found.plan, gap.bound_of(problem)
    facts = {
        **found.facts(), 'machine': arguments.machine, 'batch': batch, 'exchange_seconds': trace.exchange_seconds,
        'images_per_second': _rate(batch, plan.seconds + trace.exchange_seconds if plan else None),
        'in_core_images_per_second': _rate(batch, in_core_plan.seconds + trace.exchange_seconds),
        'workspace_floor_bytes': found.refusal.workspace_floor_bytes if found.refusal else None,
        'in_core_seconds': in_core_plan.seconds, **gap.facts_of(plan, bound),
    }
    shown = _shown(found, facts, bound)
    title = arguments.policy if batch is None else f'{arguments.policy}, batch {batch}'
    tables = [listing(title, shown)]
    if arguments.ranks is not None:
        assert batch is not None  # by `_check_ranks`
        facts['across'] = _across(problem, plan, batch, batch_of(recorded) or batch, at, arguments.ranks,
                                 arguments.network)
        tables.append(_across_table(facts['across'], arguments.policy, batch))
    return Answer(facts, tables, gap.hints([bound]))


def _rate(batch: int | None, seconds: float | None) -> float | None:
    return batch / seconds if batch and seconds else None


def _shown(found: Prediction, facts: dict[str, Any], bound: Bound | None) -> dict[str, object]:
    in_core_seconds = facts['in_core_seconds']
    before: dict[str, object] = {'budget': format_bytes(found.budget_bytes)}
    after = {'in-core': seconds(in_core_seconds), **gap.shown(found.plan, bound)}
    if found.plan is None:
        assert found.refusal is not None
        floor = format_enough(found.refusal.floor_bytes)
        refused = {'refused': f'needs at least {floor}, set by {found.refusal.where}'}
        if found.refusal.workspace_floor_bytes is not None:
            least = format_enough(found.refusal.workspace_floor_bytes)
            refused['with a workspace'] = f'about {least}, profiled with {WORKSPACE}'
        return {**before, **refused, **after}
    rate = facts['images_per_second']
    slower = f', {percent(found.plan.seconds / in_core_seconds - 1)} to in-core' if in_core_seconds else ''
    return {
        **before, 'time': f'{seconds(found.plan.seconds)}{slower}',
        'exchange': seconds(facts['exchange_seconds']) if facts['exchange_seconds'] else None,
        'images per second': f'{rate:.1f}' if rate else None, 'peak': format_bytes(found.plan.peak_bytes),
        'feature maps': ', '.join(f'{facts[verdict.value]} {verdict.value}' for verdict in Verdict), **after}


def _check_ranks(ranks: Sequence[int] | None, network: Interconnect | None, batch: int | None) -> None:
    """Passes if both are given and the batch is known, or none of both is given.

    Raises:
        UsageError: it is otherwise.
    """
    if (ranks is None) != (network is None):
        given, missing = ('--ranks', '--network 100Gbit') if network is None else ('--network', '--ranks 1,4,16')
        raise UsageError(f'{given} says nothing without the other; add {missing}')
    if ranks is not None and batch is None:
        raise UsageError('the trace does not tell its batch size, and --ranks counts images; leave --ranks out')


def _across(problem: Problem, plan: Plan | None, batch: int, own_batch: int, at_batch: Callable[[int], Trace],
            ranks: Sequence[int], network: Interconnect) -> dict[str, Any]:
    """Works out the facts about several ranks, with a row for each number of `ranks`.

    Problem, plan (None where none fits) and batch are those of one rank, out-of-core. `at_batch` gives the trace at a
    batch, of which the recording's, `own_batch`, is the smallest that is looked at.

    Raises:
        OocError: the trace has no shapes.
    """
    with stage('looking for the batch that fits in-core'):
        in_core_batch = _largest_in_core(problem, batch, own_batch, at_batch)
    rows: list[dict[str, Any]] = [{'ranks': each, **dict.fromkeys(_KEYS)} for each in ranks]
    if plan is not None:
        _add(rows, '', batch, problem, plan, network)
    if in_core_batch is not None:
        in_core_problem = problem_of(at_batch(in_core_batch), problem.budget_bytes, problem.min_bytes)
        _add(rows, 'in_core_', in_core_batch, in_core_problem, in_core(in_core_problem), network)
    return {'network_bytes_per_second': network.bytes_per_second, 'network_latency_seconds': network.latency_seconds,
            'exchange_bytes': sum(gradient_bytes(problem.trace)), 'in_core_batch': in_core_batch, 'rows': rows}


def _largest_in_core(problem: Problem, most: int, least: int, at_batch: Callable[[int], Trace]) -> int | None:
    """The largest batch within the budget, from `least` to `most`; None if there is none."""
    def fits(batch: int) -> bool:
        found = in_core(problem_of(at_batch(batch), problem.budget_bytes, problem.min_bytes))
        return found.peak_bytes <= problem.budget_bytes

    return largest_fitting(least, most + 1, fits) if fits(least) else None


def _add(rows: list[dict[str, Any]], prefix: str, batch: int, problem: Problem, plan: Plan,
         network: Interconnect) -> None:
    timeline = simulate(problem, lay_out(problem, plan.decision()))
    for row in rows:
        found = with_ranks(problem.trace, timeline, row['ranks'], network)
        images = batch * row['ranks']
        row.update({
            'exchange_seconds': found.exchange_seconds,
            f'{prefix}seconds': found.beside_seconds, f'{prefix}after_seconds': found.after_seconds,
            f'{prefix}images_per_second': images / found.beside_seconds,
            f'{prefix}after_images_per_second': images / found.after_seconds})


def _across_table(facts: dict[str, Any], policy: str, batch: int) -> Table:
    """The rows of `_across`, to read."""
    def rate(value: float) -> str:
        return f'{value:,.0f}'

    rows = [{**row, 'faster': _quotient(row, ''), 'faster_after': _quotient(row, 'after_')} for row in facts['rows']]
    in_core_batch = facts['in_core_batch']
    speed = format_bytes(round(facts['network_bytes_per_second']))
    title = (f'{format_bytes(facts["exchange_bytes"])} of gradients in a ring of {speed} a second; images per second '
             f'of {policy} at batch {batch} a rank, and in-core '
             + ('at no batch of this trace or larger' if in_core_batch is None else f'at batch {in_core_batch}')
             + ', with the exchange beside backward, and after it as in ChainerMN')
    return Table([
        Column('ranks', 'ranks', rate, right=True), Column('exchange_seconds', 'exchange', seconds, right=True),
        Column('images_per_second', 'beside', rate, right=True),
        Column('in_core_images_per_second', 'in-core', rate, right=True),
        Column('faster', 'ratio', ratio, right=True),
        Column('after_images_per_second', 'after', rate, right=True),
        Column('in_core_after_images_per_second', 'in-core', rate, right=True),
        Column('faster_after', 'ratio', ratio, right=True)], rows, title)


def _quotient(row: dict[str, Any], when: str) -> float | None:
    ours, theirs = row[f'{when}images_per_second'], row[f'in_core_{when}images_per_second']
    return ours / theirs if ours and theirs else None
