"""Memory: the smallest wall behind which a network trains, out-of-core beside plain Chainer.

    python benchmarks/walls.py
    python benchmarks/walls.py --networks vgg16 --workspace 64MB --resolution 64MB

A wall is a limit on private memory (RLIMIT_DATA): more than that cannot even be asked for, so nothing is hidden by what
the system has not handed out yet. The limit is found by halving; each try is a training in a process of its own.
"""
from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from surroundings import add_networks, make_parser, positive, publish

# isort: split
from chainer_ooc.report.table import Column, Table, megabytes, plain, ratio
from models import ARCHITECTURES
from options import Options, amount
from probes import both_ways, measured, probe, smallest
from training_run import Outcome

COLUMNS = (
    Column('network', 'network'),
    Column('batchsize', 'batch', plain, right=True),
    Column('plain_bytes', 'plain Chainer', megabytes, right=True),
    Column('ooc_bytes', 'out-of-core', megabytes, right=True),
    Column('ratio', 'ratio', ratio, right=True),
)


def main() -> None:
    parser = make_parser(__doc__)
    add_networks(parser, ['resnet50', 'alexnet', 'googlenet', 'vgg16'])
    parser.add_argument('--iterations', type=positive, default=2, metavar='N', help='(%(default)s)')
    parser.add_argument('--resolution', type=amount, default=amount('32MB'), metavar='BYTES', help='(32MB)')
    arguments = parser.parse_args()
    rows = [measure(name, arguments) for name in arguments.networks]
    title = f'Smallest wall that works (to {arguments.resolution / 1e6:.0f} MB), policy {arguments.policy}'
    publish(Table(COLUMNS, rows, title), arguments)


def measure(network: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Finds the two walls of one network."""
    plain_options, ooc_options = both_ways(arguments, network, batchsize=arguments.batchsize)
    free = measured(f'{network} plain, no wall', plain_options)
    resident_bytes = max(sample.resident_bytes for sample in free.samples)  # no wall below this can work
    plain_bytes = smallest_wall(f'{network} plain', plain_options, resident_bytes, 5 * free.peak_bytes // 4, arguments)
    ooc_bytes = smallest_wall(f'{network} {arguments.policy}', ooc_options, 0, plain_bytes, arguments)
    return {'network': ARCHITECTURES[network].title, 'batchsize': plain_options.images_per_iteration,
            'plain_bytes': plain_bytes, 'ooc_bytes': ooc_bytes, 'ratio': ooc_bytes / plain_bytes}


def smallest_wall(name: str, options: Options, low: int, high: int, arguments: argparse.Namespace) -> int:
    """Finds the smallest wall, above `low` and, if that works, up to `high`."""
    def works(wall_bytes: int) -> bool:
        walled = dataclasses.replace(options, wall_bytes=wall_bytes)
        return probe(f'{name}, wall {wall_bytes / 1e6:,.0f} MB', walled).outcome is Outcome.FINISHED

    return smallest(works, low, high, arguments.resolution)


if __name__ == '__main__':
    main()
