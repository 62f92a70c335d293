"""Memory: the smallest device on which a plan runs, by policy and batch size, on paper.

    python benchmarks/devices.py
    python benchmarks/devices.py --batchsizes 512 640 --policies superneurons swap-all pooch --json devices.json

ResNet50 is recorded on this machine, at a batch of two, and its trace grown to each batch size. What a computation
allocates beside its maps is taken to be their gradients, as in `planning.py`; parameters, their gradients and momentum
stand. Times decide only when copies end: a link of 12 GB/s is the bottleneck.

Each policy plans at budgets in steps of half a GB. What its plan allocates and frees in two iterations goes through a
best-fit pool that splits and merges, as CuPy's does, and the smallest device is that on which some budget works. The
smallest budget is what the policy needs if no byte were lost to fragmentation.
"""
from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from planning import MIN_BYTES, link_bound_costs, record, without_scratch
from surroundings import make_parser, positive, publish

# isort: split
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.papers.allocators.events import events_of, smallest_capacity
from chainer_ooc.papers.allocators.pool import BestFitPool
from chainer_ooc.plans.making import make_plan
from chainer_ooc.problem import Problem, Standing
from chainer_ooc.report.table import Column, Table, megabytes, plain
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.trace import Trace
from chainer_ooc.trace.scaling import scale
from models.resnet50 import ResNet50
from options import amount

STEP_BYTES = 500_000_000
RECORDED_IMAGES = 2
COLUMNS = (
    Column('batchsize', 'batch', plain, right=True),
    Column('policy', 'policy'),
    Column('least_budget_bytes', 'smallest budget', megabytes, right=True),
    Column('device_bytes', 'smallest device', megabytes, right=True),
    Column('budget_bytes', 'with a budget of', megabytes, right=True),
)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument('--batchsizes', type=positive, nargs='+', default=[256, 384, 512, 640], metavar='N',
                        help='(%(default)s)')
    parser.add_argument('--policies', nargs='+', default=['superneurons', 'swap-all'], metavar='NAME',
                        help='(%(default)s)')
    parser.add_argument('--largest', type=amount, default=amount('17GB'), metavar='BYTES',
                        help='the largest budget that is tried (17GB)')
    arguments = parser.parse_args()
    trace = recorded()
    rows = []
    for batchsize, policy in itertools.product(arguments.batchsizes, arguments.policies):
        rows.append({'batchsize': batchsize, 'policy': policy,
                     **smallest_device(trace, batchsize, policy, arguments.largest)})
        print(rows[-1], flush=True)
    publish(Table(COLUMNS, rows, 'The smallest device for ResNet50, with a best-fit pool'), arguments)


def recorded() -> Trace:
    """ResNet50 on two photographs' worth of noise, without the CPU's scratch memory."""
    return without_scratch(record(ResNet50(), (3, 224, 224)))


def problem_of(trace: Trace, batchsize: int, budget_bytes: int) -> Problem:
    """An iteration of this batch size."""
    grown = scale(trace, batchsize / RECORDED_IMAGES)
    parameter_bytes = trace.standing_backward_bytes
    return Problem(grown, link_bound_costs(grown), Standing(3 * parameter_bytes, 2 * parameter_bytes), budget_bytes,
                   MIN_BYTES)


def smallest_device(trace: Trace, batchsize: int, policy: str, largest_bytes: int) -> dict[str, Any]:
    """The least budget of a policy, and the device that the best of its budgets needs, as far as there is one."""
    problem = problem_of(trace, batchsize, 1)
    try:
        make_plan(POLICIES[policy], problem)
    except InfeasibleBudgetError as error:
        least_bytes = error.floor_bytes
    found: dict[str, Any] = {'least_budget_bytes': least_bytes}
    for budget_bytes in range(-(-least_bytes // STEP_BYTES) * STEP_BYTES, largest_bytes + 1, STEP_BYTES):
        device_bytes = device_of(replace(problem, budget_bytes=budget_bytes), policy)
        if device_bytes is not None and device_bytes < found.get('device_bytes', device_bytes + 1):
            found.update(device_bytes=device_bytes, budget_bytes=budget_bytes)
    return found


def device_of(problem: Problem, policy: str) -> int | None:
    """What two iterations under a policy's plan need in the pool, or None if the policy does not work here."""
    schedule = lay_out(problem, POLICIES[policy].decide(problem))
    if not schedule.fits(problem.budget_bytes):
        return None
    events = events_of(problem, schedule, simulate(problem, schedule))
    return smallest_capacity(events, BestFitPool, 2)


if __name__ == '__main__':
    main()
