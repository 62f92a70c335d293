"""Planning: how far plans are from what is possible, by a proven lower bound on the time of every plan.

    python benchmarks/bound.py
    python benchmarks/bound.py --networks resnext3d vgg16 unet densenet transformer lstm --json bound.json
    python benchmarks/bound.py --networks resnet50 --plot bound.png

Each network is recorded on this machine, with few examples, and put on paper on a machine that is described, with more,
as `chainer-ooc simulate --machine` does. By default the rows are three of ImageNet's networks at budgets and batches of
several kinds.

With `--networks` each of these takes about 30 GB in-core on a V100. Budgets are shares of the way from the smallest
that any plan keeps within to what in-core takes. So they ask about as much of each network, which shares of what
in-core takes do not: a third of that is below the smallest budget of one network, and ample for another. The time of
planning is processor time.
"""
from __future__ import annotations

import math
import pathlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planning import record
from surroundings import make_parser, publish

# isort: split
from bound_networks import NETWORKS
from bound_plot import draw_bound
from chainer_ooc.classify.bound import Bound, lower_bound
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cli.prediction import batch_of, on_machine, predict
from chainer_ooc.cost.machine import read_machine
from chainer_ooc.plans.making import in_core
from chainer_ooc.problem import Problem, problem_of
from chainer_ooc.quantities import format_bytes, parse_bytes
from chainer_ooc.report.table import Column, Table, percent, plain, seconds
from chainer_ooc.trace import Trace

MIN_BYTES = 1_000_000
GROWN_BYTES = 30_000_000_000
MACHINE = 'v100-pcie3'
SHARES = (0.1, 0.3, 0.6)
#: Of a plot: budgets, close to each other where the time changes most, and policies.
DRAWN = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
DRAWN_POLICIES = ('swap-all', 'superneurons', 'sublinear', 'swap-opt', 'pooch', 'auto')


@dataclass(frozen=True)
class Row:
    """A network on a machine."""

    network: str
    machine: str
    budget: str
    batch: int


ROWS = (
    Row('resnet50', 'v100-pcie3', '15GB', 256),
    Row('resnet50', 'v100-pcie3', '15GB', 640),
    Row('resnet50', 'v100-pcie3', '10GB', 384),
    Row('resnet50', 'v100-pcie3', '8.5GB', 640),
    Row('resnet50', 'h100-pcie5', '16GB', 640),
    Row('googlenet', 'v100-pcie3', '15GB', 896),
    Row('alexnet', 'v100-pcie3', '15GB', 2432),
)


def times(value: float) -> str:
    """A time as a multiple; infinite where nothing fits."""
    return 'none' if value == math.inf else f'{value:.4f}'


def columns(policies: Sequence[str]) -> tuple[Column, ...]:
    """Of the table: for each policy its time, its gap and how long it took to plan."""
    return (
        Column('network', 'network'), Column('machine', 'machine'), Column('batch', 'batch', plain, right=True),
        Column('budget_bytes', 'budget', format_bytes, right=True),
        Column('bound', 'bound / in-core', times, right=True),
        *(column for name in policies for column in (
            Column(name, f'{name} / in-core', times, right=True), Column(f'{name}_gap', 'gap', percent, right=True),
            Column(f'{name}_planning_seconds', 'planned in', seconds, right=True))),
        Column('bound_seconds', 'bound in', seconds, right=True), Column('binds', 'what binds'))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument('--policies', nargs='+', default=['pooch', 'auto'], choices=sorted(POLICIES), metavar='NAME',
                        help='(pooch auto)')
    parser.add_argument('--networks', nargs='+', choices=sorted(NETWORKS), metavar='NAME',
                        help='these at budgets of --shares: ' + ', '.join(NETWORKS))
    parser.add_argument('--shares', type=float, nargs='+', default=SHARES, metavar='X',
                        help='budgets, as shares of the way from the smallest to in-core (0.1 0.3 0.6)')
    parser.add_argument('--plot', type=pathlib.Path, metavar='FILE',
                        help='draw times over budgets of one of --networks there, under several policies')
    arguments = parser.parse_args()
    if arguments.plot:
        draw(arguments.networks or ['resnet50'], arguments.plot)
        return
    rows = [measure(*row, arguments.policies) for row in (
        by_shares(arguments.networks, arguments.shares) if arguments.networks else by_rows())]
    publish(Table(columns(arguments.policies), rows, 'Policies and the proven lower bound'), arguments)


TRACES: dict[str, Trace] = {}
#: A network, a machine, a batch, and what they pose.
Case = tuple[str, str, int, Problem]


