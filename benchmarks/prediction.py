r"""Prediction: the step time and the peak that plans expect, beside those that are measured.

    python benchmarks/prediction.py --workspace 32MB
    python benchmarks/prediction.py --networks resnet50 googlenet --batchsize 8 --workspace 32MB
    python benchmarks/prediction.py --networks resnet50 --batchsize 32 --workspace 32MB --shares 0.5 0.35 \
        --policies swap-all superneurons pooch

Each network is recorded once, in-core. Then, at three budgets from the smallest that works up to in-core's own peak, or
at budgets that are shares of that peak, it trains under each policy, in turns with `keep`. The first prediction is made
from what was measured before, under other plans; where it is off by more than `PART_FACTOR` of
`execute/graphs/times.py`, the plan is made again, which `settle` pairs give it time for. Each pair after those is held
against what its plans had expected, in two ways: the policy's time, and its time beside keep's, which a machine that is
faster in one minute than in the next leaves alone. Each turn is two iterations, of which the second is timed
(`iterations.py` says why).
"""
from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

from surroundings import add_networks, config_entries, make_parser, positive, publish

# isort: split
import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.report.table import Column, Table, megabytes, percent, plain, seconds
from iterations import Training

POLICIES = ('swap-all-naive', 'swap-all', 'swap-opt', 'pooch')

COLUMNS = (
    Column('network', 'network'),
    Column('budget_bytes', 'budget', megabytes, right=True),
    Column('policy', 'policy'),
    Column('verdicts', 'keep/swap/recompute', right=True),
    Column('seconds', 'measured', seconds, right=True),
    Column('overhead', 'beside keep', percent, right=True),
    Column('predicted_seconds', 'predicted', seconds, right=True),
    Column('seconds_off', 'off by', percent, right=True),
    Column('predicted_overhead', 'predicted beside keep', percent, right=True),
    Column('beside_off', 'off by', percent, right=True),
    Column('first_off', 'first prediction', percent, right=True),
    Column('peak_bytes', 'peak', megabytes, right=True),
    Column('predicted_peak_bytes', 'predicted', megabytes, right=True),
    Column('peak_off', 'off by', percent, right=True),
    Column('plans', 'plans', plain, right=True),
)


def main() -> None:
    parser = make_parser(__doc__)
    add_networks(parser, ['resnet50', 'alexnet', 'googlenet'])
    parser.add_argument('--policies', nargs='+', default=list(POLICIES), metavar='NAME', help=' '.join(POLICIES))
    parser.add_argument('--settle', type=positive, default=2, metavar='N', help='pairs before (%(default)s)')
    parser.add_argument('--iterations', type=positive, default=4, metavar='N', help='measured pairs (%(default)s)')
    parser.add_argument('--shares', nargs='+', type=float, default=[], metavar='SHARE',
                        help="budgets as shares of in-core's peak")
    arguments = parser.parse_args()
    rows = [row for name in arguments.networks for row in measure(name, arguments)]
    publish(Table(COLUMNS, rows, summary(rows)), arguments)


def measure(network: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Trains one network under each policy at three budgets."""
    chainer_ooc.reset()
    keep = {**config_entries(arguments), 'ooc': 'keep'}
    keep.pop('ooc_budget', None)
    training = Training(network, arguments.batchsize, arguments.crop, keep)
    in_core_bytes = max(turn(training, keep).peak_bytes for _ in range(2))
    floor_bytes = floor(training, keep)
    budgets = [int(share * in_core_bytes) for share in arguments.shares] or [
        in_core_bytes, (in_core_bytes + floor_bytes) // 2, int(1.03 * floor_bytes)]
    rows = []
    for budget_bytes in budgets:
        for policy in arguments.policies:
            entries = {**keep, 'ooc': policy, 'ooc_budget': budget_bytes}
            try:
                found = run(training, keep, entries, arguments)
            except InfeasibleBudgetError as error:
                found = {'verdicts': f'refused, needs {megabytes(error.floor_bytes)}'}
            rows.append({'network': network, 'batchsize': training.batchsize, 'in_core_bytes': in_core_bytes,
                         'policy': policy, 'budget_bytes': budget_bytes, **found})
            print(network, policy, found['verdicts'], found.get('seconds'), flush=True)
    return rows


def turn(training: Training, entries: dict[str, Any]) -> chainer_ooc.IterationStats:
    """Two iterations, and what is known of the second."""
    training.entries = entries
    training.iterate_twice()
    return chainer_ooc.stats()


def floor(training: Training, entries: dict[str, Any]) -> int:
    """The smallest budget for which swapping everything has a plan."""
    try:
        training.entries = {**entries, 'ooc': 'swap-all', 'ooc_budget': 1}
        training.iterate()
    except InfeasibleBudgetError as error:
        return error.floor_bytes
    raise AssertionError('a budget of one byte was enough')


def run(training: Training, keep: dict[str, Any], entries: dict[str, Any],
        arguments: argparse.Namespace) -> dict[str, Any]:
    """Iterations under a policy in turns with `keep`, and what their plans had expected: medians over the pairs."""
    pairs = [(turn(training, keep), turn(training, entries))
             for _ in range(arguments.settle + arguments.iterations)]
    first = next(policy.predicted_seconds / policy.seconds for _, policy in pairs if policy.predicted_seconds)
    measured = pairs[-arguments.iterations:]
    last = measured[-1][1]
    peak_bytes = max(policy.peak_bytes for _, policy in measured)

    def median(value: Callable[[Any, Any], float]) -> float:
        return statistics.median(value(*pair) for pair in measured)

    return {
        'seconds': median(lambda keep, policy: policy.seconds),
        'overhead': median(lambda keep, policy: policy.seconds / keep.seconds) - 1,
        'predicted_seconds': median(lambda keep, policy: policy.predicted_seconds),
        'seconds_off': median(lambda keep, policy: policy.predicted_seconds / policy.seconds) - 1,
        'predicted_overhead': median(lambda keep, policy: policy.predicted_seconds / keep.predicted_seconds) - 1,
        'beside_off': median(lambda keep, policy: (
            policy.predicted_seconds / keep.predicted_seconds * keep.seconds / policy.seconds)) - 1,
        'first_off': first - 1, 'peak_bytes': peak_bytes, 'predicted_peak_bytes': last.predicted_peak_bytes,
        'peak_off': last.predicted_peak_bytes / peak_bytes - 1, 'verdicts': f'{last.keep}/{last.swap}/{last.recompute}',
        'plans': len({policy.predicted_seconds for _, policy in pairs} - {None}),
        'all_keep_seconds': [keep.seconds for keep, _ in pairs],
        'all_seconds': [policy.seconds for _, policy in pairs],
        'all_predicted_seconds': [policy.predicted_seconds for _, policy in pairs],
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """One line about all rows."""
    off = {key: [abs(row[key]) for row in rows if key in row]
           for key in ('seconds_off', 'beside_off', 'first_off', 'peak_off')}
    if not any(off.values()):
        return 'Every budget was refused'
    return ('Predicted beside measured; off by, median and worst: time {}, beside keep {}, first prediction {}, '
            'peak {}').format(*(
                f'{percent(statistics.median(each))} and {percent(max(each))}' for each in off.values()))


if __name__ == '__main__':
    main()
