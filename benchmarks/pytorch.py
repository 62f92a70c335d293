"""Time and memory: training on the CPU, out-of-core with Chainer beside PyTorch.

    python benchmarks/pytorch.py --peer peer/bin/python
    python benchmarks/pytorch.py --peer peer/bin/python --networks resnet50 --rounds 9 --with-plain
    python benchmarks/pytorch.py --peer peer/bin/python --largest-batch --limit 2GB

PyTorch has an environment of its own, whose Python `--peer` names. Each row is a process that stays alive; they train
in turns, an iteration that is not timed and one that is (`turns.py`). The layers of both sides are compared: shapes of
all weights and outputs, and the number of parameters.

A row's memory is the high-water mark of its whole process (VmHWM), libraries included. `pooch` has to keep within
`--share` of what PyTorch's plain training takes by this mark. Its budget is that, less what the process under `keep`
holds beside the arrays that it accounts for; if the peak is then more than 2 % off, the budget is corrected by the
difference, twice at most. A budget that no plan keeps within is raised to 1.02 times the smallest that one does, and
marked with a star. `auto` and `swap-all` have the same budget. `pooch, parameters on file` has one of its own, in the
same way, with chainer.config.ooc_parameters set.

PyTorch's tensors come from glibc's malloc, which keeps what is freed. Rows whose purpose is to save memory, and all of
`--largest-batch`, have it give back blocks from `--malloc-threshold` on; ResNet50 with batches of 4 and saved tensors
in a file takes as much as plain without it.
"""
from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
from typing import Any

from surroundings import ARCHITECTURES, make_parser, positive, publish

# isort: split
from chainer_ooc.report.table import Column, Table, megabytes, plain, ratio, seconds
from largest_batch import publish_largest
from options import amount
from peers import OUR_WAYS, PEER_WAYS, WITHIN, check_same, ready, start, start_within
from turns import Worker, take_turns

NETWORKS = ('resnet50', 'googlenet', 'vgg16')
WAYS = (*PEER_WAYS, *OUR_WAYS)


def percent_of_one(value: float) -> str:
    """A part of a whole, in percent."""
    return f'{value:.0%}'.replace('%', ' %')


COLUMNS = (
    Column('network', 'network'),
    Column('batchsize', 'batch', plain, right=True),
    Column('way', 'training'),
    Column('peak_bytes', 'peak', megabytes, right=True),
    Column('peak_ratio', 'to PyTorch', ratio, right=True),
    Column('imported_bytes', 'after imports', megabytes, right=True),
    Column('anon_peak_bytes', 'private', megabytes, right=True),
    Column('budget', 'budget', plain, right=True),
    Column('seconds', 's/iteration', seconds, right=True),
    Column('spread', 'lowest to highest', lambda value: f'{seconds(value[0])} to {seconds(value[1])}', right=True),
    Column('ratio', 'to PyTorch', ratio, right=True),
    Column('system_share', 'in the kernel', percent_of_one, right=True),
    Column('faults', 'page faults', lambda value: f'{value:,.0f}', right=True),
)


def main() -> None:
    arguments = parse_arguments()
    if arguments.largest_batch:
        publish_largest(arguments)
        return
    rows = [row for network in arguments.networks for row in measure(network, arguments)]
    title = (f'An iteration of momentum SGD on {arguments.threads} threads, {arguments.rounds} rounds; '
             f'pooch within {percent_of_one(arguments.share)} of the peak of PyTorch')
    publish(Table(COLUMNS, rows, title), arguments)
    for name in ('PyTorch', 'keep'):
        versions = next(row['versions'] for row in rows if row['way'] == name)
        print(f'  {name}: ' + ', '.join(f'{what} {version}' for what, version in versions.items()))
    if any(row['refusals'] for row in rows):
        print('  * raised to 1.02 times what the smallest plan needs')


