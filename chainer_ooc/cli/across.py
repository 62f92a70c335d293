"""What ``simulate --ranks`` adds: images per second of several ranks, out-of-core and in-core at the batch that fits.

Out-of-core trains larger batches, and so exchanges gradients less often for as many images. In-core is policy keep at
the largest batch, up to the other's, with which it fits into the same budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chainer_ooc.classify.search import largest_fitting
from chainer_ooc.cli.answer import UsageError
from chainer_ooc.cli.stage import stage
from chainer_ooc.cost.network import Network
from chainer_ooc.plans.making import in_core
from chainer_ooc.plans.plan import Plan
from chainer_ooc.problem import Problem, problem_of
from chainer_ooc.quantities import format_bytes
from chainer_ooc.report.table import Column, Table, ratio, seconds
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.exchange import gradient_bytes, with_ranks
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.trace import Trace

#: What a row has where a plan, or a batch in-core, fits; None where it does not.
_KEYS = ('exchange_seconds', *(f'{whose}{what}' for whose in ('', 'in_core_') for what in (
    'seconds', 'after_seconds', 'images_per_second', 'after_images_per_second')))


def check(ranks: Sequence[int] | None, network: Network | None, batch: int | None) -> None:
    """Passes if both are given and the batch is known, or none of both is given.

    Raises:
        UsageError: it is otherwise.
    """
    if (ranks is None) != (network is None):
        given, missing = ('--ranks', '--network 100Gbit') if network is None else ('--network', '--ranks 1,4,16')
        raise UsageError(f'{given} says nothing without the other; add {missing}')
    if ranks is not None and batch is None:
        raise UsageError('the trace does not tell its batch size, and --ranks counts images; leave --ranks out')


def across(problem: Problem, plan: Plan | None, batch: int, own_batch: int, at_batch: Callable[[int], Trace],
           ranks: Sequence[int], network: Network) -> dict[str, Any]:
    """Works out the facts, with a row for each number of `ranks`.

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


def _add(rows: list[dict[str, Any]], prefix: str, batch: int, problem: Problem, plan: Plan, network: Network) -> None:
    timeline = simulate(problem, lay_out(problem, plan.decision()))
    for row in rows:
        found = with_ranks(problem.trace, timeline, row['ranks'], network)
        images = batch * row['ranks']
        row.update({
            'exchange_seconds': found.exchange_seconds,
            f'{prefix}seconds': found.beside_seconds, f'{prefix}after_seconds': found.after_seconds,
            f'{prefix}images_per_second': images / found.beside_seconds,
            f'{prefix}after_images_per_second': images / found.after_seconds})


def table(facts: dict[str, Any], policy: str, batch: int) -> Table:
    """The rows to read."""
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
