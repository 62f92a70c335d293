"""Time: what an out-of-core iteration costs beside one of plain Chainer.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --networks resnet50 --workspace 64MB --budget 700MB

Two trainings with the same seeds take turns in one process, one under `ooc=None` and one under a policy. Their losses
must be equal to the last bit. With `--workspace` convolutions are split, which changes the order of sums: the losses
are then held against some iterations of a third training, under policy `keep`, which splits them likewise.
"""
from __future__ import annotations

import argparse
from typing import Any

from surroundings import add_networks, config_entries, make_parser, positive, publish

# isort: split
from iterations import Training
from pairs import in_turns

import chainer_ooc
from chainer_ooc.report.table import Column, Table, megabytes, percent, plain, seconds
from models import ARCHITECTURES

COLUMNS = (
    Column('network', 'network'),
    Column('batchsize', 'batch', plain, right=True),
    Column('plain_seconds', 'plain', seconds, right=True),
    Column('ooc_seconds', 'out-of-core', seconds, right=True),
    Column('overhead', 'overhead', percent, right=True),
    Column('middle_half', 'middle half', lambda value: f'{percent(value[0])} to {percent(value[1])}', right=True),
    Column('swapped_out_bytes', 'out/iteration', megabytes, right=True),
    Column('swapped_in_bytes', 'in/iteration', megabytes, right=True),
    Column('faults', 'faults', plain, right=True),
    Column('losses_equal', 'losses', lambda equal: 'equal' if equal else 'DIFFERENT'),
)

CHECKED = 3  # iterations of the third training that a workspace needs


def main() -> None:
    parser = make_parser(__doc__)
    add_networks(parser, ['resnet50', 'alexnet', 'googlenet'])
    parser.add_argument('--pairs', type=positive, default=7, metavar='N', help='timed pairs (%(default)s)')
    parser.add_argument('--warm-up', type=positive, default=2, metavar='N',
                        help='pairs before, in which graphs are profiled and planned (%(default)s)')
    arguments = parser.parse_args()
    rows = [measure(name, arguments) for name in arguments.networks]
    title = f'An iteration with policy {arguments.policy} beside one of plain Chainer, {arguments.pairs} pairs'
    publish(Table(COLUMNS, rows, title), arguments)


def measure(network: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Takes turns between the two trainings of one network."""
    entries = config_entries(arguments)
    reference = Training(network, arguments.batchsize, arguments.crop, {})
    ooc = Training(network, arguments.batchsize, arguments.crop, entries)
    in_turns(reference.iterate, ooc.iterate, arguments.warm_up, lambda number, *pair: show(network, 'warm-up', pair))
    times = in_turns(reference.iterate, ooc.iterate, arguments.pairs, lambda number, *pair: show(network, number, pair))
    stats = chainer_ooc.stats()
    moved = {} if stats is None else {
        'swapped_out_bytes': stats.swapped_out_bytes, 'swapped_in_bytes': stats.swapped_in_bytes,
        'faults': stats.faults, 'phase': stats.phase}
    return {
        'network': ARCHITECTURES[network].title, 'batchsize': ooc.batchsize,
        'plain_seconds': sorted(times.first)[len(times.first) // 2],
        'ooc_seconds': sorted(times.second)[len(times.second) // 2],
        'overhead': times.ratio - 1,
        'middle_half': [bound - 1 for bound in times.middle_half],
        'losses_equal': same_losses(network, reference, ooc, arguments), 'losses': ooc.losses,
        'all_plain_seconds': times.first, 'all_ooc_seconds': times.second, **moved,
    }


def same_losses(network: str, reference: Training, ooc: Training, arguments: argparse.Namespace) -> bool:
    """Whether the out-of-core training gave the losses that it must give, to the last bit."""
    if arguments.workspace is None:
        return reference.losses == ooc.losses
    keep = Training(network, arguments.batchsize, arguments.crop, {**config_entries(arguments), 'ooc': 'keep',
                                                                   'ooc_budget': None})
    for _ in range(CHECKED):
        keep.iterate()
    return keep.losses == ooc.losses[:CHECKED]


def show(network: str, number: int | str, pair: tuple[float, float]) -> None:
    """Prints one pair as it comes in."""
    print(f'{network} {number}: plain {pair[0]:.3f} s, out-of-core {pair[1]:.3f} s', flush=True)


if __name__ == '__main__':
    main()
