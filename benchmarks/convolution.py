"""Time and scratch: convolution and pooling under ooc_workspace beside plain Chainer, layer by layer.

    python benchmarks/convolution.py
    python benchmarks/convolution.py --networks resnet50 --workspaces 8MB 64MB --batchsize 32 --layers

For each layer of a network, plain Chainer and each workspace take turns in one process. The ratio is plain over tiled,
above 1 where tiles are faster; a network's is that of the sums over its layers, turn by turn. On a machine that others
use too, take OMP_NUM_THREADS=1 and --processor-time.
"""
from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from surroundings import ARCHITECTURES, make_parser, positive, publish

# isort: split
from chainer_ooc.quantities import parse_bytes
from chainer_ooc.report.table import Column, Table, megabytes, plain, seconds
from layers import Bench, Layer, layers_of
from pairs import PairedSeconds

COLUMNS = (
    Column('network', 'network'),
    Column('layer', 'layer'),
    Column('count', 'count', plain, right=True),
    Column('workspace', 'workspace', plain, right=True),
    Column('plain_seconds', 'plain', seconds, right=True),
    Column('tiled_seconds', 'tiled', seconds, right=True),
    Column('forward', 'forward', lambda value: f'x{value:.2f}', right=True),
    Column('backward', 'backward', lambda value: f'x{value:.2f}', right=True),
    Column('both', 'both', lambda value: f'x{value:.2f}', right=True),
    Column('middle_half', 'middle half', lambda value: f'{value[0]:.2f} to {value[1]:.2f}', right=True),
    Column('plain_bytes', 'plain scratch', megabytes, right=True),
    Column('tiled_bytes', 'tiled scratch', megabytes, right=True),
)

# forward and backward seconds of every turn, for one way of running a layer
Turns = list[tuple[float, float]]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument('--networks', nargs='+', choices=sorted(ARCHITECTURES), default=sorted(ARCHITECTURES),
                        metavar='NAME', help='(all four)')
    parser.add_argument('--workspaces', nargs='+', type=checked_bytes, default=['8MB', '16MB', '32MB', '64MB'],
                        metavar='BYTES', help='values of chainer.config.ooc_workspace (8MB 16MB 32MB 64MB)')
    parser.add_argument('--batchsize', type=positive, default=16, metavar='N', help='images (%(default)s)')
    parser.add_argument('--crop', type=positive, default=224, metavar='PIXELS', help='side of an image (%(default)s)')
    parser.add_argument('--turns', type=positive, default=5, metavar='N', help='after one to warm up (%(default)s)')
    parser.add_argument('--processor-time', action='store_true', help='of all threads, instead of time on the wall')
    parser.add_argument('--layers', action='store_true', help='show every layer, not only the sums')
    arguments = parser.parse_args()
    rows = [row for network in arguments.networks for row in measure(network, arguments)]
    clock = ', processor time' if arguments.processor_time else ''
    title = f'Convolution and pooling in tiles, batch {arguments.batchsize}, {arguments.turns} turns{clock}'
    publish(Table(COLUMNS, rows, title), arguments)


def checked_bytes(text: str) -> str:
    """Takes what chainer.config.ooc_workspace takes."""
    parse_bytes(text)
    return text


def measure(network: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Times the layers of one network; the last rows are their sums."""
    ways = [None, *arguments.workspaces]
    sums: dict[str | None, Turns] = {way: [(0.0, 0.0)] * arguments.turns for way in ways}
    most = dict.fromkeys(ways, 0)
    rows = []
    for layer, count in layers_of(network, arguments.crop).items():
        print(f'{network}: {layer}', flush=True)
        bench = Bench(layer, arguments.batchsize, time.process_time if arguments.processor_time else time.perf_counter)
        turns = take_turns(bench, ways, arguments.turns)
        scratch = {way: bench.scratch_bytes(way) for way in ways}
        for way in ways:
            sums[way] = [(a + count * c, b + count * d) for (a, b), (c, d) in zip(sums[way], turns[way], strict=True)]
            most[way] = max(most[way], scratch[way])
        if arguments.layers:
            rows += compare(network, layer, count, turns, scratch)
    return rows + compare(network, None, None, sums, most)


def take_turns(bench: Bench, ways: list[str | None], turns: int) -> dict[str | None, Turns]:
    """Runs a layer in every way by turns, after a turn that warms up; every other turn goes backwards."""
    times: dict[str | None, Turns] = {way: [] for way in ways}
    for turn in range(turns + 1):
        for way in ways if turn % 2 else reversed(ways):
            taken = bench.run(way)
            if turn:
                times[way].append(taken)
    return times


def compare(network: str, layer: Layer | None, count: int | None, turns: dict[str | None, Turns],
            scratch: dict[str | None, int]) -> list[dict[str, Any]]:
    """Makes a row for each workspace."""
    title = ARCHITECTURES[network].title
    rows = []
    for way in [way for way in turns if way is not None]:
        pairs = [PairedSeconds(tuple(map(part, turns[way])), tuple(map(part, turns[None])))
                 for part in (lambda turn: turn[0], lambda turn: turn[1], sum)]
        rows.append({
            'network': title, 'layer': 'all' if layer is None else str(layer), 'count': count, 'workspace': way,
            'plain_seconds': statistics.median(map(sum, turns[None])),
            'tiled_seconds': statistics.median(map(sum, turns[way])),
            'forward': pairs[0].ratio, 'backward': pairs[1].ratio, 'both': pairs[2].ratio,
            'middle_half': pairs[2].middle_half, 'plain_bytes': scratch[None], 'tiled_bytes': scratch[way],
            'all_plain_seconds': turns[None], 'all_tiled_seconds': turns[way]})
    return rows


if __name__ == '__main__':
    main()
