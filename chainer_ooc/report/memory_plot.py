r"""Memory over time: plain Chainer in the upper panel, out-of-core in the lower one, both on the same scales.

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

from chainer_ooc.report.figure import BLUE, GREY, ORANGE, PALE, new_figure, save, tidy
from chainer_ooc.report.values import Outcome, TrainingRun

_MB = 1e6


def draw_memory(runs: Sequence[TrainingRun], path: str | os.PathLike[str], title: str) -> None:
    """Draws the memory of some trainings over time into a file.

    Args:
        runs: The trainings; those without a policy go to the upper panel, the others to the lower one.
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
        ('Plain Chainer (in-core)', [run for run in sampled if run.policy is None], ORANGE),
        ('Out-of-core', [run for run in sampled if run.policy is not None], BLUE),
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
    """Draws the runs of one panel: the first finished one filled, with its iterations; deaths as crosses."""
    tidy(axes)
    finished = [run for run in runs if run.outcome is Outcome.FINISHED]
    for run, style in zip(runs, itertools.cycle(('-', '--', ':')), strict=False):
        at = [sample.at_seconds for sample in run.samples]
        megabytes = [sample.resident_bytes / _MB for sample in run.samples]
        dead = run.outcome is not Outcome.FINISHED
        axes.plot(at, megabytes, color=GREY if dead else colour, linestyle=style, linewidth=1.6, label=_legend(run))
        if finished and run is finished[0]:
            axes.fill_between(at, megabytes, color=colour, alpha=0.12, linewidth=0)
        if dead:
            axes.plot(at[-1:], megabytes[-1:], 'x', color='black', markersize=11, markeredgewidth=2.5)
            axes.annotate(f'{run.outcome.value} in iteration {len(run.iterations) + 1}', (at[-1], megabytes[-1]),
                          xytext=(11, -3), textcoords='offset points', fontsize=9, fontweight='bold')
    if finished:
        _mark_iterations(axes, finished[0])
    axes.legend(loc='upper right', fontsize=9, frameon=True, framealpha=0.9, edgecolor=PALE)


def _legend(run: TrainingRun) -> str:
    return f'{run.name}: peak {max(sample.resident_bytes for sample in run.samples) / _MB:,.0f} MB'


def _mark_iterations(axes: Any, run: TrainingRun) -> None:
    """Draws a thin line where each iteration ends, and its number between two lines."""
    place = axes.get_xaxis_transform()
    for number, iteration in enumerate(run.iterations, start=1):
        axes.axvline(iteration.end_seconds, color=GREY, linewidth=0.6, linestyle=':', zorder=0)
        middle = (iteration.start_seconds + iteration.end_seconds) / 2
        axes.text(middle, 0.02, f'{number}', transform=place, ha='center', va='bottom', fontsize=8, color=GREY)


def _draw_walls(grid: Sequence[Any], runs: Sequence[TrainingRun]) -> None:
    """Draws each wall across all panels."""
    for wall_bytes in sorted({run.wall_bytes for run in runs if run.wall_bytes is not None}):
        for axes in grid:
            axes.axhline(wall_bytes / _MB, color='black', linewidth=1.4, linestyle=(0, (6, 3)))
            axes.annotate(f'wall {wall_bytes / _MB:,.0f} MB', (1.0, wall_bytes / _MB), xytext=(-4, 3),
                          xycoords=('axes fraction', 'data'), textcoords='offset points', ha='right', fontsize=9)
