"""A chart of a comparison: peak memory and time per iteration of each network, out-of-core beside plain Chainer.

It is drawn from the rows that a benchmark wrote, so that a figure in a document comes from the figures beside it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from chainer_ooc.report.figure import BLUE, ORANGE, new_figure, save, tidy

_BAR = 0.38


def draw_comparison(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str], title: str) -> None:
    """Draws two bars per row and quantity into a file.

    Args:
        rows: Each with `name`, `plain_peak_bytes`, `ooc_peak_bytes`, `plain_seconds` and `ooc_seconds`; a quantity that
            a row lacks or that is None gets no bar.
        path: The file; its suffix is the format.
        title: What stands above both charts.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: There are no rows.
    """
    if not rows:
        raise ValueError('no comparison to draw: there are no rows; pass at least one network')
    figure = new_figure(9, 3.6)
    memory, time = figure.subplots(1, 2)
    _draw_bars(memory, rows, 'peak_bytes', 1e6, 'peak resident memory [MB]', '{:,.0f}')
    _draw_bars(time, rows, 'seconds', 1.0, 'time per iteration [s]', '{:.2f}')
    figure.legend(*memory.get_legend_handles_labels(), loc='outside lower center', ncols=2, fontsize=9, frameon=False)
    figure.suptitle(title, fontsize=12)
    save(figure, path)


def _draw_bars(axes: Any, rows: Sequence[Mapping[str, Any]], what: str, unit: float, label: str, form: str) -> None:
    tidy(axes)
    kinds = (('plain', 'plain Chainer', ORANGE, ''), ('ooc', 'out-of-core', BLUE, '//'))
    for side, (kind, legend, colour, hatch) in zip((-0.5, 0.5), kinds, strict=True):
        values = [(place + side * _BAR, row[f'{kind}_{what}'] / unit)
                  for place, row in enumerate(rows) if row.get(f'{kind}_{what}') is not None]
        bars = axes.bar([place for place, _ in values], [value for _, value in values], _BAR,
                        color=colour, hatch=hatch, edgecolor='white', label=legend)
        axes.bar_label(bars, labels=[form.format(value) for _, value in values], fontsize=8, padding=2)
    axes.set_xticks(range(len(rows)), [str(row['name']) for row in rows])
    axes.set_ylabel(label)
    axes.margins(y=0.12)
