"""Time: how long planning takes, for networks of growing depth, and for one that is unrolled over time.

    python benchmarks/planning.py
    python benchmarks/planning.py --units 16 50 --json planning.json --plot planning.png

Each network is recorded on this machine, at a batch of two small images. Its trace is then grown as if the images were
so large, or so many, that all feature maps take `--times` the budget, and planned for a machine whose link is the
bottleneck, as PCIe is for a GPU: all computations together take half as long as all maps that are kept for backward
take one way over the link, and each its share by the bytes that it touches. What a computation allocates beside its
maps is taken to be their gradients: recorded scratch memory and gradients of parameters do not grow with the images.

Planning uses one core. Its times are processor time, which others on the machine do not lengthen; the figures of
`--json` have the elapsed time too. The longest wait is elapsed time: of all policies, for how long a training waits for
its first plan, before a better one is looked for beside it (`execute/graphs/planner.py`), or until it is refused.
"""
from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import pathlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from surroundings import make_parser, positive, publish

# isort: split
import chainer

import chainer_ooc
from bound_networks import LSTM
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.classify.search import evaluate
from chainer_ooc.cost.costs import Costs
from chainer_ooc.errors import InfeasibleBudgetError, OocError
from chainer_ooc.execute.graphs.planner import Planner
from chainer_ooc.plans.making import make_plan
from chainer_ooc.problem import Problem, Standing
from chainer_ooc.report.table import Column, Table, plain, ratio, seconds
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import run
from chainer_ooc.trace import Trace
from chainer_ooc.trace.scaling import scale
from models.resnet import ResNet, units_of
from models.resnext3d import ResNeXt3D
from options import amount
from planning_plot import draw_planning

POLICY_NAMES = ('swap-all', 'swap-opt', 'pooch', 'auto')
LINK_BYTES_PER_SECOND = 12e9
MIN_BYTES = 1 << 20
NOTHING = Standing(0, 0)
COLUMNS = (
    Column('network', 'network'),
    Column('calls', 'calls', plain, right=True),
    Column('maps', 'maps that can leave', plain, right=True),
    Column('simulation_seconds', 'one simulation', seconds, right=True),
    Column('swap-opt_seconds', 'swap-opt', seconds, right=True),
    Column('pooch_seconds', 'pooch', seconds, right=True),
    Column('auto_seconds', 'auto', seconds, right=True),
    Column('swap-opt_speedup', 'swap-all / swap-opt', ratio, right=True),
    Column('pooch_speedup', 'swap-all / pooch', ratio, right=True),
    Column('auto_speedup', 'swap-all / auto', ratio, right=True),
    Column('longest_wait_seconds', 'longest wait', seconds, right=True),
)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument('--units', type=int, nargs='*', default=[16, 33, 50, 100, 200, 400, 1000], metavar='N',
                        help='residual units of the ResNets, 16 or more (%(default)s)')
    parser.add_argument('--width', type=positive, default=8, metavar='N',
                        help='channels behind the first convolution; 64 is the published width (%(default)s)')
    parser.add_argument('--insize', type=positive, default=64, metavar='PIXELS', help='(%(default)s)')
    parser.add_argument('--budget', type=amount, default=amount('14GB'), metavar='BYTES', help='(14GB)')
    parser.add_argument('--times', type=float, default=4.0, metavar='X', help='peak of policy keep, in budgets (4)')
    parser.add_argument('--limit', type=float, default=600.0, metavar='SECONDS', help='of each search (%(default)s)')
    parser.add_argument('--steps', type=int, nargs='*', default=[100], metavar='N',
                        help='steps of the LSTM of two layers (%(default)s)')
    parser.add_argument('--no-3d', action='store_true', help='leave ResNeXt101 (3D) out')
    parser.add_argument('--plot', type=pathlib.Path, metavar='FILE', help='draw planning time over calls there')
    arguments = parser.parse_args()
    rows = [measure(name, build, shape, arguments) for name, build, shape in networks(arguments)]
    title = f'Planning time; policy keep would take {arguments.times:g} times the budget'
    publish(Table(COLUMNS, rows, title), arguments)
    if arguments.plot:
        draw_planning(rows, arguments.plot, 'Planning time of one graph')
        print(f'  plot: {arguments.plot}')


def networks(arguments: argparse.Namespace) -> list[tuple[str, Callable[[], chainer.Chain], tuple[int, ...]]]:
    """Name, maker and shape of one input of each network."""
    image = (3, arguments.insize, arguments.insize)
    rows: list[tuple[str, Callable[[], chainer.Chain], tuple[int, ...]]] = [
        (f'ResNet, {count} units', functools.partial(ResNet, units_of(count), width=arguments.width), image)
        for count in arguments.units]
    if not arguments.no_3d:
        rows.append(('ResNeXt101 (3D)', lambda: ResNeXt3D(width=max(16, arguments.width)), (3, 16, *image[1:])))
    rows += [(f'LSTM, {count} steps', LSTM, (count, 128)) for count in arguments.steps]
    return rows


