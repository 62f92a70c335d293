"""Planning: how far plans are from what is possible, by a proven lower bound on the time of every plan.

    python benchmarks/bound.py
    python benchmarks/bound.py --anneal 60 --json bound.json
    python benchmarks/bound.py --networks resnet50 vgg16 --shares 0.9 0.7 0.5

Each network is recorded on this machine, at a batch of two, and put on paper on a machine that is described, at a
larger batch, as `chainer-ooc simulate --machine` does. By default the rows are three of ImageNet's networks at budgets
and batches of several kinds; with `--shares`, the networks on a V100 at shares of what in-core takes.

Where the gap of a policy is large, either its plan is bad or the bound is weak. `--anneal` looks for better plans than
the policy's, from which it begins, with random changes of verdicts, leaves and starts: what it finds is the search's
part of the gap.
"""
from __future__ import annotations

import argparse
import math
import random
import time
from dataclasses import dataclass, replace
from typing import Any

from planning import record
from surroundings import make_parser, positive, publish

# isort: split
from chainer_ooc.classify.bound import Bound, lower_bound
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.classify.search import evaluate
from chainer_ooc.cli.prediction import batch_of, in_core, on_machine, predict, problem_of
from chainer_ooc.cost.machine import read_machine
from chainer_ooc.problem import Decision, Problem, Verdict, can_leave, can_recompute
from chainer_ooc.quantities import format_bytes, parse_bytes
from chainer_ooc.report.table import Column, Table, percent, plain, seconds
from chainer_ooc.trace import Trace
from models import ARCHITECTURES

MIN_BYTES = 1_000_000
GROWN_BYTES = 30_000_000_000
RECORDED_IMAGES = 2


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


COLUMNS = (
    Column('network', 'network'),
    Column('machine', 'machine'),
    Column('batch', 'batch', plain, right=True),
    Column('budget_bytes', 'budget', format_bytes, right=True),
    Column('bound', 'bound / in-core', times, right=True),
    Column('planned', 'policy / in-core', times, right=True),
    Column('gap', 'gap', percent, right=True),
    Column('annealed', 'annealed / in-core', times, right=True),
    Column('annealed_gap', 'gap', percent, right=True),
    Column('bound_seconds', 'bound in', seconds, right=True),
    Column('binds', 'what binds'),
)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument('--policy', default='pooch', choices=sorted(POLICIES), help='(%(default)s)')
    parser.add_argument('--networks', nargs='+', choices=sorted(ARCHITECTURES), metavar='NAME',
                        help='with --shares, these networks (resnet50 vgg16)')
    parser.add_argument('--shares', type=float, nargs='+', metavar='X', help='budgets, as shares of what in-core takes')
    parser.add_argument('--insize', type=positive, default=224, metavar='PIXELS', help='(%(default)s)')
    parser.add_argument('--anneal', type=float, default=0.0, metavar='SECONDS', help='look for better plans so long')
    arguments = parser.parse_args()
    rows = by_shares(arguments) if arguments.shares else [
        measure(row.network, row.machine, row.batch, problem(trace_of(row.network, arguments), row), arguments)
        for row in ROWS]
    columns = [each for each in COLUMNS if arguments.anneal or not each.key.startswith('annealed')]
    publish(Table(columns, rows, f'{arguments.policy} and the proven lower bound'), arguments)


TRACES: dict[str, Trace] = {}


def trace_of(network: str, arguments: argparse.Namespace) -> Trace:
    """Two images' iteration; recorded once."""
    if network not in TRACES:
        TRACES[network] = record(ARCHITECTURES[network].build(), (3, arguments.insize, arguments.insize))
    return TRACES[network]


def problem(trace: Trace, row: Row) -> Problem:
    """The iteration on a machine, at a batch and a budget."""
    there = on_machine(trace, read_machine(row.machine), row.batch / batch_of(trace))
    return problem_of(there, parse_bytes(row.budget), MIN_BYTES)


