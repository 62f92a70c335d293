"""Trains the same network in-core and out-of-core and puts the results beside each other.

Each training has a process of its own, so that one's memory is not counted for the other; they run one after the other,
with the same seeds. Times of two runs one after the other waver with what else the machine does:
`benchmarks/overhead.py` takes turns in one process and gives better ones.
"""
from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence

from chainer_ooc.quantities import counted
from comparison_table import compare, comparison_row, loss_table, sideways
from options import Options
from status_line import StatusLine
from training_run import Outcome, TrainingRun
from watched_run import run_watched

DEFAULT_POLICY = 'auto'


def compare_trainings(options: Options) -> bool:
    """Runs the trainings of `--compare` and shows how they compare.

    Args:
        options: Of the out-of-core training; the in-core ones have the same without policy, budget and wall.

    Returns:
        bool: Whether they gave the same losses and parameters to the last bit.
    """
    status = StatusLine()
    status.say(f'{options.title}: {counted(options.iterations, "iteration")} in-core, then out-of-core')
    ooc = dataclasses.replace(options, policy=options.policy or DEFAULT_POLICY)
    reference = run_and_say('in-core', in_core(options), options.out, status)
    same = run_with_workspace(options, status)
    run = run_and_say(ooc.policy, ooc, options.out, status)
    return show_comparison([reference, *same, run], reference, options, status)


def in_core(options: Options) -> Options:
    """The same training in plain Chainer with all the memory it wants."""
    return dataclasses.replace(options, policy=None, budget=None, workspace=None, spill_dir=None, wall_bytes=None)


def run_with_workspace(options: Options, status: StatusLine) -> list[TrainingRun]:
    """Runs the training whose losses an out-of-core one must have, where that is not plain Chainer; else nothing."""
    if options.workspace is None:
        return []
    keep = dataclasses.replace(in_core(options), policy='keep', workspace=options.workspace)
    return [run_and_say(f'in-core, workspace {options.workspace}', keep, options.out, status)]


def run_and_say(name: str, options: Options, folder: pathlib.Path, status: StatusLine) -> TrainingRun:
    """Runs one training, with a line that moves while it does and a line that stays when it ended."""
    run = run_watched(name, options, folder, status.show)
    if run.outcome is Outcome.FINISHED:
        status.say(f'  {name}: finished, {counted(len(run.iterations), "iteration")} in {run.ended_seconds:.0f} s, '
                   f'peak memory {run.peak_bytes / 1e6:,.0f} MB')
    else:
        status.say(f'  {name}: {run.message}')
    if run.outcome is Outcome.FAILED:
        status.say(f'  what it printed is in {folder / name}.log')
    return run


def show_comparison(runs: Sequence[TrainingRun], reference: TrainingRun, options: Options, status: StatusLine) -> bool:
    """Prints the tables and writes `comparison.json` and `memory.png` into the folder of the options.

    Returns:
        bool: Whether every run that finished gave the same as the reference, and the reference finished.
    """
    same = next((run for run in runs if run.policy == 'keep'), reference)
    status.say('\n' + sideways(compare(runs, reference, f'{options.title}, momentum SGD', same)))
    status.say('  s/iteration: median without the first, which is profiled; memory: resident, at its largest')
    if any(run.iterations for run in runs):
        status.say('\n' + loss_table(runs).to_text() + '\n')
    rows = [comparison_row(run, reference, same) for run in runs]
    write_results(runs, rows, options, status)
    alike = [row['losses_equal'] is not False and row['parameters_equal'] is not False for row in rows]
    return reference.outcome is Outcome.FINISHED and all(alike)


def write_results(runs: Sequence[TrainingRun], rows: list[dict[str, object]], options: Options,
                  status: StatusLine) -> None:
    """Writes the figures as JSON and the memory over time as a PNG, and says where."""
    from memory_plot import draw_memory

    results = options.out / 'comparison.json'
    results.write_text(json.dumps({
        'training': options.title, 'seed': options.seed, 'rows': rows,
        'runs': [run.to_json() for run in runs]}, indent=1))
    status.say(f'figures: {results}')
    picture = options.out / 'memory.png'
    try:
        draw_memory(runs, picture, f'Training {options.title}')
    except ImportError as error:
        status.say(f'no picture: {error}')
    else:
        status.say(f'memory over time: {picture}')