def parse_arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument('--peer', required=True, metavar='PYTHON', help='a Python that has torch and torchvision')
    parser.add_argument('--networks', nargs='+', choices=NETWORKS, default=list(NETWORKS), metavar='NAME',
                        help=', '.join(NETWORKS) + ' (all)')
    parser.add_argument('--batchsize', type=positive, metavar='N', help="images per iteration (the network's own)")
    parser.add_argument('--crop', type=positive, default=224, metavar='PIXELS',
                        help='side of an image, a multiple of 32 (%(default)s)')
    parser.add_argument('--rounds', type=positive, default=5, metavar='N', help='timed turns of each (%(default)s)')
    parser.add_argument('--threads', type=positive, default=len(os.sched_getaffinity(0)), metavar='N',
                        help='of both sides (all cores)')
    parser.add_argument('--share', type=float, default=0.35, metavar='X', help="of PyTorch's peak (%(default)s)")
    parser.add_argument('--ways', nargs='+', choices=WAYS, default=[name for name in WAYS if name != 'plain Chainer'],
                        metavar='NAME', help=', '.join(WAYS) + ' (all but the last; the first and keep in any case)')
    parser.add_argument('--with-plain', action='store_true', help='also plain Chainer')
    parser.add_argument('--workspace', default='32MB', metavar='BYTES',
                        help="chainer.config.ooc_workspace, or none: Chainer's own way (%(default)s)")
    parser.add_argument('--use-ideep', default='auto', choices=['auto', 'always', 'never'],
                        help='chainer.config.use_ideep: by oneDNN (%(default)s)')
    parser.add_argument('--malloc-threshold', type=int, default=65536, metavar='BYTES',
                        help="MALLOC_MMAP_THRESHOLD_ where PyTorch saves memory, or 0: glibc's own way (%(default)s)")
    parser.add_argument('--spill-dir', metavar='DIR', help='folder of the files of both sides (the temporary folder)')
    parser.add_argument('--patience', type=float, default=1800.0, metavar='SECONDS',
                        help='what getting ready, or a turn, may take (%(default)s)')
    group = parser.add_argument_group('largest batch')
    group.add_argument('--largest-batch', action='store_true', help='search that instead, with the first network')
    group.add_argument('--limit', type=amount, default=amount('2GB'), metavar='BYTES', help='RLIMIT_DATA (2GB)')
    group.add_argument('--step', type=positive, default=4, metavar='N', help='between batch sizes (%(default)s)')
    return parser.parse_args(given)


def measure(network: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one network."""
    asked = {'PyTorch', 'keep', *arguments.ways, *(['plain Chainer'] if arguments.with_plain else [])}
    workers: dict[str, Worker] = {}
    budget = None
    with contextlib.ExitStack() as stack:
        for name in (way for way in WAYS if way in asked):
            if name in WITHIN:
                keep = workers['keep'].about
                target_bytes = int(arguments.share * workers['PyTorch'].about['peak_bytes'])
                worker = start_within(target_bytes, keep['peak_bytes'] - keep['accounted_bytes'], name, network,
                                      arguments)
                budget = worker.about['budget_bytes'] if name == 'pooch' else budget
            else:
                worker = ready(start(name, network, arguments, budget=budget if name in ('auto', 'swap-all') else None))
            workers[name] = stack.enter_context(worker)
            check_same(workers['PyTorch'].about, worker.about)
        turns = take_turns(workers, arguments.rounds, lambda number, name, turn: print(
            f'{network} round {number}, {name}: {turn["seconds"]:.3f} s', flush=True))
        return [{'network': ARCHITECTURES[network].title,
                 'batchsize': arguments.batchsize or ARCHITECTURES[network].batchsize,
                 **row_of(name, worker, turns[name], turns['PyTorch'])} for name, worker in workers.items()]


def row_of(name: str, worker: Worker, turns: list[dict[str, Any]], beside: list[dict[str, Any]]) -> dict[str, Any]:
    """Makes a row of the table of what a worker said, beside PyTorch's turns of the same rounds."""
    about, times = worker.about, [turn['seconds'] for turn in turns]
    budget, refusals = about.get('budget_bytes'), about.get('refusals', 0)
    ratios = [turn['seconds'] / other['seconds'] for turn, other in zip(turns, beside, strict=True)]
    return {
        'way': name, 'seconds': statistics.median(times), 'spread': [min(times), max(times)],
        'ratio': statistics.median(ratios), 'ratios': ratios,
        'peak_bytes': turns[-1]['peak_bytes'], 'peak_ratio': turns[-1]['peak_bytes'] / beside[-1]['peak_bytes'],
        'imported_bytes': about['imported_bytes'], 'anon_peak_bytes': worker.anon_peak_bytes,
        'accounted_bytes': about.get('accounted_bytes'), 'refusals': refusals, 'budget_bytes': budget,
        'budget': megabytes(budget) + '*' * bool(refusals) if budget else None,
        'system_share': statistics.median(_system_share(turn) for turn in turns),
        'faults': statistics.median(turn['faults'] for turn in turns), 'turns': turns, 'versions': about['versions'],
        'parameters': about['parameters'], 'image_multiplications': multiplications(about['layers']),
    }


def _system_share(turn: dict[str, Any]) -> float:
    processor_seconds = turn['user_seconds'] + turn['system_seconds']
    return turn['system_seconds'] / processor_seconds if processor_seconds else 0.0


def multiplications(layers: list[list[list[int]]]) -> int:
    """Of convolutions and linear layers in the forward pass of one image.

    Args:
        layers: Shapes of weight and output of each.
    """
    return sum(math.prod(weight[1:]) * math.prod(output) for weight, output in layers if len(weight) > 1)


if __name__ == '__main__':
    main()
