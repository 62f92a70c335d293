"""Trainings in processes of their own: the same with and without out-of-core, and the search for a limit among them."""
from __future__ import annotations

import argparse
import pathlib
import tempfile
from collections.abc import Callable

from chainer_ooc.report.values import Outcome, TrainingRun
from options import Options
from status_line import StatusLine
from watched_run import run_watched

STATUS = StatusLine()


def probe(name: str, options: Options) -> TrainingRun:
    """Runs one training that may be too large for its memory.

    Raises:
        RuntimeError: It ended neither well nor for lack of memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = run_watched(name, options, pathlib.Path(folder), STATUS.show)
    if run.outcome is Outcome.FAILED and not is_refusal(run):
        raise RuntimeError(f'{name} failed: {run.message}; run it alone: train_imagenet.py '
                           + ' '.join(options.to_arguments()))
    how = 'refused' if is_refusal(run) else run.outcome.value
    STATUS.say(f'  {name}: {how}, peak memory {run.peak_bytes / 1e6:,.0f} MB')
    return run


def measured(name: str, options: Options) -> TrainingRun:
    """Runs one training that must go through.

    Raises:
        RuntimeError: It did not.
    """
    run = probe(name, options)
    if run.outcome is not Outcome.FINISHED:
        raise RuntimeError(f'{name} did not go through: {run.message}')
    return run


def is_refusal(run: TrainingRun) -> bool:
    """Whether a training was refused at planning time because no plan keeps within its memory."""
    return 'budget too small' in run.message


def both_ways(arguments: argparse.Namespace, network: str, **more: object) -> tuple[Options, Options]:
    """The options of a training in plain Chainer and out-of-core."""
    plain = Options(arch=network, crop=arguments.crop, iterations=arguments.iterations, **more)
    entries = {'policy': arguments.policy, 'budget': arguments.budget, 'workspace': arguments.workspace,
               'spill_dir': arguments.spill_dir}
    return plain, Options(**{**vars(plain), **entries})


def smallest(works: Callable[[int], bool], low: int, high: int, resolution: int) -> int:
    """Finds the smallest value that works, by halving.

    Args:
        works: Whether a value works; a larger one than one that works does too.
        low: A value that does not work (it is not tried).
        high: The first value to try as one that works; it is doubled until it does.
        resolution: How close to the limit the answer must be; all values tried are multiples of it.

    Returns:
        int: A value that works, while the one a resolution below does not (or is `low`).
    """
    low, high = low // resolution, max(-(-high // resolution), low // resolution + 1)
    while not works(high * resolution):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if works(middle * resolution):
            high = middle
        else:
            low = middle
    return high * resolution
