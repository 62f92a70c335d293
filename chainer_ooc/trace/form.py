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
    except ValueError as error:
        raise TraceFormatError(f'not a trace: no JSON ({error}); write one with "chainer-ooc profile"') from None
    if not isinstance(read, dict) or read.pop('format', None) != FORMAT:
        raise TraceFormatError(f'not a trace: the key "format" is not {FORMAT!r}; write one with "chainer-ooc profile"')
    if read.get('version') != VERSION:
        raise TraceFormatError(
            f'trace of version {read.get("version")!r}, this release reads {VERSION}; record it again')
    try:
        read.update({name: _load_table(kind, read[name]) for name, kind in _TABLES.items()})
        return Trace(**read)
    except (KeyError, TypeError, ValueError) as error:
        raise TraceFormatError(f'damaged trace: {type(error).__name__}: {error}; record it again') from None


def _dump_table(name: str, kind: type[Any], rows: tuple[Any, ...]) -> str:
    columns = [item.name for item in fields(kind)]
    lines = [json.dumps(columns)] + [json.dumps([getattr(row, column) for column in columns]) for row in rows]
    return f'"{name}": [\n  ' + ',\n  '.join(lines) + ']'


def _load_table(kind: type[_Row], table: list[list[Any]]) -> tuple[_Row, ...]:
    columns, *rows = table
    frozen = ([tuple(value) if isinstance(value, list) else value for value in row] for row in rows)
    return tuple(kind(**dict(zip(columns, row, strict=True))) for row in frozen)
