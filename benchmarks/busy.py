"""Time: an iteration while another process keeps a core busy, and which settings help.

    python benchmarks/busy.py
    python benchmarks/busy.py --network googlenet --policy pooch --budget 780MB

Threads of a computation wait for each other at its end. If one of them shares its core with another program, all wait
until that one's time slice is over; and threads that spin while they wait take the cores that others need. Each row is
a training process with settings of its own, which stays alive. They train in turns, first alone, then beside a process
that computes all the time on any core; *to quiet* is beside the quiet time of the first row.
"""
from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
from typing import Any

from surroundings import ARCHITECTURES, make_parser, positive, publish

# isort: split
from chainer_ooc.report.table import Column, Table, plain, ratio, seconds
from peers import ready, start
from turns import take_turns

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
    parser.add_argument('--spill-dir', metavar='DIR', help='folder of the spill files (the temporary folder)')
    parser.add_argument('--patience', type=float, default=1800.0, metavar='SECONDS',
                        help='what getting ready, or a turn, may take (%(default)s)')
    parser.set_defaults(threads=cores)
    arguments = parser.parse_args()
    os.environ.pop('OMP_WAIT_POLICY', None)  # each row has its own
    settings = [(cores, None), (cores, 'passive'), *([(cores - 1, None)] if cores > 1 else [])]
    with contextlib.ExitStack() as stack:
        workers = {f'{threads} {wait}': stack.enter_context(ready(start(
            arguments.policy, arguments.network, arguments, budget=arguments.budget, threads=threads,
            wait_policy=wait))) for threads, wait in settings}
        quiet = take_turns(workers, arguments.rounds, _show)
        with busy(arguments.competitors):
            beside = take_turns(workers, arguments.rounds, _show)
    reference = _median(quiet[next(iter(workers))])
    rows = [{'threads': threads, 'wait_policy': wait, **row_of(quiet[f'{threads} {wait}'], beside[f'{threads} {wait}'],
                                                               reference)} for threads, wait in settings]
    title = (f'{ARCHITECTURES[arguments.network].title} under {arguments.policy} on {cores} cores, alone and beside '
             f'{arguments.competitors} busy process{"es" * (arguments.competitors > 1)}')
    publish(Table(COLUMNS, rows, title), arguments)


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
