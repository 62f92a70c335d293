"""Time: what the patches cost while `chainer.config.ooc` is unset, beside Chainer as it was released.

    python benchmarks/off.py

The patches cannot be taken out of a running interpreter, so there are two: one with them and one without, on the same
core, told in turns to train for a moment. Other programs can only make a turn longer, so each side is taken at the
tenth part of its turns that were shortest, in processor time. Where a program's code and data come to lie can make it
a percent faster or slower for as long as it runs, so both interpreters are started anew several times, and the
median over the starts is what counts. A control, plain beside plain, shows how small a difference this can see.

`many-calls` is the worst case: a net of 16 units a layer, where next to nothing is computed. Needs a Python and a NumPy
on which plain Chainer runs (3.10 or 3.11, below 2).
"""
from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from surroundings import make_parser, positive, publish

# isort: split
from chainer_ooc.report.table import Column, Table, seconds
from pairs import in_turns

WORKER = pathlib.Path(__file__).with_name('off_worker.py')
TURN_SECONDS = 0.05

def percent_of_two_digits(value: float) -> str:
    """A signed share with two digits behind the point, as one percent is the question."""
    return f'{value:+.2%}'.replace('%', ' %')


COLUMNS = (
    Column('network', 'network'),
    Column('sides', 'compared'),
    Column('iteration_seconds', 's/iteration', seconds, right=True),
    Column('overhead', 'overhead', percent_of_two_digits, right=True),
    Column('starts', 'lowest and highest start', lambda value: ' to '.join(map(percent_of_two_digits, value)),
           right=True),
)


class Side:
    """One interpreter that trains when told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.iterations = 1

    def ask(self, text: str) -> str:
        """Sends a line and reads one."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + '\n')
        self._process.stdin.flush()
        return self.read()

    def read(self) -> str:
        """Reads a line; raises what the interpreter died of."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError('an interpreter of the comparison ended; plain Chainer 7.8.1 needs Python 3.10 or 3.11 '
                               'with NumPy below 2 (what it died of stands above)')
        return line

    def seconds(self) -> float:
        """Trains once more; returns the processor time of an iteration."""
        return float(self.ask(str(self.iterations)).split()[0]) / self.iterations


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument('--networks', nargs='+', default=['resnet50', 'many-calls'], metavar='NAME',
                        help='many-calls or one of the four networks (resnet50 many-calls)')
    parser.add_argument('--starts', type=positive, default=7, metavar='N', help='of both interpreters (%(default)s)')
    parser.add_argument('--pairs', type=positive, default=51, metavar='N', help='turns per start (%(default)s)')
    arguments = parser.parse_args()
    rows = [measure(network, sides, arguments)
            for network in arguments.networks for sides in (('plain', 'patched'), ('plain', 'plain'))]
    publish(Table(COLUMNS, rows, 'Patched Chainer with ooc unset beside Chainer 7.8.1 (processor time)'), arguments)


def measure(network: str, sides: tuple[str, str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Compares two sides over several starts."""
    shortest = []
    for number in range(arguments.starts):
        shortest.append(one_start(network, sides, number % 2 == 1, arguments.pairs))
        print(f'{network}, {sides[1]} beside {sides[0]}, start {number + 1} of {arguments.starts}: '
              f'{percent_of_two_digits(shortest[-1][1] / shortest[-1][0] - 1)}', flush=True)
    overheads = [second / first - 1 for first, second in shortest]
    return {
        'network': network, 'sides': f'{sides[1]} beside {sides[0]}', 'overhead': statistics.median(overheads),
        'starts': [min(overheads), max(overheads)], 'all_starts': overheads,
        'iteration_seconds': statistics.median(first for first, _ in shortest),
    }


def one_start(network: str, sides: tuple[str, str], swapped: bool, pairs: int) -> tuple[float, float]:
    """Starts both interpreters, in the other order if `swapped`; returns the seconds of each."""
    order = sides[::-1] if swapped else sides
    with interpreter(network, order[0]) as first, interpreter(network, order[1]) as second:
        first.iterations = second.iterations = max(1, round(TURN_SECONDS / first.seconds()))
        in_turns(first.seconds, second.seconds, 2)
        times = in_turns(first.seconds, second.seconds, pairs)
    shortest = undisturbed(times.first), undisturbed(times.second)
    return shortest[::-1] if swapped else shortest


def undisturbed(times: Sequence[float]) -> float:
    """The time below which a tenth of the times lie."""
    return statistics.quantiles(times, n=10, method='inclusive')[0]


@contextlib.contextmanager
def interpreter(network: str, side: str) -> Iterator[Side]:
    """Starts one interpreter on the last core, with one thread."""
    root = str(WORKER.parent.parent)
    environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1', 'PYTHONHASHSEED': '0',
                   'PYTHONPATH': os.pathsep.join([root, os.environ.get('PYTHONPATH', '')])}
    core = max(os.sched_getaffinity(0))
    process = subprocess.Popen(
        [sys.executable, str(WORKER), side, network], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment, preexec_fn=lambda: os.sched_setaffinity(0, {core}))
    try:
        started = Side(process)
        if started.read().split() != ['ready', str(side == 'patched')]:
            raise RuntimeError(f'the {side} interpreter is not {side}; run this without chainer_ooc in a .pth file')
        yield started
    finally:
        process.kill()
        process.communicate()


if __name__ == '__main__':
    main()
