"""Trains for hours under changing conditions, compares every bit, and watches whether the process grows.

    python tests/soak/soak.py --minutes 120 --seed 1 --out soak-result
    python tests/soak/soak.py --seed 1 --only 137              one stretch again, such as that of a finding

Networks, shapes, policies, budgets and thresholds change from stretch to stretch; several threads train at times; at
drawn moments the main thread is interrupted, hooks raise, disks are full or fail, children are forked, everything is
reset. What is trained is compared with plain Chainer of the same seed, in the same process, bit by bit. `--out` gets

    samples.jsonl    a line a minute: memory, descriptors, threads, spill bytes, storages, nodes, what has happened
    findings.txt     wrong bits and crashes, with the stretch and how to run it again
    soak.json        the closing table, the counts, the arguments
    soak.png         the samples over time

It runs on one core with one BLAS thread, in 1.5 GB of private memory (RLIMIT_DATA). The exit status is 0 when all bits
were equal, nothing crashed, and nothing grew (`soak_samples.py` has the rule), 1 otherwise. Before Python 3.13
tracemalloc loses some 2.5 kB with each recording, up to 60 MB: a run for results is on Python 3.13.
"""
from __future__ import annotations

import os

os.environ.setdefault('OMP_NUM_THREADS', '1')  # before NumPy

import argparse
import collections
import contextlib
import faulthandler
import json
import platform
import re
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import soak_trainings  # noqa: F401  first: it puts folders on the path, and chainer_ooc before chainer

# isort: split
import chainer_ooc
from chainer_ooc.quantities import parse_bytes
from chainer_ooc.report.table import Column, Table, plain
from soak_samples import Sample, as_line, draw, holders_of_storages, judge, left_behind, take_sample
from soak_stretches import PARTS, DifferenceError, Runner, Stretch, draw_stretch
from soak_troubles import ChildError, SmallDisk, unraisable


def figure(value: float) -> str:
    """A number with four digits that mean something."""
    return f'{value:,.4g}'


COLUMNS = (
    Column('quantity', 'quantity'),
    *(Column(key, key, figure, right=True) for key in ('first', 'last', 'largest')),
    Column('slope', 'per hour', lambda value: f'{value:+.3g}', right=True),
    Column('low', 'at least', lambda value: f'{value:+.3g}', right=True),
    Column('high', 'at most', lambda value: f'{value:+.3g}', right=True),
    Column('tolerance', 'tolerated', figure, right=True),
    Column('verdict', 'verdict', plain),
)


