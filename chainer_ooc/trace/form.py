"""The JSON form of a trace: one object, versioned, tables as lists of rows so that a thousand calls stay readable."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, TypeVar

from chainer_ooc.errors import TraceFormatError
from chainer_ooc.trace.model import VERSION, Call, FeatureMap, MemoryEvent, Step, Trace

FORMAT = 'chainer_ooc trace'
_TABLES: dict[str, type[Any]] = {'calls': Call, 'steps': Step, 'maps': FeatureMap, 'events': MemoryEvent}
_Row = TypeVar('_Row')


def dump(trace: Trace) -> str:
    """Returns JSON text, one row of a table per line."""
    head: dict[str, Any] = {'format': FORMAT}
    for item in fields(trace):
        if item.name not in _TABLES:
            head[item.name] = getattr(trace, item.name)
    parts = [f'"{key}": {json.dumps(value)}' for key, value in head.items()]
    parts += [_dump_table(name, kind, getattr(trace, name)) for name, kind in _TABLES.items()]
    return '{' + ',\n '.join(parts) + '}\n'


def load(text: str) -> Trace:
    """Reads what `dump` wrote.

    Raises:
        TraceFormatError: the text is no trace, or one of another version.
    """
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceFormatError(f'not a trace: no JSON ({error}); write one with "chainer-ooc profile"') from None
    if not isinstance(read, dict) or read.pop('format', None) != FORMAT:
        raise TraceFormatError(f'not a trace: the key "format" is not {FORMAT!r}; write one with "chainer-ooc profile"')
    if read.get('version') != VERSION:
        raise TraceFormatError(
            f'trace of version {read.get("version")!r}, this release reads {VERSION}; record it again')
    try:
        read.update({name: _load_table(kind, read[name]) for name, kind in _TABLES.items()})
        return _typed(Trace(**read))
    except (KeyError, TypeError, ValueError) as error:
        raise TraceFormatError(f'damaged trace: {type(error).__name__}: {error}; record it again') from None


def _dump_table(name: str, kind: type[Any], rows: tuple[Any, ...]) -> str:
    columns = [item.name for item in fields(kind)]
    lines = [json.dumps(columns)] + [json.dumps([getattr(row, column) for column in columns]) for row in rows]
    return f'"{name}": [\n  ' + ',\n  '.join(lines) + ']'


def _load_table(kind: type[_Row], table: list[list[Any]]) -> tuple[_Row, ...]:
    columns, *rows = table
    frozen = ([tuple(value) if isinstance(value, list) else value for value in row] for row in rows)
    return tuple(_typed(kind(**dict(zip(columns, row, strict=True)))) for row in frozen)


def _typed(row: _Row) -> _Row:
    """Returns a dataclass instance whose values are of the types that it declares, as deep as a trace needs it.

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
    types = {'int': int, 'float': (int, float), 'str': str, 'bool': bool, 'dict[str, str]': dict}
    expected = types.get(kind, tuple)
    return isinstance(value, expected) and (kind == 'bool' or not isinstance(value, bool))  # type: ignore[arg-type]
