"""The JSON form of a trace: one object, versioned, with a table for each kind of row."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from chainer_ooc.errors import TraceFormatError
from chainer_ooc.trace.model import VERSION, Call, FeatureMap, MemoryEvent, Step, Trace
from chainer_ooc.trace.tables import Form, dump_table, load_table, typed

FORM = Form('trace', VERSION, TraceFormatError, 'write one with "chainer-ooc profile MODEL --save FILE"',
            'record it again')
_TABLES: dict[str, type[Any]] = {'calls': Call, 'steps': Step, 'maps': FeatureMap, 'events': MemoryEvent}


def dump(trace: Trace) -> str:
    """Returns JSON text, one row of a table per line."""
    names = [item.name for item in fields(trace) if item.name not in _TABLES and item.name != 'version']
    return FORM.dump({name: getattr(trace, name) for name in names},
                     {name: dump_table(kind, getattr(trace, name)) for name, kind in _TABLES.items()})


def load(text: str) -> Trace:
    """Reads what `dump` wrote.

    Raises:
        TraceFormatError: the text is no trace, or one of another version.
    """
    return _trace(FORM.parse(text))


def from_object(read: object) -> Trace:
    """Makes a trace of JSON that is parsed already, as part of a larger file.

    Raises:
        TraceFormatError: it is no trace, or one of another version.
    """
    return _trace(FORM.check(read))


def _trace(values: dict[str, Any]) -> Trace:
    with FORM.reading():
        values.update({name: load_table(kind, values[name]) for name, kind in _TABLES.items()})
        return typed(Trace(**values))
