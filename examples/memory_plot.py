r"""Memory over time: in-core in the upper panel, out-of-core in the lower one, both on the same scales.

    MB |      /\    /\
       |   __/  \__/  \   in-core, no wall
       |- - - - - - - - - - - - - - - - - - wall
       |     x  MemoryError
       +------------------------- s
    MB |- - - - - - - - - - - - - - - - - - wall
       |  ../\../\..              out-of-core
       +------------------------- s

What is drawn is resident private memory (RssAnon). The wall limits what a process has asked for, which is a little
more, so a curve that breaks off at its wall ends somewhat below it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

from chainer_ooc.report.figure import BLUE, GREY, ORANGE, new_figure, save, tidy
from training_run import MemorySample, Outcome, TrainingRun

_MB = 1e6


def draw_memory(runs: Sequence[TrainingRun], path: str | os.PathLike[str], title: str) -> None:
    """Draws the memory of some trainings over time into a file.

    Args:
        runs: The trainings; the in-core ones go to the upper panel, the others to the lower one.
        path: The file; its suffix (``.png``, ``.svg``, ``.pdf``) is the format.
        title: What stands above both panels.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: None of the runs has a sample.
    """
    sampled = [run for run in runs if run.samples]
    if not sampled:
        raise ValueError('no memory to draw: none of the runs was sampled; pass runs that were watched while they ran')
    panels = [panel for panel in (
        ('In-core', [run for run in sampled if run.is_in_core], ORANGE),
        ('Out-of-core', [run for run in sampled if not run.is_in_core], BLUE),
    ) if panel[1]]
    figure = new_figure(9, 1.2 + 2.7 * len(panels))
    grid = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, (heading, shown, colour) in zip(grid, panels, strict=True):
        _draw_panel(axes, shown, colour)
        axes.set_title(heading, loc='left', fontsize=11, color=colour, fontweight='bold')
        axes.set_ylabel('private memory [MB]')
    _draw_walls(grid, sampled)
    top = max(sample.resident_bytes for run in sampled for sample in run.samples)
    grid[0].set_ylim(0, 1.18 * max(top, *(run.wall_bytes or 0 for run in sampled)) / _MB)
    grid[0].set_xlim(min(0.0, *(run.samples[0].at_seconds for run in sampled)), None)
    grid[-1].set_xlabel('time since training began [s]')
    figure.suptitle(title, fontsize=12)
    save(figure, path)


def _draw_panel(axes: Any, runs: Sequence[TrainingRun], colour: str) -> None:
    """Draws the runs of one panel: those that finished filled, the first of them with its iterations."""
    tidy(axes)
    axes.yaxis.set_major_formatter('{x:,.0f}')
    finished = [run for run in runs if run.outcome is Outcome.FINISHED]
    for run, style in zip(finished, itertools.cycle(('-', '--', ':')), strict=False):
        at, megabytes = _curve(run.samples)
        axes.plot(at, megabytes, color=colour, linestyle=style, linewidth=1.4, label=_legend(run))
        axes.fill_between(at, megabytes, color=colour, alpha=0.12, linewidth=0)
    for run in runs:
        if run.outcome is not Outcome.FINISHED:
            _draw_death(axes, run)
    if finished:
        _mark_iterations(axes, finished[0])
    axes.legend(loc='lower right', bbox_to_anchor=(1.0, 1.0), ncols=len(runs), fontsize=9, frameon=False, borderpad=0)


def _draw_death(axes: Any, run: TrainingRun) -> None:
    """Draws a run that died up to its largest sample, which was the last before it was torn down."""
    largest = max(range(len(run.samples)), key=lambda place: run.samples[place].resident_bytes)
    at, megabytes = _curve(run.samples[:largest + 1])
    axes.plot(at, megabytes, color='black', linewidth=1.8, label=_legend(run))
    axes.plot(at[-1:], megabytes[-1:], 'x', color='black', markersize=11, markeredgewidth=2.5)
    axes.annotate(f'{run.outcome.value} in iteration {len(run.iterations) + 1}', (at[-1], megabytes[-1]),
                  xytext=(10, -4), textcoords='offset points', va='top', fontsize=9, fontweight='bold',
                  bbox={'facecolor': 'white', 'alpha': 0.8, 'linewidth': 0, 'pad': 1})


def _curve(samples: Sequence[MemorySample]) -> tuple[list[float], list[float]]:
    """Times in seconds and memory in MB."""
    return [sample.at_seconds for sample in samples], [sample.resident_bytes / _MB for sample in samples]


def _legend(run: TrainingRun) -> str:
    return f'{run.name} (at most {max(sample.resident_bytes for sample in run.samples) / _MB:,.0f} MB)'


def _mark_iterations(axes: Any, run: TrainingRun) -> None:
    """Draws a thin line where each iteration ends, and its number between two lines."""
    place = axes.get_xaxis_transform()
    word = 'iteration ' if len(run.iterations) <= 6 else ''
    for number, iteration in enumerate(run.iterations, start=1):
        axes.axvline(iteration.end_seconds, color=GREY, linewidth=0.6, linestyle=':', zorder=0)
        middle = (iteration.start_seconds + iteration.end_seconds) / 2
        axes.text(middle, 0.02, f'{word}{number}', transform=place, ha='center', va='bottom', fontsize=8, color=GREY)


def _draw_walls(grid: Sequence[Any], runs: Sequence[TrainingRun]) -> None:
    """Draws each wall across all panels."""
    for wall_bytes in sorted({run.wall_bytes for run in runs if run.wall_bytes is not None}):
        for axes in grid:
            axes.axhline(wall_bytes / _MB, color='black', linewidth=1.4, linestyle=(0, (6, 3)))
            axes.annotate(f'wall\n{wall_bytes / _MB:,.0f} MB', (1.0, wall_bytes / _MB), xytext=(4, 0), va='center',
                          xycoords=('axes fraction', 'data'), textcoords='offset points', fontsize=9)
