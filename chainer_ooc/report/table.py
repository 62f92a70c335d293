"""One list of rows, shown as aligned text, as Markdown or as JSON.

A row is a mapping of raw values (bytes, seconds, ratios); only the text forms round them, so the JSON keeps every
digit. Left out: wrapping, colours and borders.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ABSENT = '-'

#: The form of a value that is shown as it is.
plain = str


def megabytes(value: float) -> str:
    """Bytes in MB (powers of 1000, as in ``--wall 1300MB``)."""
    return f'{value / 1e6:,.0f} MB'


def seconds(value: float) -> str:
    """Seconds with three digits that mean something: ``'0.0132 s'``, ``'9.81 s'``, ``'142 s'``."""
    return f'{value:#.3g}'.rstrip('.') + ' s' if value < 1000 else f'{value:,.0f} s'


def percent(value: float) -> str:
    """A signed share: ``'+4.2 %'`` for 0.042."""
    return f'{value:+.1%}'.replace('%', ' %')


def ratio(value: float) -> str:
    """A quotient: ``'0.38'``."""
    return f'{value:.2f}'


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        key: Where the value lies in a row; a missing one or None is shown as ``-``.
        heading: What stands above it.
        form: Turns a value into text.
        right: Whether it is aligned to the right, as numbers are.
    """

    key: str
    heading: str
    form: Callable[[Any], str] = plain
    right: bool = False

    def cell(self, row: Mapping[str, Any]) -> str:
        """The text of this column in a row."""
        value = row.get(self.key)
        return ABSENT if value is None else self.form(value)


@dataclass(frozen=True)
class Table:
    """Rows of raw values under columns, and a line above them unless `title` is empty."""

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    title: str = ''

    def to_text(self) -> str:
        """Aligned columns for a terminal."""
        lines = self._cells()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, ['-' * width for width in widths])
        return self._below_title('  '.join(self._aligned(line, widths)).rstrip() for line in lines)

    def to_text_sideways(self) -> str:
        """A line per column and a column per row, for a few rows with many figures each."""
        heading, *lines = zip(*self._cells(), strict=True)
        widths = [max(map(len, cells)) for cells in zip(heading, *lines, strict=True)]
        return self._below_title('  '.join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
                                 for line in (heading, ['-' * width for width in widths], *lines))

    def to_markdown(self) -> str:
        """A Markdown table, for documents."""
        lines = self._cells()
        lines.insert(1, ['---:' if column.right else '---' for column in self.columns])
        body = ['| ' + ' | '.join(line) + ' |' for line in lines]
        return '\n'.join([f'**{self.title}**', '', *body] if self.title else body)

    def to_json(self) -> str:
        """The rows with all their values, also those that no column shows."""
        return json.dumps({'title': self.title, 'rows': [dict(row) for row in self.rows]}, indent=2)

    def _below_title(self, lines: Iterable[str]) -> str:
        return '\n'.join([self.title, *lines] if self.title else lines)

    def _cells(self) -> list[list[str]]:
        heading = [column.heading for column in self.columns]
        return [heading, *([column.cell(row) for column in self.columns] for row in self.rows)]

    def _aligned(self, line: Iterable[str], widths: Iterable[int]) -> Iterable[str]:
        for cell, width, column in zip(line, widths, self.columns, strict=True):
            yield cell.rjust(width) if column.right else cell.ljust(width)
