"""Trainings in processes of their own: the same with and without out-of-core, and the search for a limit among them."""
from __future__ import annotations

import argparse
import pathlib
import tempfile
from collections.abc import Callable

from options import Options
from status_line import StatusLine
from training_run import Outcome, TrainingRun
from watched_run import run_watched

STATUS = StatusLine()


def probe(name: str, options: Options) -> TrainingRun:
    """Runs one training that may be too large for its memory, and says how it ended.

    Close to a limit it is chance what the memory lacks for first: an array (MemoryError), a plan (refused), or a thread
    or a library's buffer (failed). None of these works; the last line that was printed is shown, so that a fault of
    another kind is seen.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = run_watched(name, options, pathlib.Path(folder), STATUS.show)
    why = f' ({run.message})' if run.outcome is Outcome.FAILED else ''
    STATUS.say(f'  {name}: {run.outcome.value}, peak memory {run.peak_bytes / 1e6:,.0f} MB{why}')
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

    Raises:
        RuntimeError: Not even 64 times the first value works.
    """
    low, high = low // resolution, max(-(-high // resolution), low // resolution + 1)
    last = 64 * high
    while not works(high * resolution):
        if high >= last:
            raise RuntimeError(f'nothing works, up to {high * resolution}; the lines above say why')
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if works(middle * resolution):
            high = middle
        else:
            low = middle
    return high * resolution
