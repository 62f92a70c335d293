"""Memory: the largest batch of ResNet50 behind a wall, out-of-core beside plain Chainer.

python benchmarks/batch.py
python benchmarks/batch.py --wall 1GB --workspace 64MB
"""
from __future__ import annotations

import argparse
import dataclasses

from surroundings import ARCHITECTURES, add_policy, make_parser, positive, publish

# isort: split
from chainer_ooc.report.table import Column, Table, megabytes, plain, ratio
from options import Options, amount
from probes import both_ways, probe, smallest
from training_run import Outcome

COLUMNS = (
    Column('network', 'network'),
    Column('wall_bytes', 'wall', megabytes, right=True),
    Column('plain_batchsize', 'plain Chainer', plain, right=True),
    Column('ooc_batchsize', 'out-of-core', plain, right=True),
    Column('ratio', 'ratio', ratio, right=True),
)


def main() -> None:
    parser = make_parser(__doc__)
    add_policy(parser)
    parser.add_argument('--network', choices=sorted(ARCHITECTURES), default='resnet50', help='(%(default)s)')
    parser.add_argument('--wall', type=amount, default=amount('2GB'), metavar='BYTES', help='(2GB)')
    parser.add_argument('--crop', type=positive, default=224, metavar='PIXELS', help='side of an image (%(default)s)')
    parser.add_argument('--iterations', type=positive, default=2, metavar='N', help='(%(default)s)')
    parser.add_argument('--step', type=positive, default=2, metavar='N', help='between two batch sizes (%(default)s)')
    arguments = parser.parse_args()
    both = both_ways(arguments, arguments.network, wall_bytes=arguments.wall)
    sizes = [largest_batch(kind, options, arguments)
             for kind, options in zip(('plain', arguments.policy), both, strict=True)]
    row = {'network': ARCHITECTURES[arguments.network].title, 'wall_bytes': arguments.wall,
           'plain_batchsize': sizes[0], 'ooc_batchsize': sizes[1],
           'ratio': sizes[1] / sizes[0] if sizes[0] else None}
    title = f'Largest batch (in steps of {arguments.step}), policy {arguments.policy}'
    publish(Table(COLUMNS, [row], title), arguments)


def largest_batch(kind: str, options: Options, arguments: argparse.Namespace) -> int:
    """Finds the largest batch that trains, or 0."""
    def fails(batchsize: int) -> bool:
        sized = dataclasses.replace(options, batchsize=batchsize)
        return probe(f'{kind}, batch {batchsize}', sized).outcome is not Outcome.FINISHED

    return smallest(fails, 0, 8, arguments.step) - arguments.step


if __name__ == '__main__':
    main()
