"""A paper's table as bars: ours filled, what is stated hollow beside it.

A stated range is a hollow bar to its middle with a mark from end to end; a bound is a bar to the bound with an arrow to
the side on which ours should be. A run that does not fit is a cross on the axis. Each series has a colour and, for
prints in grey, a hatch. A unit has a panel of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from chainer_ooc.papers.comparison import PaperTable, Row
from chainer_ooc.report.figure import BLUE, GREY, ORANGE, new_figure, save, tidy
from chainer_ooc.report.paper_tables import heading

#: Okabe and Ito's colours with hatches that tell them apart in grey.
_LOOKS = ((GREY, ''), (ORANGE, '//'), (BLUE, '..'), ('#009E73', 'xx'), ('#CC79A7', '\\\\'), ('#E69F00', '++'))
_LABELS = {'x': 'ratio', 'share': 'share [%]', 's': 'time [s]'}


def drawable(table: PaperTable) -> list[Row]:
    """The rows that have a place in a figure."""
    return [each for each in table.rows if each.group and each.series and each.unit != 'holds']


def draw_paper_table(table: PaperTable, path: str | os.PathLike[str]) -> None:
    """Draws the rows that have a series and a group into a file.

    Args:
        table: the table.
        path: the file; its suffix is the format.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no row has a series and a group.
    """
    rows = drawable(table)
    if not rows:
        raise ValueError(f'nothing to draw in {heading(table.paper, table.figure)}: no row has a series and a group; '
                         'show it as text')
    units = list(dict.fromkeys(each.unit for each in rows))
    groups, series = _distinct(each.group for each in rows), _distinct(each.series for each in rows)
    figure = new_figure(max(7.0, 1.5 + 0.3 * len(groups) * (len(series) + 1)), 0.8 + 3.4 * len(units))
    for axes, unit in zip(figure.subplots(len(units), 1, squeeze=False)[:, 0], units, strict=True):
        _draw_panel(axes, [each for each in rows if each.unit == unit], groups, series)
        axes.set_ylabel(_LABELS.get(unit, unit))
    _add_legend(figure, series, rows)
    figure.suptitle(f'{heading(table.paper, table.figure)}: {table.title}', fontsize=12)
    save(figure, path)


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _draw_panel(axes: Any, rows: Sequence[Row], groups: Sequence[str], series: Sequence[str]) -> None:
    tidy(axes)
    width = 0.8 / (2 * len(series))
    for row in rows:
        number = series.index(row.series)
        left = groups.index(row.group) - 0.4 + 2 * number * width
        _draw_ours(axes, row, left + width / 2, width, *_LOOKS[number % len(_LOOKS)])
        if row.is_stated:
            _draw_stated(axes, row, left + 1.5 * width, width, *_LOOKS[number % len(_LOOKS)])
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_ylim(bottom=0)
    axes.margins(y=0.08)


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


def _add_legend(figure: Any, series: Sequence[str], rows: Sequence[Row]) -> None:
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
    figure.legend(handles=handles, loc='outside lower center', ncols=min(4, len(handles)), fontsize=9, frameon=False)
