"""The second question of `pytorch.py`: the largest batch that trains behind a limit on private memory.

The limit (RLIMIT_DATA) is set in the worker before it imports anything. A batch fits if two iterations go through;
whatever else happens, an out-of-memory error, a killed process or a hang, it does not, and the last words are shown.
The time is that of another process at the largest batch, which first runs until its plan stays: the median of three
turns, or none if it does not get through that.
"""
from __future__ import annotations

import argparse
import statistics
from typing import Any

from surroundings import ARCHITECTURES, publish

# isort: split
from chainer_ooc.report.table import Column, Table, megabytes, plain, ratio, seconds
from peers import start
from probes import smallest
from turns import WorkerDiedError

WAYS = ('PyTorch', 'PyTorch checkpoint', 'pooch', 'swap-all')
FIRST = 8
TURNS = 3

COLUMNS = (
    Column('network', 'network'),
    Column('way', 'training'),
    Column('batchsize', 'largest batch', plain, right=True),
    Column('ratio', 'to PyTorch', ratio, right=True),
    Column('peak_bytes', 'peak', megabytes, right=True),
    Column('seconds', 's/iteration', seconds, right=True),
    Column('image_seconds', 's/image', seconds, right=True),
)


def publish_largest(arguments: argparse.Namespace) -> None:
    """Searches for all rows, and prints their table."""
    network = arguments.networks[0]
    rows = [measure_largest(name, network, arguments) for name in WAYS]
    for row in rows:
        row['ratio'] = row['batchsize'] / rows[0]['batchsize'] if rows[0]['batchsize'] else None
    title = (f'Largest batch (in steps of {arguments.step}) within {megabytes(arguments.limit)} of private memory, '
             f'{arguments.threads} threads')
    publish(Table(COLUMNS, rows, title), arguments)


def measure_largest(name: str, network: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Searches for one row."""
    tried: dict[int, str] = {}

    def fails(batchsize: int) -> bool:
        try:
            turns_of(name, network, arguments, batchsize, 1, settle=False)
        except WorkerDiedError as error:
            tried[batchsize] = str(error)
        else:
            tried[batchsize] = 'fits'
        print(f'{name}, batch {batchsize}: {tried[batchsize]}', flush=True)
        return tried[batchsize] != 'fits'

    largest = smallest(fails, 0, FIRST, arguments.step) - arguments.step
    row = {'network': ARCHITECTURES[network].title, 'way': name, 'batchsize': largest, 'tried': tried}
    if largest:
        try:
            turns = turns_of(name, network, arguments, largest, TURNS, settle=True)
        except WorkerDiedError as error:
            print(f'{name}, batch {largest}, timed: {error}', flush=True)
            return {**row, 'died': str(error)}
        row['turns'], row['peak_bytes'] = turns, turns[-1]['peak_bytes']
        row['seconds'] = statistics.median(turn['seconds'] for turn in turns)
        row['image_seconds'] = row['seconds'] / largest
    return row


def turns_of(name: str, network: str, arguments: argparse.Namespace, batchsize: int, count: int,
             settle: bool) -> list[dict[str, Any]]:
    """Has a worker behind the limit take turns, two iterations each.

    Raises:
        WorkerDiedError: It did not get through.
    """
    with start(name, network, arguments, batchsize=batchsize, limit_bytes=arguments.limit, settle=settle) as worker:
        worker.wait()
        return [worker.go() for _ in range(count)]
