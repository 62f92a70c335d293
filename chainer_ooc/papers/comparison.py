"""A figure of a paper beside ours: what is stated, what comes out here, and how far the two are apart.

What a paper states and what is computed here meet in a `Row` and nowhere else; a row only compares. What was put in,
such as the in-core throughput by which the times are calibrated, is marked as such and counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Bounds = tuple[float | None, float | None]

#: Deviations up to this count as reproduced.
TOLERANCE = 0.15
#: Units whose figures may be 0, so that a quotient says nothing: they deviate by a difference.
DIFFERENCES = frozenset({'share', 'holds'})
#: What else than batches the groups of several tables are.
NETWORK, CLIP = 'network (batch)', 'clip: (height*width)*frames [pixels]'
#: Groups of rows that are no places of their own: the ends of a range that is stated over several runs.
ENDS = frozenset({'lowest', 'highest', 'at worst'})


@dataclass(frozen=True)
class Row:
    """One figure of a paper beside ours.

    Attributes:
        what: such as 'x86, batch 640, PoocH'.
        stated: low and high, equal for a single value; None on a side that is open: "less than 6.1 %" is (None, 0.061).
            None instead of both where the paper states no number, or it was lost with a figure.
        ours: None where ours does not run, or where there is nothing to compare with.
        unit: 'images/s', 'x' (ratio), 'share' (0.061 is 6.1 %), 'MB', 'GB', 'maps', 'calls', 'holds' (1.0 is true, 0.0
            false: an ordering or a failure that the paper reports).
        note: the reason of a deviation, or ''.
        series: for plots: the legend's entry, such as 'PoocH'.
        group: for plots: the place on the axis, such as '640'.
        is_input: the stated figure was put in, not reproduced.
        out_of_memory: ours is None since it does not fit; a stated figure is missed then.
    """

    what: str
    stated: Bounds | None
    ours: float | None
    unit: str
    note: str = ''
    series: str = ''
    group: str = ''
    is_input: bool = False
    out_of_memory: bool = False

    @property
    def is_stated(self) -> bool:
        """Whether the paper says a number, or something that holds or not."""
        return self.stated is not None and self.stated != (None, None)

    @property
    def deviation(self) -> float | None:
        """0 inside what is stated, else ours by the nearest end, less 1; for shares ours less the nearest end.

        None if one of the two is missing; infinite where the nearest end is 0 and the unit knows no differences.
        """
        if self.stated is None or self.ours is None or not self.is_stated:
            return None
        low, high = self.stated
        if low is not None and self.ours < low:
            nearest = low
        elif high is not None and self.ours > high:
            nearest = high
        else:
            return 0.0
        if self.unit in DIFFERENCES:
            return self.ours - nearest
        return self.ours / nearest - 1 if nearest else math.copysign(math.inf, self.ours)

    def is_met(self) -> bool | None:
        """Whether ours is what is stated, within `TOLERANCE`; None if there is nothing to compare.

        What holds or not deviates by 1 or not at all. A figure that was put in proves nothing.
        """
        if self.is_input or not self.is_stated:
            return None
        if self.out_of_memory and self.ours is None:
            return False
        return None if self.deviation is None else abs(self.deviation) <= TOLERANCE


@dataclass(frozen=True)
class Reported:
    """A figure as a paper states it.

    Attributes:
        paper: its short name.
        place: where in the paper.
        what: what is stated.
        low, high: the value twice, a range, or None on an open side.
        unit: as in `Row`.
    """

    paper: str
    place: str
    what: str
    low: float | None
    high: float | None
    unit: str

    @property
    def bounds(self) -> Bounds:
        """Low and high."""
        return self.low, self.high

    def beside(self, ours: float | None, what: str = '', **more: Any) -> Row:
        """Puts ours beside it; `more` are fields of `Row`."""
        return Row(what or self.what, self.bounds, ours, self.unit, **more)

    def ends_beside(self, ours: Sequence[float | None], **more: Any) -> tuple[Row, Row]:
        """Puts the ends of ours beside the ends of a range: lowest with lowest, highest with highest.

        A paper that states a range over several runs says of no run which end is its own. Runs that do not fit have no
        value and are left out; if none is left, both ends are missed.
        """
        found = [each for each in ours if each is not None]
        missing = len(ours) - len(found)
        if missing:
            more['note'] = '; '.join(filter(None, (more.get('note', ''), f'{missing} of {len(ours)} do not run here')))
        more.setdefault('out_of_memory', not found)
        more.setdefault('series', self.what)
        return tuple(Row(f'{self.what}, {name}', (end, end), take(found) if found else None, self.unit,
                         group=name, **more)
                     for name, end, take in (('lowest', self.low, min), ('highest', self.high, max)))  # type: ignore


def claim(what: str, holds: bool | None, is_stated: bool = True) -> Row:
    """Puts an ordering or a failure that a paper reports, or may mean, beside ours; None where it cannot be told."""
    return Row(what, (1.0, 1.0) if is_stated else None, None if holds is None else float(holds), 'holds')


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of a paper, ours beside what is stated.

    Attributes:
        paper: 'pooch', 'pooch-2018', 'superneurons', 'window-va' or 'ooc-paleo'.
        figure: '17', 'table 3', 'text'.
        title: a line.
        rows: its figures.
        notes: assumptions and reasons, shown below the table.
        axis: for plots: what the groups of its rows are.
    """

    paper: str
    figure: str
    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    axis: str = 'batch [images]'