def measure(name: str, build: Callable[[], chainer.Chain], shape: tuple[int, ...],
            arguments: argparse.Namespace) -> dict[str, Any]:
    """Records one network and times its plans."""
    began = time.perf_counter()
    trace = record(build(), shape)
    recording_seconds = time.perf_counter() - began
    print(f'{name}: {len(trace.calls)} calls recorded in {recording_seconds:.1f} s', flush=True)
    problem = problem_of(trace, arguments.budget, arguments.times, arguments.limit)
    row: dict[str, Any] = {'network': name, 'calls': len(trace.calls), 'recording_seconds': recording_seconds}
    for policy in POLICY_NAMES:
        began, elapsed = time.process_time(), time.perf_counter()
        plan = make_plan(POLICIES[policy], problem)
        row[f'{policy}_seconds'] = time.process_time() - began
        row[f'{policy}_elapsed_seconds'] = time.perf_counter() - elapsed
        row[f'{policy}_plan_seconds'], row[f'{policy}_plan_peak_bytes'] = plan.seconds, plan.peak_bytes
        row[f'{policy}_speedup'] = row['swap-all_plan_seconds'] / plan.seconds
        row[f'{policy}_verdicts'] = {verdict.value: plan.count(verdict) for verdict in set(plan.verdicts)}
        print(f"  {policy}: planned in {row[f'{policy}_seconds']:.3f} s, iteration {plan.seconds:.3f} s", flush=True)
    row['waits_seconds'] = {name: seconds_of_waiting(name, problem) for name in POLICIES}
    row['longest_wait_seconds'] = max(row['waits_seconds'].values())
    row['maps'] = row['swap-all_verdicts']['swap']
    row['simulation_seconds'] = seconds_of_a_simulation(problem)
    return row


def seconds_of_waiting(policy: str, problem: Problem) -> float:
    """For so long a training waits for its first plan, or to be refused."""
    planner = Planner()
    began = time.perf_counter()
    try:
        with contextlib.suppress(InfeasibleBudgetError):
            planner.plan(POLICIES[policy], problem)
        return time.perf_counter() - began
    finally:
        planner.close()


def seconds_of_a_simulation(problem: Problem) -> float:
    """The fastest of five: laying out and simulating what swap-all decides."""
    decision, times = POLICIES['swap-all'].decide(problem), []
    for _ in range(5):
        began = time.process_time()
        assert evaluate(problem, decision).seconds > 0
        times.append(time.process_time() - began)
    return min(times)


def record(chain: chainer.Chain, shape: tuple[int, ...], batch: int = 2) -> Trace:
    """The trace of one training iteration on so many random inputs."""
    images = np.random.default_rng(0).standard_normal((batch, *shape), dtype=np.float32)
    try:
        with chainer.using_config('ooc', 'keep'):
            for _ in range(chainer.config.ooc_profile_iterations + 1):  # the trace is there when the next one begins
                loss = chain(images, np.zeros(batch, np.int32))
                chain.cleargrads()
                loss.backward()
                del loss
        trace = chainer_ooc.trace()
    finally:
        chainer_ooc.reset()
    if trace is None:
        raise OocError('the iteration left no trace')
    del chain
    gc.collect()
    return trace


def problem_of(trace: Trace, budget_bytes: int, times: float, limit_seconds: float) -> Problem:
    """The iteration grown to `times` the budget, on a machine with a slow link."""
    trace = without_scratch(trace)
    keep = POLICIES['keep'].decide
    peak_bytes = 0
    while abs(peak_bytes / (times * budget_bytes) - 1) > 1e-3:  # twice: small maps stay small maps at first
        trace = scale(trace, max(1.0, times * budget_bytes / max(1, peak_bytes or _peak_bytes(trace, keep))))
        peak_bytes = _peak_bytes(trace, keep)
    return Problem(trace, link_bound_costs(trace), NOTHING, budget_bytes, MIN_BYTES, limit_seconds)


def _peak_bytes(trace: Trace, keep: Callable[[Problem], Any]) -> int:
    problem = Problem(trace, Costs((0.0,) * trace.positions, 0.0, 0.0), NOTHING, 1 << 62, MIN_BYTES)
    return run(problem, lay_out(problem, keep(problem)))[1]


def without_scratch(trace: Trace) -> Trace:
    """The same iteration, in which computations allocate their outputs in forward, and gradients in backward."""
    def bytes_of(ids: tuple[int, ...]) -> int:
        return sum(trace.maps[each].nbytes for each in set(ids) - {-1})

    calls = tuple(replace(each, peak_bytes=bytes_of((*each.outputs, *each.hidden)), other_bytes=0)
                  for each in trace.calls)
    steps = []
    for each in trace.steps:
        call = trace.calls[each.call] if each.call >= 0 else None
        nbytes = bytes_of((*call.inputs, *call.outputs)) if call else 0
        steps.append(replace(each, peak_bytes=nbytes, other_bytes=0))
    return replace(trace, calls=calls, steps=tuple(steps))


def link_bound_costs(trace: Trace) -> Costs:
    """Times under which a link of 12 GB/s is the bottleneck: it takes four times as long as all computations."""
    touched = [sum(trace.maps[each].nbytes for each in {*call.inputs, *call.outputs, *call.hidden} - {-1})
               for call in trace.calls]
    touched += [sum(trace.maps[each].nbytes for each in step.maps) + (touched[step.call] if step.call >= 0 else 0)
                for step in trace.steps]
    retained_bytes = sum(each.nbytes for each in trace.maps if each.retained)
    unit = retained_bytes / (2 * LINK_BYTES_PER_SECOND) / sum(touched)
    return Costs(tuple(unit * each for each in touched), LINK_BYTES_PER_SECOND, LINK_BYTES_PER_SECOND)


if __name__ == '__main__':
    main()