def main(arguments: argparse.Namespace) -> int:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    resource.setrlimit(resource.RLIMIT_DATA, (arguments.memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    if sys.version_info < (3, 13):
        print('before Python 3.13 tracemalloc loses some 2.5 kB with each recording: memory will grow by up to 60 MB')
    with folders(arguments) as (out, small_disk), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of a RAM disk, and of forks with threads
        soak = Soak(arguments, out, small_disk)
        if arguments.only is not None:
            return soak.run_one(arguments.only)
        soak.run()
        return soak.close()


def parse_arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog='See the head of tests/soak/soak.py.')
    parser.add_argument('--minutes', type=float, default=120.0, metavar='N', help='how long (%(default)s)')
    parser.add_argument('--seed', type=int, default=0, metavar='N', help='of everything that is drawn (%(default)s)')
    parser.add_argument('--sample-seconds', type=float, default=60.0, metavar='N', help='between samples (%(default)s)')
    parser.add_argument('--stretches', type=int, metavar='N', help='end after so many')
    parser.add_argument('--only', type=int, metavar='NUMBER', help='run this stretch alone')
    parser.add_argument('--without', nargs='+', choices=sorted(PARTS), default=[], metavar='NAME',
                        help='leave out some of: ' + ', '.join(sorted(PARTS)))
    parser.add_argument('--policies', nargs='+', choices=sorted(chainer_ooc.policies()), metavar='NAME',
                        default=sorted(chainer_ooc.policies()), help='values of chainer.config.ooc (all)')
    parser.add_argument('--memory', type=parse_bytes, default=parse_bytes('1.5GB'), metavar='BYTES',
                        help='limit on private memory (1.5GB)')
    parser.add_argument('--spill-dir', metavar='DIR', help='chainer.config.ooc_spill_dir (the temporary folder)')
    parser.add_argument('--stuck', type=float, default=300.0, metavar='SECONDS',
                        help='a stretch that takes longer ends the soak, with a traceback (%(default)s)')
    parser.add_argument('--out', type=Path, default=Path('soak-result'), metavar='FOLDER', help='(%(default)s)')
    return parser.parse_args(given)


@contextlib.contextmanager
def folders(arguments: argparse.Namespace) -> Iterator[tuple[Path, str | None]]:
    """The folder of results, and that of a small file system where one can be mounted."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix='chainer_ooc-soak-') as folder:
        is_mounted = SmallDisk.mount(folder)
        try:
            yield arguments.out, folder if is_mounted else None
        finally:
            chainer_ooc.reset()
            if is_mounted:
                SmallDisk.unmount(folder)


class Soak:
    """The loop and its records.

    Args:
        arguments: Of the command line.
        out: The folder of results.
        small_disk: A folder on a file system that can be made full, or None.
    """

    def __init__(self, arguments: argparse.Namespace, out: Path, small_disk: str | None) -> None:
        self._arguments, self._out, self._small_disk = arguments, out, small_disk
        self._runner = Runner(small_disk, arguments.spill_dir)
        self._samples: list[Sample] = []
        self._findings: collections.Counter[str] = collections.Counter()
        self._began = time.monotonic()
        self._before = take_sample(self._began)
        self._stretches = 0
        sys.unraisablehook = unraisable(self._runner.counts)

    def run(self) -> None:
        """Runs stretches until the time is over; an interrupt that nobody drew ends them, too."""
        (self._out / 'samples.jsonl').write_text('')
        (self._out / 'findings.txt').write_text('')
        until = self._began + 60 * self._arguments.minutes
        sample_at = self._began
        try:
            while time.monotonic() < until and self._stretches != self._arguments.stretches:
                self._try(self._draw(self._stretches))
                self._stretches += 1
                if time.monotonic() >= sample_at:
                    sample_at = time.monotonic() + self._arguments.sample_seconds
                    self._sample()
        except KeyboardInterrupt:
            print('interrupted', flush=True)

    def run_one(self, number: int) -> int:
        """Runs one stretch, and says what is wrong."""
        stretch = self._draw(number)
        print(stretch)
        self._try(stretch)
        print(dict(self._runner.counts))
        return int(bool(self._findings))

    def close(self) -> int:
        """Prints the closing table, writes the files, and returns the exit status."""
        self._sample()
        chainer_ooc.reset()
        behind = [*left_behind(self._before, take_sample(self._began)), *holders_of_storages()]
        rows = judge(self._samples)
        title = (f'{self._samples[-1].minutes:.1f} minutes, {self._stretches} stretches, seed {self._arguments.seed}: '
                 f'{sum(self._findings.values())} findings')
        print('\n' + Table(COLUMNS, rows, title).to_text())
        print('  left behind after the last reset: ' + ('; '.join(behind) or 'nothing'))
        for what, count in sorted(self._runner.counts.items()):
            print(f'  {what}: {count}')
        for what, count in self._findings.most_common():
            print(f'  FOUND {count} times: {what}')
        self._write(rows, behind, title)
        grown = any(row['verdict'] == 'NOT FLAT' for row in rows)
        return int(grown or bool(behind) or bool(self._findings))

    def _draw(self, number: int) -> Stretch:
        return draw_stretch(self._arguments.seed, number, self._arguments.policies, self._arguments.without)

    def _try(self, stretch: Stretch) -> None:
        faulthandler.dump_traceback_later(self._arguments.stuck, exit=True)
        try:
            self._runner.run(stretch)
        except Exception as error:
            self._note(stretch, error)
            self._recover(stretch)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _recover(self, stretch: Stretch) -> None:
        try:
            chainer_ooc.reset()
        except Exception as error:
            self._note(stretch, error)

    def _note(self, stretch: Stretch, error: Exception) -> None:
        """Writes a finding down; the traceback's frames are let go of, as they hold graphs."""
        crossing = any(task.has_two_threads for task in stretch.tasks) and not isinstance(error, DifferenceError)
        self._findings[name_of(error) + (', a pass in another thread' if crossing else '')] += 1
        text = ''.join(traceback.format_exception(error, limit=-14))
        with open(self._out / 'findings.txt', 'a') as stream:
            stream.write(f'=== stretch {stretch.number}: --seed {self._arguments.seed} --only {stretch.number}\n'
                         f'{stretch}\n{text}\n')
        print(f'FOUND in stretch {stretch.number} ({stretch.kind}): {str(error).strip().splitlines()[-1:]}', flush=True)
        traceback.clear_frames(error.__traceback__)

    def _sample(self) -> None:
        sample = take_sample(self._began)
        self._samples.append(sample)
        line = {**as_line(sample), 'stretches': self._stretches, 'findings': sum(self._findings.values()),
                'counts': dict(self._runner.counts)}
        with open(self._out / 'samples.jsonl', 'a') as stream:
            stream.write(json.dumps(line) + '\n')
        print(f'{sample.minutes:6.1f} min: {self._stretches} stretches, {line["findings"]} findings, '
              f'{sample.resident_bytes / 1e6:.0f} MB, {sample.descriptors} descriptors, {sample.threads} threads, '
              f'{sample.spill_bytes / 1e6:.1f} MB spilled, {sample.storages} storages, {sample.nodes} nodes',
              flush=True)

    def _write(self, rows: list[dict[str, Any]], behind: list[str], title: str) -> None:
        figures = {'title': title, 'rows': rows, 'left_behind': behind, 'counts': dict(self._runner.counts),
                   'findings': dict(self._findings), 'python': platform.python_version(),
                   'small_disk': self._small_disk is not None, 'arguments': vars(self._arguments)}
        (self._out / 'soak.json').write_text(json.dumps(figures, indent=1, default=str) + '\n')
        try:
            draw(self._samples, self._out / 'soak.png', title)
        except ImportError as error:
            print(f'  no picture: {error}')


def name_of(error: BaseException) -> str:
    """What findings of the same kind have in common."""
    if isinstance(error, DifferenceError):
        return f'WRONG BITS: {error.what}'
    if isinstance(error, ChildError):
        last = str(error).strip().splitlines()[-1]
        return f'in a forked child: {re.sub("[0-9]+", "N", last)[:100]}'
    return f'{type(error).__name__} at {_place_of(error)}'


def _place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f'{Path(frames[-1].filename).name}:{frames[-1].lineno}' if frames else 'no place'


if __name__ == '__main__':
    sys.exit(main(parse_arguments()))
