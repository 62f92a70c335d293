"""A comparison of trainings: what each one needed, and whether they computed the same to the last bit.

Memory and time are held against one reference, plain Chainer. Losses and parameters are held against it too, or against
another run where a workspace is set: splitting a convolution changes the order of its sums, for in-core and out-of-core
runs alike. Losses are the same when all that both runs have are equal bit by bit; parameters are compared only
when both finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chainer_ooc.report.table import Column, Table, megabytes, percent, plain, seconds
from training_run import Outcome, TrainingRun

COLUMNS = (
    Column('name', 'run'),
    Column('wall_bytes', 'wall', megabytes, right=True),
    Column('outcome', 'outcome'),
    Column('peak_bytes', 'peak memory', megabytes, right=True),
    Column('peak_ratio', 'of plain Chainer', lambda value: f'{value:.0%}'.replace('%', ' %'), right=True),
    Column('seconds_per_iteration', 's/iteration', seconds, right=True),
    Column('overhead', 'overhead', percent, right=True),
    Column('swapped_out_bytes', 'swapped out/iteration', megabytes, right=True),
    Column('swapped_in_bytes', 'swapped in/iteration', megabytes, right=True),
    Column('faults', 'faults', plain, right=True),
    Column('losses_equal', 'losses', lambda equal: 'equal' if equal else 'DIFFERENT'),
    Column('parameters_equal', 'parameters', lambda equal: 'equal' if equal else 'DIFFERENT'),
)


def compare(runs: Sequence[TrainingRun], reference: TrainingRun, title: str = '',
            same: TrainingRun | None = None) -> Table:
    """Makes one row per run.

    Args:
        runs: What is shown, in this order.
        reference: What memory and time of the others are held against.
        title: The line above the table.
        same: What their losses and parameters are held against; the reference when not given.
    """
    return Table(COLUMNS, [comparison_row(run, reference, same) for run in runs], title)


def sideways(table: Table) -> str:
    """A table's text with a line per column and a column per row, for a few rows with many figures each."""
    heading, *lines = zip(*table.cells(), strict=True)
    widths = [max(map(len, cells)) for cells in zip(heading, *lines, strict=True)]
    return '\n'.join([table.title] * bool(table.title) + [
        '  '.join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in (heading, ['-' * width for width in widths], *lines)])


def comparison_row(run: TrainingRun, reference: TrainingRun, same: TrainingRun | None = None) -> dict[str, Any]:
    """The figures of one run; None where a run did not get far enough to have one, or has nothing to be held against.

    Runs that are held against `same` are those with its workspace: without one given, all.
    """
    same = same or reference
    comparable = run is not same and run.workspace == same.workspace
    beside = run is not reference and finished(run, reference)
    last = run.iterations[-1] if run.iterations and not run.is_in_core else None
    return {
        'name': run.name,
        'policy': run.policy,
        'wall_bytes': run.wall_bytes,
        'outcome': run.outcome.value,
        'peak_bytes': run.peak_bytes or None,
        'peak_ratio': run.peak_bytes / reference.peak_bytes if beside and reference.peak_bytes else None,
        'seconds_per_iteration': run.median_seconds,
        'overhead': overhead(run, reference) if beside else None,
        'swapped_out_bytes': last.swapped_out_bytes if last else None,
        'swapped_in_bytes': last.swapped_in_bytes if last else None,
        'faults': sum(iteration.faults for iteration in run.iterations) if last else None,
        'losses': list(run.losses),
        'losses_equal': losses_equal(run, same) if comparable else None,
        'parameters_equal': run.parameters == same.parameters if comparable and finished(run, same) else None,
    }


def finished(*runs: TrainingRun) -> bool:
    """Whether all of these went through."""
    return all(run.outcome is Outcome.FINISHED for run in runs)


def overhead(run: TrainingRun, reference: TrainingRun) -> float | None:
    """How much longer an iteration takes: 0.05 is five percent; None when one of them has no time."""
    if run.median_seconds is None or not reference.median_seconds:
        return None
    return run.median_seconds / reference.median_seconds - 1


def losses_equal(run: TrainingRun, reference: TrainingRun) -> bool | None:
    """Whether the iterations that both runs have gave the same losses to the last bit; None when there are none."""
    pairs = list(zip(run.losses, reference.losses, strict=False))
    return all(mine == other for mine, other in pairs) if pairs else None


def loss_table(runs: Sequence[TrainingRun]) -> Table:
    """The losses of the runs beside each other, to the last bit."""
    shown = [run for run in runs if run.iterations]
    columns = [Column('iteration', 'iteration', right=True), Column('loss', 'loss', '{:.6f}'.format, right=True)]
    columns += [Column(run.name, run.name) for run in shown]
    rows = []
    for number in range(max((len(run.iterations) for run in shown), default=0)):
        losses = {run.name: run.losses[number] for run in shown if number < len(run.iterations)}
        rows.append({'iteration': number + 1, 'loss': float.fromhex(next(iter(losses.values()))), **losses})
    return Table(columns, rows, 'Losses to the last bit')
