"""Prediction: the step time and the peak that plans expect, beside those that are measured.

    python benchmarks/prediction.py --workspace 32MB
    python benchmarks/prediction.py --networks resnet50 --batchsize 8 --workspace 32MB

Each network is recorded once, in-core. Then, at three budgets from the smallest that works up to in-core's own peak, it
trains under each policy. The first prediction is made from what was measured before, under other plans; where it is off
by more than `PART_FACTOR` (`execute/times.py`), the plan is made again, which `settle` iterations give it time for. The
last prediction is held against the iterations after those.
"""
from __future__ import annotations

import argparse
import statistics
from typing import Any

from surroundings import add_networks, config_entries, make_parser, positive, publish

# isort: split
from iterations import Training

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.report.table import Column, Table, megabytes, percent, plain, seconds

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
    parser.add_argument('--settle', type=positive, default=3, metavar='N', help='iterations before (%(default)s)')
    parser.add_argument('--iterations', type=positive, default=5, metavar='N', help='measured ones (%(default)s)')
    arguments = parser.parse_args()
    rows = [row for name in arguments.networks for row in measure(name, arguments)]
    publish(Table(COLUMNS, rows, summary(rows)), arguments)


def measure(network: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Trains one network under each policy at three budgets."""
    chainer_ooc.reset()
    entries = {**config_entries(arguments), 'ooc': 'keep'}
    entries.pop('ooc_budget', None)
    training = Training(network, arguments.batchsize, arguments.crop, entries)
    keep = run(training, entries, arguments)
    floor_bytes = floor(training, entries)
    rows = []
    for budget_bytes in (keep['peak_bytes'], (keep['peak_bytes'] + floor_bytes) // 2, int(1.03 * floor_bytes)):
        for policy in arguments.policies:
            found = run(training, {**entries, 'ooc': policy, 'ooc_budget': budget_bytes}, arguments)
            rows.append({'network': network, 'policy': policy, 'budget_bytes': budget_bytes, **found,
                         'overhead': found['seconds'] / keep['seconds'] - 1})
            print('{network} {policy}: {seconds:.3f} s, predicted {predicted_seconds:.3f} s'.format(**rows[-1]),
                  flush=True)
    return rows


def floor(training: Training, entries: dict[str, Any]) -> int:
    """The smallest budget for which swapping everything has a plan."""
    try:
        training.entries = {**entries, 'ooc': 'swap-all', 'ooc_budget': 1}
        training.iterate()
    except InfeasibleBudgetError as error:
        return error.floor_bytes
    raise AssertionError('a budget of one byte was enough')


def run(training: Training, entries: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Some iterations under a policy; medians, and what the last plan had expected."""
    training.entries = entries
    found, predicted = [], []
    for _ in range(arguments.settle + arguments.iterations):
        training.iterate()
        found.append(chainer_ooc.stats())
        predicted.append(found[-1].predicted_seconds)
    measured = found[-arguments.iterations:]
    median_seconds = statistics.median(each.seconds for each in measured)
    first = next(each for each in predicted if each is not None)
    last = measured[-1]
    peak_bytes = max(each.peak_bytes for each in measured)
    return {
        'seconds': median_seconds, 'predicted_seconds': last.predicted_seconds,
        'seconds_off': last.predicted_seconds / median_seconds - 1, 'first_off': first / median_seconds - 1,
        'peak_bytes': peak_bytes, 'predicted_peak_bytes': last.predicted_peak_bytes,
        'peak_off': last.predicted_peak_bytes / peak_bytes - 1, 'verdicts': f'{last.keep}/{last.swap}/{last.recompute}',
        'plans': len(set(predicted) - {None}), 'all_seconds': [each.seconds for each in found],
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """One line about all rows."""
    off = {key: [abs(row[key]) for row in rows] for key in ('seconds_off', 'first_off', 'peak_off')}
    return 'Predicted beside measured; off by, median and worst: time {}, first prediction {}, peak {}'.format(*(
        f'{percent(statistics.median(each))} and {percent(max(each))}' for each in off.values()))


if __name__ == '__main__':
    main()
