"""What the JSON forms of traces and of plans have in common: a format, a version, and tables as lists of rows.

A table is a list whose first row names the columns, written with one row a line, so that a thousand calls stay readable
and a difference between two files shows the row that differs.
"""

from __future__ import annotations

import contextlib
import enum
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

from chainer_ooc.errors import OocError
from chainer_ooc.quantities import counted

_Row = TypeVar('_Row')
Readers = Mapping[str, Callable[[Any], Any]]
#: Characters of a value that a message shows.
_MOST_SHOWN = 60


class Damage(ValueError):  # noqa: N818 it is no error of its own: `Form.reading` makes one of it
    """A part of a file cannot be used: where it is, such as ``'maps, row 3'``, and what is wrong with it."""

    def __init__(self, where: str, what: str):
        super().__init__(f'{where}: {what}')


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
            raise self.error(f'{self.name} of version {shown(read.get("version"))}, this release reads {self.version}; '
                             f'{self.again}')
        return {key: value for key, value in read.items() if key not in ('format', 'version')}

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Raises `error`, which says that the text is damaged, for what goes wrong meanwhile."""
        try:
            yield
        except OocError:
            raise
        except Damage as damage:
            raise self.error(f'damaged {self.name}: {damage}; {self.again}') from None
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise self.error(f'damaged {self.name}: {type(error).__name__}: {error}; {self.again}') from None

    def dump(self, head: Mapping[str, Any], parts: Mapping[str, str]) -> str:
        """Writes an object: format and version, then `head` as JSON, then `parts`, which are JSON texts already."""
        first = {'format': self.format, 'version': self.version, **head}
        lines = [f'"{key}": {json.dumps(value)}' for key, value in first.items()]
        return '{' + ',\n '.join([*lines, *(f'"{key}": {text}' for key, text in parts.items())]) + '}\n'


def dump_table(kind: type[Any], rows: Iterable[Any]) -> str:
    """Writes dataclass instances, one a line, below the names of their fields; of enums their values."""
    columns = [item.name for item in fields(kind)]
    lines = [json.dumps(columns)] + [
        json.dumps([getattr(row, column) for column in columns], default=attrgetter('value')) for row in rows]
    return '[\n  ' + ',\n  '.join(lines) + ']'


def load_table(name: str, kind: type[_Row], table: object,
               readers: Readers = MappingProxyType({})) -> tuple[_Row, ...]:
    """Reads what `dump_table` wrote; the columns may come in any order.

    Args:
        name: of the table, for messages.
        kind: of the rows.
        table: names of the columns, then the rows.
        readers: by column, what makes its values of what JSON has; else lists become tuples, and the rest stays.

    Raises:
        Damage: it is no such table.
    """
    if not isinstance(table, list) or not table or not all(isinstance(row, list) for row in table):
        raise Damage(name, 'no list of rows, of which the first one names the columns')
    columns, *rows = table
    if not all(isinstance(column, str) for column in columns) or len(set(columns)) < len(columns):
        raise Damage(name, f'{columns} are no names of columns')
    return tuple(_row(f'{name}, row {number}', kind, columns, row, readers) for number, row in enumerate(rows))


def _row(where: str, kind: type[_Row], columns: list[str], row: list[Any],
         readers: Readers) -> _Row:
    if len(row) != len(columns):
        raise Damage(where, f'{counted(len(row), "value")} for {counted(len(columns), "column")}')
    return make(where, kind, {column: _read(f'{where}, {column}', value, readers.get(column))
                              for column, value in zip(columns, row, strict=True)})


def _read(where: str, value: Any, reader: Callable[[Any], Any] | None) -> Any:
    if reader is None:
        return tuple(value) if isinstance(value, list) else value
    try:
        return reader(value)
    except (TypeError, ValueError) as error:
        raise Damage(where, str(error)) from None


def one_of(kind: type[enum.Enum]) -> Callable[[Any], Any]:
    """What reads a member of an enum from its value, for `load_table`."""
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f'{shown(value)} is none of {", ".join(each.value for each in kind)}') from None
    return read


def make(where: str, kind: type[_Row], values: Mapping[str, Any]) -> _Row:
    """Makes a dataclass instance of values that were read.

    Raises:
        Damage: one is missing, there is one too many, or one is of another type than is declared.
    """
    declared = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    unknown = [name for name in values if name not in declared]
    missing = [name for name, item in declared.items()
               if name not in values and item.default is MISSING and item.default_factory is MISSING]
    if unknown or missing:
        raise Damage(where, f'{unknown[0]!r} is unknown' if unknown else f'{missing[0]!r} is missing')
    row = kind(**values)
    for name, item in declared.items():
        value = getattr(row, name)
        if not any(_is(value, each) for each in str(item.type).split(' | ')):
            raise Damage(where, f'{name} is {shown(value)}, not {item.type}')
    return row


def shown(value: object) -> str:
    """A value for a message: as Python writes it, and no longer than a line."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f'{text[:_MOST_SHOWN]}...'


def _is(value: Any, kind: str) -> bool:
    """Whether a value is of a type as a dataclass declares it, as deep as the forms need it."""
    if kind == 'None':
        return value is None
    if kind.startswith('tuple[int'):
        return isinstance(value, tuple) and all(_is(each, 'int') for each in value)
    types = {'int': int, 'float': (int, float), 'str': str, 'bool': bool, 'tuple': tuple, 'dict': dict}
    expected = types.get(kind.partition('[')[0])
    if expected is None:
        return type(value).__name__ == kind
    return isinstance(value, expected) and (kind == 'bool' or not isinstance(value, bool))  # type: ignore[arg-type]
