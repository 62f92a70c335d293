"""Memory: the peak resident memory of a training, out-of-core beside plain Chainer.

    python benchmarks/peak.py
    python benchmarks/peak.py --networks resnet50 --budget 650MB --workspace 32MB --chart peak.png

Each training has a process of its own; its peak is the kernel's own high-water mark (VmHWM), libraries included. With
`--workspace` losses and parameters are held against a third training, under policy `keep` with the same workspace.
"""
from __future__ import annotations

import argparse
import dataclasses
import pathlib
from typing import Any

from surroundings import add_networks, make_parser, positive, publish

# isort: split
from chainer_ooc.report.table import Column, Table, megabytes, plain, seconds
from comparison_chart import draw_comparison
from comparison_table import comparison_row
from models import ARCHITECTURES
from probes import both_ways, measured

COLUMNS = (
    Column('name', 'network'),
    Column('batchsize', 'batch', plain, right=True),
    Column('plain_peak_bytes', 'plain', megabytes, right=True),
    Column('ooc_peak_bytes', 'out-of-core', megabytes, right=True),
    Column('ratio', 'ratio', lambda value: f'{value:.1%}'.replace('%', ' %'), right=True),
    Column('plain_seconds', 'plain s/iteration', seconds, right=True),
    Column('ooc_seconds', 'out-of-core s/iteration', seconds, right=True),
    Column('losses_equal', 'losses', lambda equal: 'equal' if equal else 'DIFFERENT'),
    Column('parameters_equal', 'parameters', lambda equal: 'equal' if equal else 'DIFFERENT'),
)


def main() -> None:
    parser = make_parser(__doc__)
    add_networks(parser, ['resnet50', 'alexnet', 'googlenet', 'vgg16'])
    parser.add_argument('--iterations', type=positive, default=3, metavar='N', help='(%(default)s)')
    parser.add_argument('--chart', type=pathlib.Path, metavar='FILE', help='draw peaks and times (.png, .svg)')
    arguments = parser.parse_args()
    rows = [measure(name, arguments) for name in arguments.networks]
    publish(Table(COLUMNS, rows, f'Peak resident memory, policy {arguments.policy}'), arguments)
    if arguments.chart:
        draw_comparison(rows, arguments.chart, f'Training with policy {arguments.policy} and in plain Chainer')


def measure(network: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains one network both ways."""
    plain_options, ooc_options = both_ways(arguments, network, batchsize=arguments.batchsize)
    reference = measured(f'{network} plain', plain_options)
    run = measured(f'{network} {arguments.policy}', ooc_options)
    keep = dataclasses.replace(ooc_options, policy='keep', budget=None)
    same = measured(f'{network} keep', keep) if arguments.workspace else reference
    compared = comparison_row(run, reference, same)
    return {
        'name': ARCHITECTURES[network].title, 'batchsize': plain_options.images_per_iteration,
        'plain_peak_bytes': reference.peak_bytes, 'ooc_peak_bytes': run.peak_bytes,
        'ratio': run.peak_bytes / reference.peak_bytes,
        'plain_seconds': reference.median_seconds, 'ooc_seconds': run.median_seconds,
        **{key: compared[key] for key in ('losses_equal', 'parameters_equal', 'swapped_out_bytes', 'swapped_in_bytes')},
    }


if __name__ == '__main__':
    main()
