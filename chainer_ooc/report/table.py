"""One list of rows, shown as aligned text or as Markdown.

A row is a mapping of raw values (bytes, seconds, ratios), which only the text forms round. Text that is wider than it
may be is wrapped in its cells: words between spaces, paths behind a slash. Numbers stay whole. Left out: colours and
borders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ABSENT = '-'
#: A word that is too long for its column is broken there, but not into less than this.
_LEAST_WIDTH = 16
_BETWEEN = '  '

#: The form of a value that is shown as it is.
plain = str


def megabytes(value: float) -> str:
    """Bytes in MB (powers of 1000, as in ``--wall 1300MB``)."""
    return f'{value / 1e6:,.0f} MB'


def seconds(value: float) -> str:
    """Seconds with three digits that mean something: ``'0.0132 s'``, ``'9.81 s'``, ``'142 s'``."""
    return f'{value:#.3g}'.rstrip('.') + ' s' if value < 1000 else f'{value:,.0f} s'


def figures(value: float) -> str:
    """Seconds as `seconds` has them, without the unit: for columns that have it in their heading."""
    return seconds(value).removesuffix(' s')


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

    def to_text(self, width: int | None = None) -> str:
        """Aligned columns for a terminal, in lines of `width` characters as far as their numbers leave room for it.

        None: as many as it takes.
        """
        heading, *rows = self.cells()
        natural = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
        widths = natural if width is None else self._narrowed(natural, width - len(_BETWEEN) * (len(natural) - 1))
        above, *below = (self._lines(cells, widths) for cells in (heading, *rows))
        title = wrapped(self.title, width or len(self.title) + 1)
        lines = [*above, _BETWEEN.join('-' * each for each in widths), *(line for lines in below for line in lines)]
        return '\n'.join([*title, *lines] if self.title else lines)

    def to_markdown(self) -> str:
        """A Markdown table, for documents."""
        lines = self.cells()
        lines.insert(1, ['---:' if column.right else '---' for column in self.columns])
        body = ['| ' + ' | '.join(line) + ' |' for line in lines]
        return '\n'.join([f'**{self.title}**', '', *body] if self.title else body)

    def cells(self) -> list[list[str]]:
        """The headings, and the cells of each row, as text."""
        heading = [column.heading for column in self.columns]
        return [heading, *([column.cell(row) for column in self.columns] for row in self.rows)]

    def _lines(self, cells: Sequence[str], widths: Sequence[int]) -> list[str]:
        """A row, in as many lines as its tallest cell takes."""
        parts = [wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
        height = max(map(len, parts))
        lines = zip(*(each + [''] * (height - len(each)) for each in parts), strict=True)
        return [_BETWEEN.join(self._aligned(line, widths)).rstrip() for line in lines]

    def _narrowed(self, widths: Sequence[int], room: int) -> list[int]:
        """Widths that fit: the widest column that can give way does, first between words, then within them."""
        narrowed = list(widths)
        for least in self._least(within_words=False), self._least(within_words=True):
            while sum(narrowed) > room:
                able = [place for place, width in enumerate(narrowed) if width > least[place]]
                if not able:
                    break
                narrowed[max(able, key=narrowed.__getitem__)] -= 1
        return narrowed

    def _least(self, within_words: bool) -> list[int]:
        """How narrow each column can be. Numbers, which are what stands to the right, are not broken."""
        least = []
        for column, (heading, *cells) in zip(self.columns, zip(*self.cells(), strict=True), strict=True):
            words = [*_words(heading), *(cells if column.right else (word for cell in cells for word in _words(cell)))]
            longest = max((len(word.rstrip()) for word in words), default=0)
            least.append(min(longest, _LEAST_WIDTH) if within_words and not column.right else longest)
        return least

    def _aligned(self, line: Iterable[str], widths: Iterable[int]) -> Iterable[str]:
        for cell, width, column in zip(line, widths, self.columns, strict=True):
            yield cell.rjust(width) if column.right else cell.ljust(width)


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text that are at most so wide; a word that is longer is broken."""
    lines = ['']
    for word in _words(text):
        if len(lines[-1]) + len(word.rstrip()) > width and lines[-1]:
            lines.append('')
        lines[-1] += word
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return [line.rstrip() for line in lines]


def _words(text: str) -> list[str]:
    """What stays together, with the space or slash behind it."""
    return re.findall(r'[^\s/]*[\s/]+|[^\s/]+', text)