def trace_of(name: str) -> Trace:
    """An iteration with few examples; recorded once."""
    if name not in TRACES:
        network = NETWORKS[name]
        TRACES[name] = record(network.build(), network.shape, network.examples)
    return TRACES[name]


def problem(trace: Trace, row: Row) -> Problem:
    """The iteration on a machine, at a batch and a budget."""
    there = on_machine(trace, read_machine(row.machine), row.batch / batch_of(trace))
    return problem_of(there, parse_bytes(row.budget), MIN_BYTES)


def by_rows() -> Iterator[Case]:
    """Those of `ROWS`."""
    for row in ROWS:
        yield row.network, row.machine, row.batch, problem(trace_of(row.network), row)


def by_shares(networks: Sequence[str], shares: Sequence[float]) -> Iterator[Case]:
    """Networks grown to `GROWN_BYTES` in-core, at shares of the way from the smallest budget to that."""
    for name in networks:
        batch, whole = grown(trace_of(name))
        most, least = in_core(whole).peak_bytes, lower_bound(replace(whole, budget_bytes=0)).floor_bytes
        for share in shares:
            yield name, MACHINE, batch, replace(whole, budget_bytes=round(least + share * (most - least)))


def grown(trace: Trace) -> tuple[int, Problem]:
    """The batch at which in-core takes about `GROWN_BYTES`, and its problem with memory for all."""
    recorded = batch_of(trace)

    def at(batch: int) -> Problem:
        return problem_of(on_machine(trace, read_machine(MACHINE), batch / recorded), 1 << 60, MIN_BYTES)

    batch = 8 * recorded
    for _ in range(8):  # small maps stay small maps at first, and what stands does not grow
        batch = max(recorded, round(batch * GROWN_BYTES / in_core(at(batch)).peak_bytes))
    return batch, at(batch)


def measure(network: str, machine: str, batch: int, problem: Problem, policies: Sequence[str]) -> dict[str, Any]:
    """One row: the bound, and plans beside it."""
    began = time.process_time()
    bound = lower_bound(problem)
    bound_seconds = time.process_time() - began
    row: dict[str, Any] = {
        'network': NETWORKS[network].title, 'machine': machine, 'batch': batch, 'budget_bytes': problem.budget_bytes,
        'floor_bytes': bound.floor_bytes, 'in_core_seconds': bound.in_core_seconds,
        'bound_seconds': bound_seconds, 'bound': bound.seconds / bound.in_core_seconds,
        'binds': binds(problem, bound)}
    for name in policies:
        row |= against(bound, problem, name)
    print(f'{network}, batch {batch}, {format_bytes(problem.budget_bytes)}: done', flush=True)
    return row


def against(bound: Bound, problem: Problem, policy: str) -> dict[str, float | None]:
    """A policy's time beside in-core and beside the bound; None where it is refused."""
    began = time.process_time()
    plan = predict(policy, problem).plan
    took = time.process_time() - began
    return {policy: plan.seconds / bound.in_core_seconds if plan else None,
            f'{policy}_gap': bound.gap(plan.seconds) if plan else None, f'{policy}_planning_seconds': took}


def binds(problem: Problem, bound: Bound) -> str:
    """What stands against a faster iteration, and what more would bring."""
    if bound.seconds == math.inf:
        return f'nothing fits below {format_bytes(bound.floor_bytes)}'
    if not bound.prices:
        return 'nothing'
    costs = problem.costs
    more = lower_bound(replace(problem, budget_bytes=problem.budget_bytes + 10 ** 9))
    faster = lower_bound(replace(problem, costs=replace(
        costs, write_bytes_per_second=2 * costs.write_bytes_per_second,
        read_bytes_per_second=2 * costs.read_bytes_per_second)))
    gains = [percent((other.seconds - bound.seconds) / bound.in_core_seconds) for other in (more, faster)]
    return (f'memory at {problem.trace.name_of(bound.prices[0].position)}: 1 GB more {gains[0]}, a link twice as fast '
            f'{gains[1]}')


def draw(networks: Sequence[str], path: pathlib.Path) -> None:
    """Times over budgets of one network."""
    if len(networks) > 1:
        raise SystemExit('error: a plot is of one network; give one with --networks')
    rows = [measure(*case, DRAWN_POLICIES) for case in by_shares(networks, DRAWN)]
    draw_bound(rows, DRAWN_POLICIES, path, f'{rows[0]["network"]} at batch {rows[0]["batch"]:,}, {MACHINE}')
    print(f'  plot: {path}')


if __name__ == '__main__':
    main()
