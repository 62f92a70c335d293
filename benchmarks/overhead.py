"""Time: what an out-of-core iteration costs beside one in-core.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --networks resnet50 --workspace 64MB --budget 700MB
    python benchmarks/overhead.py --networks resnet50 --workspace 64MB --budget 700MB --beside keep

Two trainings with the same seeds take turns in one process: one in plain Chainer, or under `--beside keep` with the
same workspace, which shows what the swapping alone costs; the other under a policy. A turn is two iterations, of which
the second is timed (`iterations.py` says why). Both must give the same bits: losses, and after three iterations of
momentum SGD every parameter, running statistic and array of the optimizer. With `--workspace` convolutions are split,
and with `--use-ideep` oneDNN computes them, which changes the order of sums: plain Chainer is then no measure, and a
third training under `keep`, which computes likewise, is.
"""
from __future__ import annotations

import argparse
import statistics
from typing import Any

from surroundings import add_networks, config_entries, make_parser, positive, publish

# isort: split
import chainer_ooc
from chainer_ooc.report.table import Column, Table, megabytes, percent, plain, seconds
from iterations import CHECKED, Training
from models import ARCHITECTURES
from pairs import in_turns

COLUMNS = (
    Column('network', 'network'),
    Column('batchsize', 'batch', plain, right=True),
    Column('beside_seconds', 'in-core', seconds, right=True),
    Column('ooc_seconds', 'out-of-core', seconds, right=True),
    Column('overhead', 'overhead', percent, right=True),
    Column('middle_half', 'middle half', lambda value: f'{percent(value[0])} to {percent(value[1])}', right=True),
    Column('swapped_out_bytes', 'out/iteration', megabytes, right=True),
    Column('swapped_in_bytes', 'in/iteration', megabytes, right=True),
    Column('faults', 'faults', plain, right=True),
    Column('losses_equal', 'losses', lambda equal: 'equal' if equal else 'DIFFERENT'),
    Column('arrays_equal', 'arrays equal', plain, right=True),
)


def main() -> None:
    parser = make_parser(__doc__)
    add_networks(parser, ['resnet50', 'alexnet', 'googlenet'])
    parser.add_argument('--pairs', type=positive, default=7, metavar='N', help='timed pairs (%(default)s)')
    parser.add_argument('--warm-up', type=positive, default=2, metavar='N',
                        help='pairs before, in which graphs are profiled and planned (%(default)s)')
    parser.add_argument('--beside', choices=['plain', 'keep'], default='plain',
                        help='what the policy is held against (%(default)s)')
    arguments = parser.parse_args()
    rows = [measure(name, arguments) for name in arguments.networks]
    title = f'An iteration with policy {arguments.policy} beside one of {arguments.beside}, {arguments.pairs} pairs'
    publish(Table(COLUMNS, rows, title), arguments)


def measure(network: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Takes turns between the two trainings of one network."""
    entries = config_entries(arguments)
    keep_entries = {**entries, 'ooc': 'keep', 'ooc_budget': None}
    reference = Training(network, arguments.batchsize, arguments.crop,
                         keep_entries if arguments.beside == 'keep' else {})
    ooc = Training(network, arguments.batchsize, arguments.crop, entries)
    turns = reference.iterate_twice, ooc.iterate_twice
    warm_up = max(arguments.warm_up, CHECKED - arguments.pairs)
    in_turns(*turns, warm_up, lambda number, *pair: show(network, 'warm-up', pair))
    times = in_turns(*turns, arguments.pairs, lambda number, *pair: show(network, number, pair))
    stats = chainer_ooc.stats()
    moved = {} if stats is None else {
        'swapped_out_bytes': stats.swapped_out_bytes, 'swapped_in_bytes': stats.swapped_in_bytes,
        'faults': stats.faults, 'phase': stats.phase}
    measure_of_bits = reference
    if arguments.beside == 'plain' and (arguments.workspace or arguments.use_ideep):
        measure_of_bits = iterated(Training(network, arguments.batchsize, arguments.crop, keep_entries))
    return {
        'network': ARCHITECTURES[network].title, 'batchsize': ooc.batchsize,
        'beside_seconds': statistics.median(times.first), 'ooc_seconds': statistics.median(times.second),
        'overhead': times.ratio - 1,
        'middle_half': [bound - 1 for bound in times.middle_half],
        **same_bits(measure_of_bits, ooc), 'losses': ooc.losses,
        'all_beside_seconds': times.first, 'all_ooc_seconds': times.second, **moved,
    }


def iterated(training: Training) -> Training:
    """A training after the iterations that are compared."""
    for _ in range(CHECKED):
        training.iterate()
    return training


def same_bits(reference: Training, ooc: Training) -> dict[str, Any]:
    """Whether the out-of-core training gave the losses that it must give, and how many of its arrays are the same."""
    compared = len(reference.losses)
    names = reference.checked_state.keys() | ooc.checked_state.keys()
    equal = sum(reference.checked_state.get(name) == ooc.checked_state.get(name) for name in names)
    return {'losses_equal': reference.losses == ooc.losses[:compared], 'arrays_equal': f'{equal} of {len(names)}'}


def show(network: str, number: int | str, pair: tuple[float, float]) -> None:
    """Prints one pair as it comes in."""
    print(f'{network} {number}: in-core {pair[0]:.3f} s, out-of-core {pair[1]:.3f} s', flush=True)


if __name__ == '__main__':
    main()
