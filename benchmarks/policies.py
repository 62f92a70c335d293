"""Time and memory: policies beside each other, at shares of the memory that a training takes in-core.

    python benchmarks/policies.py
    python benchmarks/policies.py --networks resnet50 --policies pooch auto swap-all --shares 0.5 0.4 --rounds 9

The share is of the peak that `keep` accounts for: parameters, gradients, momentum, feature maps and buffers. Each row
is a process that stays alive; they train in turns, an iteration that is not timed and one that is (`turns.py`). It is
ready when no better plan is looked for and its plan stays. A budget that is refused is raised to 1.02 times the floor
that the refusal names, and marked with a star. Losses are compared, iteration by iteration, with those of `keep`.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import statistics
from collections.abc import Mapping
from typing import Any

from surroundings import ARCHITECTURES, make_parser, positive, publish

# isort: split
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.report.table import Column, Table, megabytes, plain, ratio, seconds
from peers import ready, start
from turns import Worker, take_turns

COLUMNS = (
    Column('network', 'network'),
    Column('share', 'of in-core', plain, right=True),
    Column('policy', 'policy'),
    Column('budget', 'budget', plain, right=True),
    Column('accounted_bytes', 'peak', megabytes, right=True),
    Column('seconds', 's/iteration', seconds, right=True),
    Column('spread', 'lowest to highest', lambda value: f'{seconds(value[0])} to {seconds(value[1])}', right=True),
    Column('to_keep', 'to keep', ratio, right=True),
    Column('to_first', 'to the first', ratio, right=True),
    Column('swapped_out_bytes', 'out', megabytes, right=True),
    Column('swapped_in_bytes', 'in', megabytes, right=True),
    Column('verdicts', 'keep/swap/recompute', plain, right=True),
    Column('losses', 'losses', plain),
)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument('--networks', nargs='+', choices=list(ARCHITECTURES), metavar='NAME',
                        default=['resnet50', 'googlenet', 'alexnet'],
                        help=', '.join(ARCHITECTURES) + ' (resnet50 googlenet alexnet)')
    parser.add_argument('--policies', nargs='+', choices=list(POLICIES), default=['pooch', 'auto'], metavar='NAME',
                        help='beside keep (pooch auto)')
    parser.add_argument('--shares', nargs='+', type=float, default=[0.5, 0.35], metavar='X', help='(0.5 0.35)')
    parser.add_argument('--batchsize', type=positive, metavar='N', help="images per iteration (the network's own)")
    parser.add_argument('--crop', type=positive, default=224, metavar='PIXELS', help='side of an image (%(default)s)')
    parser.add_argument('--rounds', type=positive, default=5, metavar='N', help='timed turns of each (%(default)s)')
    parser.add_argument('--threads', type=positive, default=len(os.sched_getaffinity(0)), metavar='N',
                        help='(all cores)')
    parser.add_argument('--workspace', default='32MB', metavar='BYTES', help='or none (%(default)s)')
    parser.add_argument('--use-ideep', default='auto', choices=['auto', 'always', 'never'], help='(%(default)s)')
    parser.add_argument('--spill-dir', metavar='DIR', help='folder of the spill files (the temporary folder)')
    parser.add_argument('--patience', type=float, default=1800.0, metavar='SECONDS',
                        help='what getting ready, or a turn, may take (%(default)s)')
    arguments = parser.parse_args()
    rows = [row for network in arguments.networks for row in measure(network, arguments)]
    title = f'An iteration of momentum SGD on {arguments.threads} threads, {arguments.rounds} rounds'
    publish(Table(COLUMNS, rows, title), arguments)
    if any(row['refusals'] for row in rows):
        print('  * raised to 1.02 times what the smallest plan needs')


def measure(network: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one network: keep, and each policy at each share."""
    workers: dict[str, Worker] = {}
    with contextlib.ExitStack() as stack:
        keep = workers['keep'] = stack.enter_context(ready(start('keep', network, arguments)))
        for share in arguments.shares:
            for policy in arguments.policies:
                budget = int(share * keep.about['accounted_bytes'])
                workers[f'{policy} {share:g}'] = stack.enter_context(
                    ready(start(policy, network, arguments, budget=budget)))
        turns = take_turns(workers, arguments.rounds, lambda number, name, turn: print(
            f'{network} round {number}, {name}: {turn["seconds"]:.3f} s', flush=True))
        expected = losses_of(keep, turns['keep'])
        rows = [row_of('keep', None, keep, turns['keep'], turns['keep'], None)]
        for share in arguments.shares:
            first = turns[f'{arguments.policies[0]} {share:g}']
            for policy in arguments.policies:
                name = f'{policy} {share:g}'
                rows.append(row_of(policy, share, workers[name], turns[name], turns['keep'], first)
                            | {'losses': compared(losses_of(workers[name], turns[name]), expected)})
    return [{'network': ARCHITECTURES[network].title, **row} for row in rows]


def row_of(policy: str, share: float | None, worker: Worker, turns: list[dict[str, Any]],
           keep: list[dict[str, Any]], first: list[dict[str, Any]] | None) -> dict[str, Any]:
    """A row of the table of what a worker said, beside the turns of others in the same rounds."""
    about, times = worker.about, [turn['seconds'] for turn in turns]
    budget_bytes = about.get('budget_bytes')
    return {
        'policy': policy, 'share': share, 'accounted_bytes': about['accounted_bytes'], 'budget_bytes': budget_bytes,
        'budget': megabytes(budget_bytes) + '*' * bool(about['refusals']) if budget_bytes else None,
        'refusals': about['refusals'], 'verdicts': about['verdicts'], 'predicted_seconds': about['predicted_seconds'],
        'swapped_out_bytes': about['swapped_out_bytes'], 'swapped_in_bytes': about['swapped_in_bytes'],
        'seconds': statistics.median(times), 'spread': [min(times), max(times)], 'turns': turns,
        'to_keep': ratio_to(turns, keep), 'to_first': ratio_to(turns, first) if first else None}


def ratio_to(turns: list[dict[str, Any]], others: list[dict[str, Any]]) -> float:
    """The median of the ratios within rounds."""
    return statistics.median(turn['seconds'] / other['seconds'] for turn, other in zip(turns, others, strict=True))


def losses_of(worker: Worker, turns: list[dict[str, Any]]) -> dict[int, float]:
    """The losses that a worker has told of, by iteration."""
    first = worker.about['losses']
    return {**dict(enumerate(first)), **{len(first) + 2 * number + 1: turn['loss']
                                         for number, turn in enumerate(turns)}}


def compared(losses: Mapping[int, float], expected: Mapping[int, float]) -> str:
    """What a row says of the iterations that both have told of."""
    both = losses.keys() & expected.keys()
    differing = sum(losses[each] != expected[each] for each in both)
    return f'{differing} of {len(both)} differ' if differing else f'{len(both)} equal'


if __name__ == '__main__':
    main()
