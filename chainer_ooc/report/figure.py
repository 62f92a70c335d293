"""What all figures share: how they are made and saved, and their colours.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; every use adds a second sign (a line style, a
mark or a label) for prints in grey. Figures are made without pyplot: no window, no global state.
"""

from __future__ import annotations

import os
from typing import Any

BLUE = '#0072B2'
ORANGE = '#D55E00'
GREY = '#595959'
PALE = '#E5E5E5'


def new_figure(width_inches: float, height_inches: float) -> Any:
    """Makes an empty matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "drawing needs matplotlib, which is not installed; run `pip install 'chainer-ooc[examples]'` "
            'or `pip install matplotlib`') from error
    return Figure(figsize=(width_inches, height_inches), layout='constrained')


def tidy(axes: Any) -> None:
    """Leaves only the lines of a pair of axes that help to read values off it."""
    for side in ('top', 'right'):
        axes.spines[side].set_visible(False)
    axes.grid(axis='y', color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)


def save(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a figure; the format follows from the file's suffix."""
    figure.savefig(path, dpi=150)
