"""What the JSON forms of traces and of plans have in common: a format, a version, and tables as lists of rows.

A table is a list whose first row names the columns, written with one row a line, so that a thousand calls stay readable
and a difference between two files shows the row that differs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, TypeVar

from chainer_ooc.errors import OocError

_Row = TypeVar('_Row')


@dataclass(frozen=True)
class Form:
    """A kind of file.

    Attributes:
        name: what messages call it, such as 'trace'.
        version: the one that this release reads and writes.
        error: what is raised for a text that is none.
        source: how to get one, the next step of messages.
        again: how to get another one for one that is damaged or old.
    """

    name: str
    version: int
    error: type[OocError]
    source: str
    again: str

    @property
    def format(self) -> str:
        """The value of the key "format"."""
        return f'chainer_ooc {self.name}'

    def parse(self, text: str) -> dict[str, Any]:
        """Reads a text as far as its version.

        Raises:
            OocError: `error`: it is no JSON, of another kind, or of another version.
        """
        try:
            read = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.error(f'not a {self.name}: no JSON ({error}); {self.source}') from None
        return self.check(read)

    def check(self, read: object) -> dict[str, Any]:
        """Returns an object that was read without its format and version.

        Raises:
            OocError: `error`: it is of another kind or version.
        """
        if not isinstance(read, dict) or read.get('format') != self.format:
            raise self.error(f'not a {self.name}: the key "format" is not {self.format!r}; {self.source}')
        if read.get('version') != self.version:
            raise self.error(f'{self.name} of version {read.get("version")!r}, this release reads {self.version}; '
                             f'{self.again}')
        return {key: value for key, value in read.items() if key not in ('format', 'version')}

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Raises `error`, which says that the text is damaged, for what goes wrong meanwhile."""
        try:
            yield
        except OocError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self.error(f'damaged {self.name}: {type(error).__name__}: {error}; {self.again}') from None

    def dump(self, head: Mapping[str, Any], parts: Mapping[str, str]) -> str:
        """Writes an object: format and version, then `head` as JSON, then `parts`, which are JSON texts already."""
        first = {'format': self.format, 'version': self.version, **head}
        lines = [f'"{key}": {json.dumps(value)}' for key, value in first.items()]
        return '{' + ',\n '.join([*lines, *(f'"{key}": {text}' for key, text in parts.items())]) + '}\n'


def dump_table(kind: type[Any], rows: Iterable[Any]) -> str:
    """Writes dataclass instances, one a line, below the names of their fields."""
    columns = [item.name for item in fields(kind)]
    lines = [json.dumps(columns)] + [json.dumps([getattr(row, column) for column in columns]) for row in rows]
    return '[\n  ' + ',\n  '.join(lines) + ']'


def load_table(kind: type[_Row], table: list[list[Any]],
               readers: Mapping[str, Callable[[list[Any]], Any]] = MappingProxyType({})) -> tuple[_Row, ...]:
    """Reads what `dump_table` wrote; the columns may come in any order.

    Args:
        kind: of the rows.
        table: names of the columns, then the rows.
        readers: by column, what makes its value of lists.

    Raises:
        TypeError, ValueError: it is no such table.
    """
    columns, *rows = table
    return tuple(typed(kind(**{
        column: readers.get(column, tuple)(value) if isinstance(value, list) else value
        for column, value in zip(columns, row, strict=True)})) for row in rows)


def typed(row: _Row) -> _Row:
    """Returns a dataclass instance whose values are of the types that it declares, as deep as the forms need it.

    Raises:
        TypeError: one is not.
    """
    for item in fields(row):  # type: ignore[arg-type]
        value = getattr(row, item.name)
        if not any(_is(value, kind) for kind in str(item.type).split(' | ')):
            raise TypeError(f'{type(row).__name__}.{item.name} is {value!r}, not {item.type}')
    return row


def _is(value: Any, kind: str) -> bool:
    if kind == 'None':
        return value is None
    if kind.startswith('tuple[int'):
        return isinstance(value, tuple) and all(_is(each, 'int') for each in value)
    types = {'int': int, 'float': (int, float), 'str': str, 'bool': bool, 'tuple': tuple, 'dict': dict,
             'Shared': (bool, frozenset)}
    expected = types.get(kind.partition('[')[0])
    if expected is None:
        return type(value).__name__ == kind
    return isinstance(value, expected) and (kind in ('bool', 'Shared') or not isinstance(value, bool))  # type: ignore[arg-type]
