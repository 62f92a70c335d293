"""Time: what it costs to record an iteration.

    python benchmarks/recording.py

An iteration is recorded once per new graph, and its plan is made from that. Here plans are forgotten before each
out-of-core iteration, so that every one is recorded. The policy is `keep`, which moves nothing: what is left is the
recording.
"""
from __future__ import annotations

import argparse
from typing import Any

from surroundings import add_networks, config_entries, make_parser, positive, publish

# isort: split
import chainer_ooc
from chainer_ooc.report.table import Column, Table, percent, plain, seconds
from iterations import Training
from models import ARCHITECTURES
from pairs import in_turns

COLUMNS = (
    Column('network', 'network'),
    Column('batchsize', 'batch', plain, right=True),
    Column('plain_seconds', 'plain', seconds, right=True),
    Column('recorded_seconds', 'recorded', seconds, right=True),
    Column('overhead', 'overhead', percent, right=True),
    Column('middle_half', 'middle half', lambda value: f'{percent(value[0])} to {percent(value[1])}', right=True),
    Column('losses_equal', 'losses', lambda equal: 'equal' if equal else 'DIFFERENT'),
)


def main() -> None:
    parser = make_parser(__doc__)
    add_networks(parser, ['resnet50', 'googlenet'])
    parser.set_defaults(policy='keep')
    parser.add_argument('--pairs', type=positive, default=7, metavar='N', help='timed pairs (%(default)s)')
    arguments = parser.parse_args()
    rows = [measure(name, arguments) for name in arguments.networks]
    title = f'A recorded iteration beside one of plain Chainer, {arguments.pairs} pairs'
    publish(Table(COLUMNS, rows, title), arguments)


def measure(network: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Takes turns between plain and recorded iterations of one network."""
    reference = Training(network, arguments.batchsize, arguments.crop, {})
    recorded = Training(network, arguments.batchsize, arguments.crop, config_entries(arguments))

    def iterate_recorded() -> float:
        chainer_ooc.reset()
        seconds = recorded.iterate()
        stats = chainer_ooc.stats()
        if stats is None or stats.phase != 'profile':
            raise RuntimeError(f'the iteration was not recorded ({stats}); give a policy')
        return seconds

    in_turns(reference.iterate, iterate_recorded, 1)
    times = in_turns(reference.iterate, iterate_recorded, arguments.pairs, lambda number, first, second: print(
        f'{network} {number}: plain {first:.3f} s, recorded {second:.3f} s', flush=True))
    return {
        'network': ARCHITECTURES[network].title, 'batchsize': recorded.batchsize,
        'plain_seconds': sorted(times.first)[len(times.first) // 2],
        'recorded_seconds': sorted(times.second)[len(times.second) // 2],
        'overhead': times.ratio - 1, 'middle_half': [bound - 1 for bound in times.middle_half],
        'losses_equal': reference.losses == recorded.losses,
        'all_plain_seconds': times.first, 'all_recorded_seconds': times.second,
    }


if __name__ == '__main__':
    main()
