"""A report as a still picture: memory over the iteration, stacked, above the lanes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from chainer_ooc.report.contents import LANES, Report
from chainer_ooc.report.figure import BLUE, GREY, ORANGE, PALE, new_figure, save, tidy
from chainer_ooc.report.memory import GRADIENTS, OTHERS, PARAMETERS, SCRATCH
from chainer_ooc.simulate.timeline import Stream, Timeline

_KINDS = {PARAMETERS: '#8a929b', GRADIENTS: '#c9789f', OTHERS: '#c3c8ce', SCRATCH: '#e8a33d'}
#: Of blocks, dark to light, which greys keep apart.
_RAMP = ('#44337a', '#3a568c', '#2b748e', '#20918c', '#2fb07f', '#73d056', '#c8e020')
_BACKWARD = '#6cb8e6'
_AGAIN = '#8a5fb0'
_WAIT = {'facecolor': ORANGE, 'edgecolor': PALE, 'hatch': '///', 'linewidth': 0}
_RUNS_AGAIN = {'facecolor': _AGAIN, 'edgecolor': PALE, 'hatch': '...', 'linewidth': 0}


@dataclass(frozen=True)
class _Unit:
    """What amounts of a picture are shown in."""

    nbytes: int
    name: str
    digits: int

    @staticmethod
    def of(nbytes: int) -> _Unit:
        return _Unit(10**9, 'GB', 2) if nbytes >= 10**9 else _Unit(10**6, 'MB', 0)

    def text(self, nbytes: int) -> str:
        return f'{nbytes / self.nbytes:,.{self.digits}f} {self.name}'


def draw(report: Report, path: str | os.PathLike[str]) -> None:
    """Draws the shown course into a file; its suffix (``.png``, ``.svg``, ``.pdf``) is the format.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is no such format.
        OSError: the file cannot be written.
    """
    has_measured = report.measured is not None and bool(report.measured.tasks)
    figure = new_figure(11, 6.6 if has_measured else 5.6)
    memory, lanes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.6 if has_measured else 1))
    unit = _Unit.of(report.course.plan.budget_bytes)
    _draw_memory(memory, report, unit)
    rows = [('predicted', report.course.timeline)]
    if report.measured is not None and has_measured:
        rows.append(('measured', report.measured))
    _draw_lanes(lanes, rows, len(report.trace.calls))
    end = max(timeline.seconds for _, timeline in rows)
    lanes.set_xlim(0, end or 1)
    lanes.set_xlabel('time in the iteration [s]')
    figure.suptitle(f'{report.title}: {report.policy} within {unit.text(report.course.plan.budget_bytes)}', fontsize=12)
    save(figure, path)


def _draw_memory(axes: Any, report: Report, unit: _Unit) -> None:
    tidy(axes)
    timeline, blocks = report.course.timeline, [each for each in report.blocks.names if each != OTHERS]
    step = (len(_RAMP) - 1) / max(1, len(blocks) - 1)
    ramp = {name: _RAMP[round(number * step)] for number, name in enumerate(blocks)}
    edges = [*timeline.starts(), timeline.seconds]
    layers = [[each / unit.nbytes for each in (*kind.nbytes, kind.nbytes[-1])] for kind in report.course.kinds]
    names = [kind.name for kind in report.course.kinds]
    axes.stackplot(edges, layers, step='post', labels=names, colors=[_KINDS.get(each) or ramp[each] for each in names])
    if report.measured is not None and report.measured.near_bytes:
        axes.plot(report.measured.starts(), [each / unit.nbytes for each in report.measured.near_bytes], color='black',
                  linewidth=1.4, drawstyle='steps-post', label='measured')
    budget_bytes = report.course.plan.budget_bytes
    budget = budget_bytes / unit.nbytes
    axes.axhline(budget, color='black', linewidth=1.2, linestyle=(0, (6, 3)))
    axes.annotate(f'budget\n{unit.text(budget_bytes)}', (1.0, budget), xytext=(4, 0), va='center', fontsize=9,
                  xycoords=('axes fraction', 'data'), textcoords='offset points')
    axes.set_ylabel(f'near memory [{unit.name}]')
    axes.yaxis.set_major_formatter('{x:,g}')
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc='upper left', bbox_to_anchor=(1.0, 0.85), frameon=False, fontsize=9)


def _draw_lanes(axes: Any, rows: list[tuple[str, Timeline]], forward: int) -> None:
    """Draws a row for each stream; in that of computations what runs again and waits are hatched."""
    axes.spines[['top', 'right', 'left']].set_visible(False)
    names: list[str] = []
    for title, timeline in rows:
        for stream, label in LANES.items():
            place = -len(names)
            names.append(f'{title}: {label}' if len(rows) > 1 else label)
            tasks = list(timeline.of(stream))
            bars = [(each.start_seconds, each.end_seconds - each.start_seconds) for each in tasks]
            colours = [BLUE if each.subject < forward else _BACKWARD for each in tasks]
            axes.broken_barh(bars, (place - 0.4, 0.8), facecolors=colours if stream is Stream.COMPUTE else GREY)
            if stream is Stream.COMPUTE:
                again = [(each.start_seconds, each.recomputed_seconds) for each in tasks if each.recomputed_seconds]
                waits = [(start_seconds, each.seconds) for each, start_seconds in timeline.waits()]
                for stretches, shown in (again, _RUNS_AGAIN), (waits, _WAIT):
                    if stretches:
                        axes.broken_barh(stretches, (place - 0.4, 0.8), **shown)
    axes.set_yticks([-each for each in range(len(names))], names, fontsize=9)
    axes.tick_params(axis='y', length=0)
    _explain_lanes(axes)


def _explain_lanes(axes: Any) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=BLUE, label='forward'), Patch(color=_BACKWARD, label='backward'),
               Patch(**_RUNS_AGAIN, label='runs again'), Patch(**_WAIT, label='wait'),
               Patch(color=GREY, label='copy')]
    axes.legend(handles=handles, loc='center left', bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
