"""``chainer-ooc report TRACE|RUN``: an iteration as one page that opens without a network.

The page shows the plan for one budget, and beside it those for others; of a RUN, which a training has written, also
what was measured. On demand the same goes to a file for ui.perfetto.dev, and to a picture.
"""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from chainer_ooc.classify.policies import policy_of
from chainer_ooc.cli import arguments as common
from chainer_ooc.cli import gap
from chainer_ooc.cli.answer import Answer, UsageError, message, trying
from chainer_ooc.cli.prediction import read_trace_or_run, trace_for
from chainer_ooc.cli.stage import stages
from chainer_ooc.errors import InfeasibleBudgetError, OocError
from chainer_ooc.plans.run import Run
from chainer_ooc.problem import problem_of
from chainer_ooc.quantities import format_bytes
from chainer_ooc.report import page, perfetto, still
from chainer_ooc.report.contents import BUDGETS, make_report
from chainer_ooc.report.table import Column, Table, seconds
from chainer_ooc.trace import Trace

HELP = 'write a page with memory, lanes and verdicts of an iteration'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the file, the plans, and what is written."""
    common.add_trace(parser, run=True)
    parser.add_argument('-o', '--out', type=Path, default=Path('report.html'), metavar='FILE',
                        help='the page (%(default)s)')
    parser.add_argument('--policy', type=common.policy, metavar='POLICY',
                        help="a value of chainer.config.ooc (auto; of a run, its own)")
    parser.add_argument('--budget', type=common.budget, metavar='BYTES', help=(
        'near memory of the plan that is shown first, such as 800MB (of a run, its own; else the middle one)'))
    parser.add_argument('--budgets', type=common.several(common.budget), default=[], metavar='B1,B2', help=(
        f'the other budgets ({BUDGETS} from the smallest that works to the one in which everything stays)'))
    common.add_machine_and_batch(parser)
    parser.add_argument('--perfetto', type=Path, metavar='FILE', help=(
        'also write lanes and memory to this file, which ui.perfetto.dev opens'))
    parser.add_argument('--png', type=Path, metavar='FILE', help='also draw them into this picture, with matplotlib')


def run(arguments: argparse.Namespace) -> Answer:
    """Writes the report.

    Raises:
        InfeasibleBudgetError: no plan of the policy keeps within a budget that was named.
        OocError: the trace or run cannot be read, or a file cannot be written.
    """
    ran, trace = _subject(arguments)
    name = arguments.policy or (ran.plan.policy if ran else 'auto')
    if arguments.policy is None and ':' in name:
        raise UsageError(f'the run is of the policy {name!r}, which is no policy of ours, and no file decides what is '
                         f'imported; say --policy {name}')
    own_bytes = ran.plan.budget_bytes if ran and name == ran.plan.policy else None
    problem = problem_of(trace, arguments.budget or own_bytes or 1, ran.min_bytes if ran else arguments.min_bytes)
    taken = [arguments.trace]
    for file in filter(None, (arguments.out, arguments.perfetto, arguments.png)):
        _prepare(file)
        if file.resolve() in [each.resolve() for each in taken]:
            raise UsageError(f'{file} is named twice, as what is read or written: each needs a file of its own')
        taken.append(file)
    try:
        report = make_report(_title(arguments), policy_of(name), problem, arguments.budgets,
                             ran if problem.budget_bytes == own_bytes else None, _progress)
    except InfeasibleBudgetError as error:
        if error.budget_bytes == problem.budget_bytes or error.budget_bytes not in arguments.budgets:
            raise
        raise OocError(message(error, '--budgets')) from None
    _write(arguments.out, lambda file: file.write_text(page.to_html(report), encoding='utf-8'))
    if arguments.perfetto is not None:
        _write(arguments.perfetto, lambda file: file.write_bytes(perfetto.to_bytes(report)))
    if arguments.png is not None:
        _write(arguments.png, lambda file: still.draw(report, file))
    written = [str(each) for each in (arguments.out, arguments.perfetto, arguments.png) if each is not None]
    rows = [{**each.facts(), 'lower_bound_seconds': each.bound_seconds} for each in report.courses]
    facts = {'policy': name, 'shown': report.shown, 'in_core_seconds': report.in_core.seconds,
             'in_core_peak_bytes': report.in_core.peak_bytes,
             'measured_seconds': report.measured.seconds if report.measured else None,
             'measured_peak_bytes': report.measured.peak_bytes if report.measured else None,
             'rows': rows, 'files': written}
    closing = [f'written to {each}' for each in written]
    return Answer(facts, [_table(rows, name)], closing)


def _subject(arguments: argparse.Namespace) -> tuple[Run | None, Trace]:
    """What was read; times and sizes of the trace are those that were asked for."""
    read = read_trace_or_run(arguments.trace)
    if isinstance(read, Run):
        if arguments.machine != common.MEASURED or arguments.batch is not None:
            raise UsageError('a run is of its own machine and batch: leave out --machine and --batch, or name a trace')
        return read, read.trace
    return None, trace_for(read, common.machine_of(arguments), arguments.batch)


def _title(arguments: argparse.Namespace) -> str:
    there = '' if arguments.machine == common.MEASURED else f' on {Path(arguments.machine).stem}'
    batch = f', batch {arguments.batch}' if arguments.batch else ''
    return f'{arguments.trace.stem}{batch}{there}'


def _progress(budgets: Iterable[int]) -> Iterator[int]:
    """Says on a terminal which of them it is at."""
    return stages(budgets, 'planning within', format_bytes)


def _prepare(file: Path) -> None:
    """Fails before the plans are made, not after it, where that can be told.

    Raises:
        OocError: it is a folder, or its folder is not there.
    """
    with _writing(file):
        if file.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not file.absolute().parent.is_dir():
            raise OSError(errno.ENOENT, f'there is no folder {file.absolute().parent}')


def _write(file: Path, write: Callable[[Path], Any]) -> None:
    try:
        with _writing(file):
            write(file)
    except ImportError as error:
        raise OocError(str(error)) from None


def _writing(file: Path) -> AbstractContextManager[None]:
    return trying(f'write to {file}', 'another file', (OSError, ValueError))  # as matplotlib's for an unknown suffix


def _table(rows: list[dict[str, Any]], name: str) -> Table:
    return Table([
        Column('budget_bytes', 'budget', format_bytes, right=True), Column('seconds', 'time', seconds, right=True),
        Column('gap', 'gap', gap.percent_at_most, right=True), Column('stall_seconds', 'stalls', seconds, right=True),
        Column('keep', 'keep', right=True), Column('swap', 'swap', right=True),
        Column('recompute', 'again', right=True)], rows, name)
