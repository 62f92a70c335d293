"""Time of an iteration over the budget, a line for each policy, and what no plan is below."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from chainer_ooc.report.figure import BLUE, GREY, ORANGE, PALE, new_figure, save, tidy

#: Times above so many times in-core are not shown.
HIGHEST = 2.0
_STYLES = ((GREY, ':', '^'), (GREY, '--', 'v'), (GREY, '-', 'x'), (BLUE, '--', 's'), (BLUE, '-', 'o'),
           (ORANGE, '-', 'o'))


def draw_bound(rows: Sequence[Mapping[str, Any]], policies: Sequence[str], path: str | os.PathLike[str],
               title: str) -> None:
    """Draws a line for each policy, and the bound as the edge of an area that nothing is in, into a file.

    Args:
        rows: each with `budget_bytes`, `bound`, and under the name of each policy its time; times are multiples of
            in-core, None where there is no plan.
        policies: at most as many as there are styles.
        path: the file; its suffix is the format.
        title: what stands above.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError('nothing to draw: there are no rows; pass at least one budget')
    figure = new_figure(7, 4.6)
    axes = figure.subplots()
    tidy(axes)
    budgets = [row['budget_bytes'] / 1e9 for row in rows]
    bounds = [min(row['bound'], 2 * HIGHEST) for row in rows]
    axes.fill_between(budgets, 0, bounds, color=PALE, label='proven impossible', linewidth=0)
    axes.plot(budgets, bounds, color='black', linewidth=1.0, label='lower bound')
    for name, (colour, style, mark) in zip(policies, _STYLES, strict=False):
        axes.plot(budgets, [float('nan') if row[name] is None else row[name] for row in rows], color=colour,
                  linestyle=style, marker=mark, linewidth=1.4, markersize=4, label=name)
    axes.set_ylim(0.95, HIGHEST)
    axes.set_xlabel('budget [GB]')
    axes.set_ylabel(f'time of an iteration, times in-core (to {HIGHEST:g})')
    figure.legend(loc='outside lower center', ncols=4, fontsize=9, frameon=False)
    axes.set_title(title, fontsize=12)
    save(figure, path)
