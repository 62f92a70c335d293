"""Time: what recording and running cost for each call, where calls are many and have next to no work.

    python benchmarks/calls.py
    python benchmarks/calls.py --calls 50 200 --works chain --policies pooch --json calls.json --plot calls.png

The time of a memory manager must grow with what happens, not with what there is: per call it must not depend on how
many feature maps are alive. So networks of 50 to 800 calls run with the default budget and with a short one, a share
of the in-core peak, under which maps leave all the time; with nothing held by the program, with all its Variables in a
list, and with three arrays in four, which can then not leave. Small layers with ReLU, and blocks of ResNet50 with small
maps, have the default budget, under which nothing has to leave; *beside* is such layers behind two calls whose maps
move; *sentences* of eight lengths in turn are read by an LSTM, word by word, and of *lengths* no batch comes again, of
*returning* every third one. Time over calls on a straight line has the exponent 1. And the recursive network of
Chainer's sentiment example runs with a short budget: there all calls share one storage, the thin stack.

Each row is a process of its own, in which plain Chainer and out-of-core take turns. It is ended when a phase has taken
`--limit` seconds; the table says so then, and larger sizes of the same row are not tried. *Recorded* is the first
iteration after `chainer_ooc.reset()`, *trace* what is made of it when it is over, the one measurement of the spill
medium in it; *planned* is the first iteration under a plan with the planning, *run* a later one. A refusal raises the
budget to 1.02 times the floor that it names.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from surroundings import make_parser, positive, publish

# isort: split
from chainer_ooc.report.figure import BLUE, GREY, ORANGE, PALE, new_figure, save, tidy
from chainer_ooc.report.table import Column, Table, megabytes, plain, seconds
from pairs import PairedSeconds
from small_calls import WORKS, Size

WORKER = pathlib.Path(__file__).with_name('calls_worker.py')
TREES = (Size(units=30, leaves=20), Size(units=100, leaves=40), Size(units=300, leaves=60))
#: Of the short budget's share, the budgets of a work, None for the default; all others have the short one alone.
SHARES = {'chain': lambda short: [None, short], 'perceptron': lambda short: [None], 'beside': lambda short: [None],
          'residual': lambda short: [None],
          'sentences': lambda short: [None], 'lengths': lambda short: [None], 'returning': lambda short: [None]}
#: Smaller maps stay, see chainer.config.ooc_min_bytes; 0 where nothing is said.
MIN_BYTES = {'thin-stack': 1000, 'beside': 1_000_000}
GREEN, PURPLE = '#009E73', '#CC79A7'
STYLES = {'keep': (GREEN, 's'), 'pooch': (ORANGE, 'o'), 'swap-all': (BLUE, '^'), 'tensor-cache': (PURPLE, 'D')}


def microseconds(value: float) -> str:
    """Seconds as microseconds."""
    return f'{value * 1e6:,.0f} us'


def times(value: float | str) -> str:
    """A ratio to plain Chainer; text, such as why there is none, stays as it is."""
    return value if isinstance(value, str) else f'{value:.1f}'


COLUMNS = (
    Column('work', 'work'),
    Column('calls', 'calls', plain, right=True),
    Column('policy', 'policy'),
    Column('budget', 'budget', plain, right=True),
    Column('refusals', 'refusals', plain, right=True),
    Column('plain_call_seconds', 'plain/call', microseconds, right=True),
    Column('recorded_call_seconds', 'recorded/call', microseconds, right=True),
    Column('recorded_ratio', 'recorded/plain', times, right=True),
    Column('recorded_half', 'middle half', lambda value: f'{value[0]:.1f} to {value[1]:.1f}', right=True),
    Column('trace_seconds', 'trace', seconds, right=True),
    Column('planned_seconds', 'planned', seconds, right=True),
    Column('run_call_seconds', 'run/call', microseconds, right=True),
    Column('run_ratio', 'run/plain', times, right=True),
    Column('run_half', 'middle half', lambda value: f'{value[0]:.1f} to {value[1]:.1f}', right=True),
    Column('bits', 'bits'),
)
EXPONENTS = (
    Column('work', 'work'),
    Column('budget', 'budget'),
    Column('policy', 'policy'),
    Column('calls', 'calls'),
    *(Column(f'{way}_exponent', way, lambda value: f'n^{value:.2f}', right=True)
      for way in ('plain', 'recorded', 'planned', 'run')),
)


def main() -> None:
    arguments = parse_arguments()
    runner = Runner(arguments.limit, lambda text: print(text, flush=True))
    rows = [row for series in series_of(arguments) for row in runner.run_series(series)]
    exponents = exponents_of(rows)
    title = f'Calls with next to no work beside plain Chainer, {arguments.pairs} pairs'
    publish(Table(COLUMNS, rows, title), arguments, {'exponents': exponents})
    if exponents:
        print('\n' + Table(EXPONENTS, exponents, 'Fastest time over calls, as a power of their number').to_text())
    if arguments.plot:
        draw(rows, arguments.plot)
        print(f'  plot: {arguments.plot}')


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument('--works', nargs='+', choices=sorted(WORKS), default=sorted(WORKS), metavar='NAME',
                        help=', '.join(sorted(WORKS)) + ' (all)')
    parser.add_argument('--policies', nargs='+', default=['keep', 'pooch', 'swap-all', 'tensor-cache'], metavar='NAME',
                        help='values of chainer.config.ooc; thin-stack takes pooch and swap-all of them (%(default)s)')
    parser.add_argument('--calls', nargs='+', type=positive, default=[50, 100, 200, 400, 800], metavar='N',
                        help='(%(default)s)')
    parser.add_argument('--array-bytes', type=positive, default=4096, metavar='BYTES',
                        help='each map of a chain, and of others as a measure (%(default)s)')
    parser.add_argument('--share', type=float, default=0.3, metavar='X',
                        help='of what the program does not hold of the in-core peak: the short budget (%(default)s)')
    parser.add_argument('--pairs', type=positive, default=7, metavar='N', help='timed pairs (%(default)s)')
    parser.add_argument('--limit', type=float, default=30.0, metavar='SECONDS', help='for each phase of a row (30)')
    parser.add_argument('--plot', type=pathlib.Path, metavar='FILE', help='draw time over calls there')
    return parser.parse_args()


def series_of(arguments: argparse.Namespace) -> Iterable[list[dict[str, Any]]]:
    """What is measured: lists of rows that differ in size alone, the smallest first."""
    shared = {'pairs': arguments.pairs, 'limit_seconds': arguments.limit}
    for work in arguments.works:
        trees = work == 'thin-stack'
        sizes = TREES if trees else [Size(calls, arguments.array_bytes) for calls in sorted(arguments.calls)]
        for share in SHARES.get(work, lambda short: [short])(arguments.share):
            for policy in arguments.policies:
                if trees and policy not in ('pooch', 'swap-all'):
                    continue
                yield [{'work': work, 'size': dataclasses.asdict(size), 'policy': policy, 'share': share,
                        'min_bytes': MIN_BYTES.get(work, 0), **shared} for size in sizes]


# --- one row ---------------------------------------------------------------------------------------------------------


class Runner:
    """Runs workers, and ends those that take too long.

    Args:
        limit_seconds: What a phase of a row may take.
        show: Takes a line of text for each row as it is done.
    """

    def __init__(self, limit_seconds: float, show: Any = print) -> None:
        self._limit_seconds = limit_seconds
        self._show = show

    def run_series(self, series: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Measures rows in turn, until one of them takes too long."""
        rows = []
        for asked in series:
            row = self.run(asked)
            rows.append(row)
            self._show('  '.join(column.cell(row) for column in COLUMNS))
            if row['over'] is not None:
                break
        return rows

    def run(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Measures one row in a process of its own."""
        lines, over = self._lines(asked)
        return summarize(asked, lines, over)

    def _lines(self, asked: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
        """What a worker says, and the phase in which it was ended if it was."""
        lines: list[dict[str, Any]] = []
        phase, until = 'start', time.monotonic() + self._limit_seconds
        command = [sys.executable, str(WORKER), json.dumps(asked)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            arriving: queue.SimpleQueue[str | None] = queue.SimpleQueue()
            reader = threading.Thread(target=_pass_on, args=(worker.stdout, arriving), daemon=True)
            reader.start()
            try:
                while (text := arriving.get(timeout=max(0.0, until - time.monotonic()))) is not None:
                    lines.append(json.loads(text))
                    if 'begin' in lines[-1]:
                        phase, until = lines[-1]['begin'], time.monotonic() + self._limit_seconds
            except queue.Empty:
                worker.kill()
                return lines, phase
            finally:
                reader.join()
        if worker.returncode:
            lines.append({'error': f'exit status {worker.returncode} in phase {phase}'})
        return lines, None


def _pass_on(stream: Any, arriving: Any) -> None:
    for line in stream:
        arriving.put(line)
    arriving.put(None)


def summarize(asked: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], over: str | None) -> dict[str, Any]:
    """Makes a row of the table of what a worker said.

    Args:
        asked: What was measured.
        lines: What it said.
        over: The phase in which it was ended, or None.
    """
    peak_bytes = _last(lines, 'peak_bytes')
    budget_bytes = _last(lines, 'budget_bytes')
    row = {
        'work': asked['work'], 'policy': asked['policy'], 'size': asked['size'], 'calls': _last(lines, 'calls'),
        'share': asked['share'], 'peak_bytes': peak_bytes, 'budget_bytes': budget_bytes, 'over': over,
        'budget': 'default' if asked['share'] is None else budget_bytes and (
            f'{megabytes(budget_bytes)}' if budget_bytes >= 1e7 else f'{budget_bytes / 1e3:,.0f} kB'),
        'refusals': sum('refused_bytes' in line for line in lines), 'error': _last(lines, 'error'),
        'bits': 'DIFFERENT' if any(line.get('different') for line in lines) else 'equal',
    }
    for phase in ('recorded', 'run'):
        pairs = [line for line in lines if line.get('phase') == phase]
        pairs = [line for line in pairs if not line['warm_up']] or pairs  # the first where there was time for no other
        if pairs:
            row.update(_figures(phase, row['calls'], PairedSeconds(
                tuple(line['plain_seconds'] for line in pairs), tuple(line['ooc_seconds'] for line in pairs))))
    traced = [line['trace_seconds'] for line in lines if 'trace_seconds' in line]
    if traced:
        row['trace_seconds'] = statistics.median(traced)
    row['planned_seconds'] = row['planned_fastest_seconds'] = _last(lines, 'planned_seconds')
    if over is not None or row['error'] is not None:
        left = [phase for phase in ('recorded', 'run') if f'{phase}_ratio' not in row]
        why = f'over {asked["limit_seconds"]:g} s ({over})' if over is not None else str(row['error'])
        row.update({f'{phase}_ratio': why for phase in left[:1]})
    return row


def _figures(phase: str, calls: int, paired: PairedSeconds) -> dict[str, Any]:
    figures = {
        f'{phase}_seconds': statistics.median(paired.second), f'{phase}_ratio': paired.ratio,
        f'{phase}_half': paired.middle_half, f'all_{phase}_seconds': paired.second,
        f'all_{phase}_plain_seconds': paired.first, 'plain_seconds': statistics.median(paired.first),
        f'{phase}_fastest_seconds': min(paired.second), 'plain_fastest_seconds': min(paired.first)}
    figures[f'{phase}_call_seconds'] = figures[f'{phase}_seconds'] / calls
    figures['plain_call_seconds'] = figures['plain_seconds'] / calls
    return figures


def _last(lines: Sequence[Mapping[str, Any]], key: str) -> Any:
    return next((line[key] for line in reversed(lines) if key in line), None)


# --- how time grows --------------------------------------------------------------------------------------------------


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """The power that fits points best: least squares on logarithms; None for fewer than two points."""
    if len({x for x, _ in points}) < 2:
        return None
    logarithms = [(math.log(x), math.log(y)) for x, y in points]
    return statistics.linear_regression(*zip(*logarithms, strict=True)).slope


def lines_of(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], list[Mapping[str, Any]]]:
    """Rows of chains by work, budget and policy."""
    lines: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row['work'] != 'thin-stack':
            budget = 'default' if row['share'] is None else 'short'
            lines.setdefault((row['work'], budget, row['policy']), []).append(row)
    return lines


def _points(line: Sequence[Mapping[str, Any]], way: str) -> list[tuple[float, float]]:
    """Time over calls. The fastest iterations count: others on the machine can only add."""
    return [(row['calls'], row[f'{way}_fastest_seconds']) for row in line if row.get(f'{way}_fastest_seconds')]


def exponents_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How the time of each line of rows grows with the number of calls."""
    table = []
    for (work, budget, policy), line in lines_of(rows).items():
        entry: dict[str, Any] = {'work': work, 'budget': budget, 'policy': policy}
        for way in ('plain', 'recorded', 'planned', 'run'):
            points = _points(line, way)
            entry[f'{way}_exponent'] = exponent(points)
            if way == 'recorded' and points:
                entry['calls'] = f'{points[0][0]} to {points[-1][0]}'
        table.append(entry)
    return [entry for entry in table if entry['recorded_exponent'] is not None]


def draw(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Draws a panel per work and budget: time over calls, recorded with a full line and run with a broken one.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: There are no rows of chains.
    """
    lines = lines_of(rows)
    panels = list(dict.fromkeys(key[:2] for key in lines))
    if not panels:
        raise ValueError('no times over calls to draw; measure at least one of the works chain, variables and arrays')
    figure = new_figure(2.8 * len(panels) + 2.0, 3.8)
    for axes, panel in zip(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels, strict=True):
        tidy(axes)
        axes.grid(axis='x', color=PALE, linewidth=0.8)
        mine = {policy: line for (*key, policy), line in lines.items() if tuple(key) == panel}
        for number, (policy, line) in enumerate(mine.items()):
            colour, mark = STYLES.get(policy, (GREY, 'x'))
            if not number:
                _plot(axes, line, 'plain', GREY, '', ':', 'plain')
            _plot(axes, line, 'recorded', colour, mark, '-', f'{policy}, recorded')
            _plot(axes, line, 'run', colour, mark, '--', f'{policy}, run')
        axes.set_xscale('log')
        axes.set_yscale('log')
        ticks = sorted({row['calls'] for line in mine.values() for row in line if row['calls']})
        axes.set_xticks(ticks, [str(each) for each in ticks])
        axes.minorticks_off()
        axes.set_xlabel('forward calls')
        axes.set_title(f'{panel[0]}, {panel[1]} budget', fontsize=10)
    figure.axes[0].set_ylabel('fastest iteration [s]')
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc='outside right upper', fontsize=8, frameon=False)
    save(figure, path)


def _plot(axes: Any, line: Sequence[Mapping[str, Any]], way: str, colour: str, mark: str, style: str,
          label: str) -> None:
    points = _points(line, way)
    if points:
        axes.plot(*zip(*points, strict=True), color=colour, marker=mark, linestyle=style, linewidth=1.2, markersize=4,
                  label=label)


if __name__ == '__main__':
    main()
