"""Time: what it costs that others may have a training's free pages between two iterations, in a container.

    python benchmarks/resting.py --megabytes 700

Needs root and memory groups of version 1. An iteration runs with its free pages offered to the kernel from its end on
(as it is), given back (as behind a limit of the process), and kept by the pool (as where there is no limit, so that a
library or a child process may have the training killed). Behind each an evaluation of the same batch runs. The three
take turns, three iterations each, of which the first begins with what the one before has left and does not count.
"""
from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from surroundings import add_networks, config_entries, configured, make_parser, positive, publish

# isort: split
import chainer

from chainer_ooc.backends.host.arena import Arena
from chainer_ooc.report.table import Column, Table, plain, seconds
from iterations import Training
from memory_groups import memory_group
from models import ARCHITECTURES
from photographs import RandomCrops, bundled_photographs

INSIDE = 'CHAINER_OOC_RESTING_INSIDE'
WAYS = ('offered', 'given back', 'kept')
COLUMNS = (
    Column('network', 'network'),
    Column('batchsize', 'batch', plain, right=True),
    Column('way', 'free pages'),
    Column('iteration', 'iteration', lambda value: with_middle_half(value), right=True),
    Column('iteration_faults', 'page faults', plain, right=True),
    Column('evaluation', 'evaluation', lambda value: with_middle_half(value), right=True),
    Column('evaluation_faults', 'page faults', plain, right=True),
)


def main() -> None:
    parser = make_parser(__doc__)
    add_networks(parser, ['resnet50'])
    parser.set_defaults(policy='pooch', batchsize=4)
    parser.add_argument('--megabytes', type=positive, default=700, metavar='N', help='the limit (%(default)s)')
    parser.add_argument('--turns', type=positive, default=6, metavar='N', help='of each way (%(default)s)')
    arguments = parser.parse_args()
    if INSIDE in os.environ:
        print(json.dumps([row for name in arguments.networks for row in measure(name, arguments)]))
        return
    with memory_group(arguments.megabytes << 20) as group:
        ended = subprocess.run([sys.executable, *sys.argv], check=True, stdout=subprocess.PIPE, text=True,
                               preexec_fn=group.enter, env={**os.environ, INSIDE: '1'})
    title = f'Iterations under {arguments.policy} in a container of {arguments.megabytes} MB'
    publish(Table(COLUMNS, json.loads(ended.stdout), title), arguments)


def measure(network: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Has the ways take turns for one network."""
    training = Training(network, arguments.batchsize, arguments.crop, config_entries(arguments))
    for _ in range(4):
        training.iterate()
    batch = chainer.dataset.concat_examples(RandomCrops(bundled_photographs(), arguments.crop, 10**9, 0)[
        :training.batchsize])

    def evaluate() -> None:
        with configured(training.entries), chainer.no_backprop_mode(), chainer.using_config('train', False):
            training.chain(*batch)

    works: dict[str, Callable[[], Any]] = {'iteration': training.iterate, 'evaluation': evaluate}
    times: dict[tuple[str, str], list[tuple[float, int]]] = {(way, name): [] for way in WAYS for name in works}
    for _ in range(arguments.turns):
        for way in WAYS:
            with_rest(way)
            for number in range(3):
                for name, work in works.items():
                    taken = timed(work)
                    if number:
                        times[way, name].append(taken)
    rows: list[dict[str, Any]] = []
    for way in WAYS:
        rows.append({'network': ARCHITECTURES[network].title, 'batchsize': training.batchsize, 'way': way})
        for name in works:
            seconds_of, faults_of = zip(*times[way, name], strict=True)
            rows[-1] |= {name: seconds_of, f'{name}_faults': int(statistics.median(faults_of))}
    return rows


def timed(work: Callable[[], Any]) -> tuple[float, int]:
    """The seconds and the page faults of something."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
    work()
    return time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def with_middle_half(times: list[float]) -> str:
    """Their median, and the quarters beside it."""
    low, median, high = statistics.quantiles(times)
    return f'{seconds(median)} ({seconds(low)} to {seconds(high)})'


def with_rest(way: str, rest: Any = Arena.rest, offer: Any = Arena.offer) -> None:
    """Has all pools do with free pages what is asked."""
    def give_back(pool: Arena) -> None:
        offers, pool._offers = pool._offers, False
        rest(pool)
        pool._offers = offers

    Arena.rest = {'offered': rest, 'given back': give_back, 'kept': lambda pool: None}[way]
    Arena.offer = offer if way == 'offered' else lambda pool: None


if __name__ == '__main__':
    main()
