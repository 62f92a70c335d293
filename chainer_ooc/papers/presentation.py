"""The papers' tables as text, Markdown and JSON: what is stated, ours, how far apart, and a line that counts.

The JSON keeps every digit; the text forms round as the papers do. Notes of rows are numbered and stand below the table,
as do the table's own.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from chainer_ooc.papers.comparison import DIFFERENCES, TOLERANCE, Bounds, PaperTable, Row
from chainer_ooc.report.table import Column, Table, percent

#: Digits behind the point, by unit; others are shown with five digits.
_DIGITS = {'images/s': 0, 'voxels/ms': 0, 'x': 2, 'GB': 2, 'MB': 3, 's': 1}
#: Of notes, where nothing else is asked for.
_WIDTH = 120
_SHARES = 'Shares deviate by percentage points, which is about what the speeds behind them deviate by.'
_COLUMNS = (
    Column('what', 'figure'), Column('unit', 'unit'), Column('stated_text', 'stated', right=True),
    Column('ours_text', 'ours', right=True), Column('deviation_text', 'deviation', right=True),
    Column('verdict', f'within {TOLERANCE:.0%}'.replace('%', ' %')), Column('mark', 'note'))


@dataclass(frozen=True)
class Noted(Table):
    """A table with lines below it."""

    notes: tuple[str, ...] = ()

    def to_text(self, width: int | None = None) -> str:
        wrapped = (textwrap.fill(note, width or _WIDTH, subsequent_indent='  ') for note in self.notes)
        return '\n'.join([super().to_text(width), *wrapped])

    def to_markdown(self) -> str:
        return '\n'.join([super().to_markdown(), '', *(f'- {note}' for note in self.notes)])


@dataclass(frozen=True)
class Score:
    """How the stated figures came out.

    Attributes:
        within: figures that ours meets within the tolerance.
        outside: figures that it does not meet, those included for which ours does not run.
        incomparable: stated figures that ours has nothing for.
        holding: orderings and failures that the papers report and that hold here.
        claims: how many of those can be told.
        inputs: stated figures that were put in.
    """

    within: int
    outside: int
    incomparable: int
    holding: int
    claims: int
    inputs: int

    @property
    def share(self) -> float | None:
        """The share of the comparable figures that is within."""
        comparable = self.within + self.outside
        return self.within / comparable if comparable else None


def score(rows: Iterable[Row]) -> Score:
    """Counts rows."""
    stated = [each for each in rows if each.is_stated]
    figures = [each.is_met() for each in stated if each.unit != 'holds' and not each.is_input]
    claims = [each.is_met() for each in stated if each.unit == 'holds' and not each.is_input]
    return Score(
        within=figures.count(True), outside=figures.count(False),
        incomparable=figures.count(None) + claims.count(None),
        holding=claims.count(True), claims=claims.count(True) + claims.count(False),
        inputs=sum(each.is_input for each in stated))


def summary(found: Score, of: str = '') -> str:
    """One line: how many of the stated figures are within the tolerance, how many not, how many cannot be compared."""
    share = '' if found.share is None else f' ({found.share:.0%})'.replace('%', ' %')
    tolerance = f'{TOLERANCE:.0%}'.replace('%', ' %')
    text = (f'{found.within} of {found.within + found.outside} stated figures are within {tolerance}{share}, '
            f'{found.outside} are not; {found.holding} of {found.claims} orderings and failures hold; '
            f'cannot be compared: {found.incomparable}; put in: {found.inputs}')
    return f'{of}: {text}' if of else text


def present(table: PaperTable) -> Noted:
    """Makes the table that is shown."""
    marks = _marks(table.rows)
    rows = [{**row_values(each), 'mark': marks.get(each.note)} for each in table.rows]
    has_shares = any(each.unit == 'share' and each.deviation is not None for each in table.rows)
    notes = [*(f'{mark} {note}' for note, mark in marks.items()), *table.notes, *([_SHARES] if has_shares else []),
             summary(score(table.rows))]
    return Noted(_COLUMNS, rows, f'{heading(table.paper, table.figure)}: {table.title}', tuple(notes))


def heading(paper: str, figure: str) -> str:
    """``'pooch figure 17'``; what names itself a table or the text keeps its name."""
    return f'{paper} figure {figure}' if figure[:1].isdigit() else f'{paper} {figure}'


def file_stem(paper: str, figure: str) -> str:
    """The name of a table's files without suffix: ``'pooch-figure-17'``."""
    return heading(paper, figure).replace(' ', '-')


def values(table: PaperTable) -> dict[str, Any]:
    """A table in a form that JSON takes."""
    return {'paper': table.paper, 'figure': table.figure, 'title': table.title, 'notes': list(table.notes),
            'rows': [_raw(each) for each in table.rows], **score_values(score(table.rows))}


def score_values(found: Score) -> dict[str, int]:
    """The counts in a form that JSON takes."""
    return asdict(found)


def row_values(row: Row) -> dict[str, Any]:
    """A row's raw values and the texts of its cells."""
    return {**_raw(row), 'stated_text': _stated(row.stated, row.unit), 'ours_text': _ours(row),
            'deviation_text': _deviation(row), 'verdict': _verdict(row)}


def _raw(row: Row) -> dict[str, Any]:
    deviation = row.deviation
    return {
        'what': row.what, 'unit': row.unit, 'stated': None if row.stated is None else list(row.stated),
        'ours': row.ours, 'deviation': deviation if deviation is None or math.isfinite(deviation) else None,
        'is_met': row.is_met(), 'is_input': row.is_input, 'out_of_memory': row.out_of_memory, 'note': row.note,
        'series': row.series, 'group': row.group,
    }


def _marks(rows: Iterable[Row]) -> dict[str, str]:
    """A number for each note that is not empty, in the order in which they come."""
    notes = dict.fromkeys(each.note for each in rows if each.note)
    return {note: f'[{number}]' for number, note in enumerate(notes, start=1)}


def quantity(value: float, unit: str) -> str:
    """A value as it is shown in a unit."""
    if unit == 'holds':
        return 'yes' if value else 'no'
    if unit == 'share':
        return f'{value * 100:.3g} %'
    if float(value).is_integer() and abs(value) < 1e15:
        return f'{value:,.0f}'
    return f'{value:,.{_DIGITS[unit]}f}' if unit in _DIGITS else f'{value:,.5g}'


def _stated(stated: Bounds | None, unit: str) -> str | None:
    if stated is None or stated == (None, None):
        return None
    low, high = stated
    if low is None or high is None:
        return f'at most {quantity(high, unit)}' if high is not None else f'at least {quantity(low or 0.0, unit)}'
    return quantity(low, unit) if low == high else f'{quantity(low, unit)} to {quantity(high, unit)}'


def _ours(row: Row) -> str | None:
    if row.ours is None:
        return 'out of memory' if row.out_of_memory else None
    return quantity(row.ours, row.unit)


def _deviation(row: Row) -> str | None:
    deviation = row.deviation
    if row.is_input or deviation is None or row.unit == 'holds':
        return None
    if not math.isfinite(deviation):
        return 'from 0'
    return f'{deviation * 100:+.1f} points' if row.unit in DIFFERENCES else percent(deviation)


def _verdict(row: Row) -> str | None:
    if row.is_input:
        return 'put in'
    return {True: 'yes', False: 'NO', None: None}[row.is_met()]
