"""Time: what an out-of-core iteration costs beside one of plain Chainer.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --networks resnet50 --workspace 64MB --reference keep

Two trainings with the same seeds take turns in one process, one under `ooc=None` and one under a policy. Their losses
must be equal to the last bit. With `--workspace` convolutions are split, which changes the order of sums: the
reference must then be `keep`, which splits them likewise.
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
    Column('reference_seconds', 'reference', seconds, right=True),
    Column('ooc_seconds', 'out-of-core', seconds, right=True),
    Column('overhead', 'overhead', percent, right=True),
    Column('middle_half', 'middle half', lambda value: f'{percent(value[0])} to {percent(value[1])}', right=True),
    Column('swapped_out_bytes', 'out/iteration', megabytes, right=True),
    Column('swapped_in_bytes', 'in/iteration', megabytes, right=True),
    Column('faults', 'faults', plain, right=True),
    Column('losses_equal', 'losses', lambda equal: 'equal' if equal else 'DIFFERENT'),
)


def main() -> None:
    parser = make_parser(__doc__)
    add_networks(parser, ['resnet50', 'alexnet', 'googlenet'])
    parser.add_argument('--pairs', type=positive, default=7, metavar='N', help='timed pairs (%(default)s)')
    parser.add_argument('--warm-up', type=positive, default=2, metavar='N',
                        help='pairs before, in which graphs are profiled and planned (%(default)s)')
    parser.add_argument('--reference', metavar='NAME', help='policy of the other training (plain Chainer)')
    arguments = parser.parse_args()
    rows = [measure(name, arguments) for name in arguments.networks]
    reference = arguments.reference or 'plain Chainer'
    title = f'An iteration with policy {arguments.policy} beside {reference}, {arguments.pairs} pairs'
    publish(Table(COLUMNS, rows, title), arguments)


def measure(network: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Takes turns between the two trainings of one network."""
    entries = config_entries(arguments)
    other = {**entries, 'ooc': arguments.reference} if arguments.reference else {}
    reference = Training(network, arguments.batchsize, arguments.crop, other)
    ooc = Training(network, arguments.batchsize, arguments.crop, entries)
    in_turns(reference.iterate, ooc.iterate, arguments.warm_up, lambda number, *pair: show(network, 'warm-up', pair))
    times = in_turns(reference.iterate, ooc.iterate, arguments.pairs, lambda number, *pair: show(network, number, pair))
    ooc.iterate()
    stats = chainer_ooc.stats()
    moved = {} if stats is None else {
        'swapped_out_bytes': stats.swapped_out_bytes, 'swapped_in_bytes': stats.swapped_in_bytes,
        'faults': stats.faults, 'phase': stats.phase}
    return {
        'network': ARCHITECTURES[network].title, 'batchsize': ooc.batchsize,
        'reference_seconds': sorted(times.first)[len(times.first) // 2],
        'ooc_seconds': sorted(times.second)[len(times.second) // 2],
        'overhead': times.ratio - 1,
        'middle_half': [bound - 1 for bound in times.middle_half],
        'losses_equal': reference.losses == ooc.losses[:-1], 'losses': reference.losses,
        'all_reference_seconds': times.first, 'all_ooc_seconds': times.second, **moved,
    }


def show(network: str, number: int | str, pair: tuple[float, float]) -> None:
    """Prints one pair as it comes in."""
    print(f'{network} {number}: reference {pair[0]:.3f} s, out-of-core {pair[1]:.3f} s', flush=True)


if __name__ == '__main__':
    main()
