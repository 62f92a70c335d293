"""Planning time over the size of a graph, on logarithmic scales: a straight line is a power of the number of calls."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from chainer_ooc.report.figure import BLUE, GREY, ORANGE, PALE, new_figure, save, tidy

#: A name is written where a graph has so many times the calls of the last one that was named.
APART = 2.5
_LINES = (('auto_seconds', 'auto', ORANGE, 'D', '--'), ('pooch_seconds', 'pooch', ORANGE, 'o', '-'),
          ('swap-opt_seconds', 'swap-opt', BLUE, 's', '--'), ('simulation_seconds', 'one simulation', GREY, '^', ':'))


def draw_planning(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str], title: str) -> None:
    """Draws a line per policy into a file.

    Args:
        rows: each with `calls`, `network` and seconds under the keys `auto_seconds`, `pooch_seconds`,
            `swap-opt_seconds` and `simulation_seconds`.
        path: the file; its suffix is the format.
        title: what stands above.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError('no planning times to draw: there are no rows; pass at least one network')
    figure = new_figure(7, 4.2)
    from matplotlib.ticker import EngFormatter

    axes = figure.subplots()
    tidy(axes)
    axes.grid(axis='x', color=PALE, linewidth=0.8)
    ordered = sorted(rows, key=lambda row: row['calls'])
    for key, label, colour, mark, style in _LINES:
        axes.plot([row['calls'] for row in ordered], [row[key] for row in ordered], color=colour, marker=mark,
                  linestyle=style, linewidth=1.4, markersize=5, label=label)
    named = 0.0
    for number, row in enumerate(ordered):
        is_second = number > 0 and ordered[number - 1]['calls'] == row['calls']
        if row['calls'] >= APART * named or is_second:  # others would lie over it
            place, side = ((5, -12), 'left') if is_second else ((0, 7), 'right') if named else ((-5, 12), 'left')
            axes.annotate(str(row['network']), (row['calls'], row['auto_seconds']), xytext=place,
                          textcoords='offset points', fontsize=7, color=GREY, ha=side)
            named = named if is_second else row['calls']
    axes.set_xscale('log')
    axes.set_yscale('log')
    axes.xaxis.set_major_formatter('{x:,g}')
    axes.yaxis.set_major_formatter(EngFormatter(unit='s'))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter('')
    axes.margins(x=0.12, y=0.12)
    axes.set_xlabel('forward calls of the graph')
    axes.set_ylabel('time')
    axes.legend(loc='center right', fontsize=9, frameon=False)
    axes.set_title(title, fontsize=12)
    save(figure, path)
