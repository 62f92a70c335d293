"""Time: an iteration while another process keeps a core busy, and which settings help.

    python benchmarks/busy.py
    python benchmarks/busy.py --network googlenet --policy pooch --budget 780MB

Threads of a computation wait for each other at its end. If one of them shares its core with another program, all wait
until that one's time slice is over; and threads that spin while they wait take the cores that others need. Each row is
a training process with settings of its own, which stays alive. They train in turns, first alone, then beside a process
that computes all the time on any core; *to quiet* is beside the quiet time of the first row.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

from surroundings import ARCHITECTURES, make_parser, positive, publish

# isort: split
from chainer_ooc.report.table import Column, Table, plain, ratio, seconds
from peers import ready
from turns import Worker, take_turns

HERE = pathlib.Path(__file__).parent
COLUMNS = (
    Column('threads', 'OMP_NUM_THREADS', plain, right=True),
    Column('wait_policy', 'OMP_WAIT_POLICY', plain),
    Column('quiet', 'alone', seconds, right=True),
    Column('quiet_ratio', 'to quiet', ratio, right=True),
    Column('busy', 'beside one', seconds, right=True),
    Column('busy_spread', 'lowest to highest', lambda value: f'{seconds(value[0])} to {seconds(value[1])}', right=True),
    Column('busy_ratio', 'to quiet', ratio, right=True),
)


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    parser = make_parser(__doc__)
    parser.add_argument('--network', choices=list(ARCHITECTURES), default='resnet50', metavar='NAME',
                        help=', '.join(ARCHITECTURES) + ' (%(default)s)')
    parser.add_argument('--policy', default='keep', metavar='NAME', help='(%(default)s)')
    parser.add_argument('--budget', metavar='BYTES', help='chainer.config.ooc_budget (what is free)')
    parser.add_argument('--batchsize', type=positive, metavar='N', help="images per iteration (the network's own)")
    parser.add_argument('--crop', type=positive, default=224, metavar='PIXELS', help='(%(default)s)')
    parser.add_argument('--rounds', type=positive, default=3, metavar='N', help='timed turns of each (%(default)s)')
    parser.add_argument('--competitors', type=positive, default=1, metavar='N', help='busy processes (%(default)s)')
    parser.add_argument('--workspace', default='32MB', metavar='BYTES', help='(%(default)s)')
    parser.add_argument('--use-ideep', default='auto', choices=['auto', 'always', 'never'], help='(%(default)s)')
    arguments = parser.parse_args()
    settings = [(cores, None), (cores, 'passive'), *([(cores - 1, None)] if cores > 1 else [])]
    with contextlib.ExitStack() as stack:
        workers = {f'{threads} {wait}': stack.enter_context(ready(start(threads, wait, arguments)))
                   for threads, wait in settings}
        quiet = take_turns(workers, arguments.rounds, _show)
        with busy(arguments.competitors):
            beside = take_turns(workers, arguments.rounds, _show)
    reference = _median(quiet[next(iter(workers))])
    rows = [{'threads': threads, 'wait_policy': wait, **row_of(quiet[f'{threads} {wait}'], beside[f'{threads} {wait}'],
                                                               reference)} for threads, wait in settings]
    title = (f'{ARCHITECTURES[arguments.network].title} under {arguments.policy} on {cores} cores, alone and beside '
             f'{arguments.competitors} busy process{"es" * (arguments.competitors > 1)}')
    publish(Table(COLUMNS, rows, title), arguments)


def start(threads: int, wait_policy: str | None, arguments: argparse.Namespace) -> Worker:
    """Starts a training with these settings."""
    environment = {**os.environ, 'OMP_NUM_THREADS': str(threads)}
    environment.pop('OMP_WAIT_POLICY', None)
    if wait_policy:
        environment['OMP_WAIT_POLICY'] = wait_policy
    entries = {'ooc': arguments.policy, 'ooc_budget': arguments.budget, 'ooc_workspace': arguments.workspace,
               'use_ideep': arguments.use_ideep}
    row = {'network': arguments.network, 'side': arguments.crop, 'threads': threads, 'limit_bytes': None,
           'batchsize': arguments.batchsize or ARCHITECTURES[arguments.network].batchsize, 'settle': True,
           'entries': entries}
    return Worker(f'{arguments.network}, {threads} threads, waiting {wait_policy or "as ever"}',
                  [sys.executable, str(HERE / 'chainer_worker.py'), json.dumps(row)], environment)


@contextlib.contextmanager
def busy(count: int) -> Any:
    """Runs processes that compute all the time."""
    processes = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(count)]
    try:
        yield
    finally:
        for each in processes:
            each.kill()
            each.wait()


def row_of(quiet: list[dict[str, Any]], beside: list[dict[str, Any]], reference: float) -> dict[str, Any]:
    """A row of the table."""
    times = [turn['seconds'] for turn in beside]
    return {'quiet': _median(quiet), 'quiet_ratio': _median(quiet) / reference, 'busy': _median(beside),
            'busy_spread': [min(times), max(times)], 'busy_ratio': _median(beside) / reference,
            'quiet_turns': quiet, 'busy_turns': beside}


def _median(turns: list[dict[str, Any]]) -> float:
    return statistics.median(turn['seconds'] for turn in turns)


def _show(number: int, name: str, turn: Any) -> None:
    print(f'round {number}, {name}: {turn["seconds"]:.3f} s', flush=True)


if __name__ == '__main__':
    main()
