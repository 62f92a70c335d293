"""A paper's table as bars: ours filled, what is stated hollow beside it.

A stated range is a hollow bar to its middle with a mark from end to end; a bound is a bar to the bound with an arrow to
the side on which ours should be. A run that does not fit is a cross on the axis. A unit has a panel of its own, in
which each series has a colour and, for prints in grey, a hatch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from chainer_ooc.papers.comparison import ENDS, PaperTable, Row
from chainer_ooc.papers.presentation import heading
from chainer_ooc.report.figure import BLUE, GREY, ORANGE, new_figure, save, tidy

#: Okabe and Ito's colours with hatches that tell them apart in grey.
_LOOKS = ((GREY, ''), (ORANGE, '//'), (BLUE, '..'), ('#009E73', 'xx'), ('#CC79A7', '\\\\'), ('#E69F00', '++'))
_LABELS = {'x': 'ratio', 'share': 'share [%]', 's': 'time [s]', 'MB': 'bytes [MB]', 'GB': 'bytes [GB]',
           'maps': 'feature maps', 'calls': 'calls run again'}
_RANGE = 'ends of the stated range'


def drawable(table: PaperTable) -> list[Row]:
    """The rows that have a place in a figure."""
    return [each for each in table.rows if each.group and each.series and each.unit != 'holds']


def draw_paper_table(table: PaperTable, path: str | os.PathLike[str]) -> None:
    """Draws the rows that have a series and a group into a file, whose suffix is the format.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no row has a series and a group.
    """
    rows = drawable(table)
    if not rows:
        raise ValueError(f'nothing to draw in {heading(table.paper, table.figure)}: no row has a series and a group; '
                         'show it as text')
    units = list(dict.fromkeys(each.unit for each in rows))
    panels = [[each for each in rows if each.unit == unit] for unit in units]
    bars = max(len(_distinct(each.group for each in panel)) * len(_distinct(each.series for each in panel))
               for panel in panels)
    figure = new_figure(min(14.0, max(8.0, 2.0 + 0.3 * bars)), 0.4 + sum(map(_height_inches, panels)))
    grid = figure.subplots(len(units), 1, squeeze=False, height_ratios=[_height_inches(panel) for panel in panels])
    for axes, unit, panel in zip(grid[:, 0], units, panels, strict=True):
        _draw_panel(axes, panel)
        axes.set_xlabel(_RANGE if {each.group for each in panel} <= ENDS else table.axis)
        axes.set_ylabel(_LABELS.get(unit, unit))
    figure.suptitle(f'{heading(table.paper, table.figure)}: {table.title}', fontsize=12)
    save(figure, path)


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _height_inches(rows: Sequence[Row]) -> float:
    """A panel with its legend and axis title; one of few bars is lower."""
    groups, series = len({each.group for each in rows}), len({each.series for each in rows})
    return (3.2 if groups > 2 else 2.2) + 0.1 * series


def _draw_panel(axes: Any, rows: Sequence[Row]) -> None:
    tidy(axes)
    groups, series = _distinct(each.group for each in rows), _distinct(each.series for each in rows)
    width = 0.8 / (2 * max(2, len(series)))
    for row in rows:
        number = series.index(row.series)
        left = groups.index(row.group) - len(series) * width + 2 * number * width
        _draw_ours(axes, row, left + width / 2, width, *_LOOKS[number % len(_LOOKS)])
        if row.is_stated:
            _draw_stated(axes, row, left + 1.5 * width, width, *_LOOKS[number % len(_LOOKS)])
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_ylim(bottom=0)
    axes.margins(y=0.08)
    _add_legend(axes, series, rows)


def _draw_ours(axes: Any, row: Row, middle: float, width: float, colour: str, hatch: str) -> None:
    if row.ours is None:
        if row.out_of_memory:
            axes.plot([middle], [0.0], 'x', color=colour, markersize=7, markeredgewidth=2, clip_on=False, zorder=5)
        return
    axes.bar([middle], [_height(row.ours, row.unit)], width, color=colour, hatch=hatch, edgecolor='white')


def _draw_stated(axes: Any, row: Row, middle: float, width: float, colour: str, hatch: str) -> None:
    low, high = row.stated or (None, None)
    ends = [_height(end, row.unit) for end in (low, high) if end is not None]
    height = sum(ends) / len(ends)
    axes.bar([middle], [height], width, facecolor='white', edgecolor=colour, hatch=hatch, linewidth=1.2)
    if low is None or high is None:
        axes.plot([middle], [height], 'v' if low is None else '^', color='black', markersize=6, zorder=5)
    elif low != high:
        axes.errorbar([middle], [height], [[height - ends[0]], [ends[1] - height]], color='black', capsize=3,
                      linewidth=1.2, zorder=5)


def _height(value: float, unit: str) -> float:
    return value * 100 if unit == 'share' else value


def _add_legend(axes: Any, series: Sequence[str], rows: Sequence[Row]) -> None:
    """A patch for each series, and one for each way of drawing that occurs."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(facecolor=colour, hatch=hatch, edgecolor='white', label=name)
                          for name, (colour, hatch) in zip(series, _LOOKS * len(series), strict=False)]
    if any(each.is_stated for each in rows):
        handles.append(Patch(facecolor='white', edgecolor='black', label='stated (hollow)'))
    if any(each.is_stated and None in (each.stated or ()) for each in rows):
        handles.append(Line2D([], [], color='black', marker='v', linestyle='', label='stated bound'))
    if any(each.ours is None and each.out_of_memory for each in rows):
        handles.append(Line2D([], [], color='black', marker='x', linestyle='', label='ours out of memory'))
    columns = 4 if max(map(len, series)) < 40 else 2
    axes.legend(handles=handles, loc='lower left', bbox_to_anchor=(0.0, 1.0), ncols=columns, fontsize=8, frameon=False,
                borderaxespad=0.2)