def by_shares(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Networks grown to `GROWN_BYTES` in-core, at shares of that."""
    rows = []
    for network in arguments.networks or ('resnet50', 'vgg16'):
        trace, machine = trace_of(network, arguments), read_machine('v100-pcie3')
        peak_bytes = in_core(problem_of(on_machine(trace, machine, 1), 1 << 60, MIN_BYTES)).peak_bytes
        batch = max(1, round(batch_of(trace) * GROWN_BYTES / peak_bytes))
        grown = on_machine(trace, machine, max(1.0, batch / batch_of(trace)))
        whole = problem_of(grown, 1 << 60, MIN_BYTES)
        for share in arguments.shares:
            budget_bytes = round(share * in_core(whole).peak_bytes)
            rows.append(measure(network, machine.name, batch, replace(whole, budget_bytes=budget_bytes), arguments))
    return rows


def measure(network: str, machine: str, batch: int, problem: Problem, arguments: argparse.Namespace) -> dict[str, Any]:
    """One row: the bound, the policy's plan, and what annealing makes of it."""
    began = time.process_time()
    bound = lower_bound(problem)
    took = time.process_time() - began
    plan = predict(arguments.policy, problem).plan
    row: dict[str, Any] = {
        'network': network, 'machine': machine, 'batch': batch, 'budget_bytes': problem.budget_bytes,
        'floor_bytes': bound.floor_bytes, 'in_core_seconds': bound.in_core_seconds, 'bound_seconds': took,
        'bound': bound.seconds / bound.in_core_seconds, 'binds': binds(problem, bound),
        **against(bound, plan.seconds if plan else None, 'planned', 'gap'), 'annealed': None, 'annealed_gap': None}
    if arguments.anneal and plan is not None:
        row |= against(bound, anneal(problem, arguments.policy, arguments.anneal), 'annealed', 'annealed_gap')
    print(f'{network}, batch {batch}, {format_bytes(problem.budget_bytes)}: done', flush=True)
    return row


def against(bound: Bound, seconds: float | None, name: str, gap: str) -> dict[str, float | None]:
    """A plan's time beside in-core and beside the bound."""
    if seconds is None:
        return {name: None, gap: None}  # refused
    return {name: seconds / bound.in_core_seconds, gap: bound.gap(seconds)}


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


def anneal(problem: Problem, policy: str, limit_seconds: float) -> float:
    """The time of the best plan that random changes find, from the policy's."""
    rng, began = random.Random(0), time.monotonic()
    decision = POLICIES[policy].decide(problem)
    found = best = evaluate(problem, decision).seconds
    while (passed := (time.monotonic() - began) / limit_seconds) < 1:
        other = change(problem, decision, rng)
        seconds = evaluate(problem, other).seconds
        heat = 0.01 * (1 - passed) ** 2 + 1e-6
        if seconds <= found or rng.random() < math.exp((found - seconds) / (heat * best)):
            decision, found = other, seconds
        best = min(best, found)
    return best


def change(problem: Problem, decision: Decision, rng: random.Random) -> Decision:
    """Another verdict for some maps, or another leave or start for one."""
    trace = problem.trace
    again = can_recompute(trace, problem.min_bytes)
    movable = [each for each in trace.maps if can_leave(each, problem.min_bytes)]
    verdicts, leaves, starts = list(decision.verdicts), dict(decision.leaves), dict(decision.starts.positions or {})
    what, one = rng.random(), rng.choice(movable)
    if what < 0.75:
        for each in rng.sample(movable, min(len(movable), rng.choice([1, 1, 1, 2, 2, 3]))):
            verdicts[each.id] = rng.choice([Verdict.KEEP, Verdict.SWAP, *[Verdict.RECOMPUTE] * again[each.id]])
    elif what < 0.85:
        leaves[one.id] = rng.randrange(one.leaves_at, trace.backward_start)
    elif what < 0.93 and one.backward_uses:
        starts[one.id] = rng.randint(trace.backward_start, one.backward_uses[0])
    else:
        leaves.pop(one.id, None)
        starts.pop(one.id, None)
    return replace(decision, verdicts=tuple(verdicts), leaves=leaves,
                   starts=replace(decision.starts, positions=starts or None))


if __name__ == '__main__':
    main()
