"""The iteration for inputs of any size, from recordings at two small sizes.

What a graph's structure decides, extents of arrays and bytes, is a straight line over the size that is varied, such as
the batch: two points give it, and a third recording is met exactly::

    batch    2                3                              640
    shape    (2, 64, 56, 56)  (3, 64, 56, 56)       ->       (640, 64, 56, 56)
    bytes    1,605,632        2,408,448             ->       513,802,240

So a network that no memory here could hold is known to the byte. What a recording measures, times and scratch memory,
says nothing about another size or machine; it is left out, and `cost.analytic` puts other figures in its place. Of
several sizes, such as the height and the length of a video, one is extrapolated after the other.

`trace.scaling.scale` differs: it has one recording, keeps what was measured, and errs on the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from chainer_ooc.errors import OocError
from chainer_ooc.trace import ArrayForm, FeatureMap, Trace

_Row = TypeVar('_Row')
_SIZED = frozenset({'nbytes', 'shape', 'arguments', 'results', 'standing_forward_bytes', 'standing_backward_bytes'})
_TABLES = ('calls', 'steps', 'maps')


class ExtrapolationError(OocError, ValueError):
    """Two recordings that no straight line joins."""


def structure(trace: Trace) -> Trace:
    """Returns the iteration without what was measured: no times, no bandwidth, no scratch memory."""
    return replace(
        trace, calls=tuple(replace(each, seconds=0.0, peak_bytes=0, other_bytes=0) for each in trace.calls),
        steps=tuple(replace(each, seconds=0.0, peak_bytes=0, other_bytes=0) for each in trace.steps),
        seconds=0.0, write_bytes_per_second=0.0, read_bytes_per_second=0.0, copy_slowdown=0.0)


def extrapolate(first: Trace, second: Trace, first_size: int, second_size: int, size: int) -> Trace:
    """Returns the structure of the iteration at another size, smaller or larger.

    The recordings are of one program, and differ in one size alone, which is counted in any unit.

    Raises:
        ExtrapolationError: the sizes are equal, the recordings are of two graphs, or some figure is no whole number at
            `size`, as for an image whose side is no multiple of the network's strides.
    """
    if first_size == second_size:
        raise ExtrapolationError(f'both recordings are of size {first_size}; record one of another size')
    line = _Line(first_size, second_size, size)
    first, second = structure(first), structure(second)
    tables: dict[str, Any] = {name: line.table(name, getattr(first, name), getattr(second, name)) for name in _TABLES}
    for number, each in enumerate(tables['maps']):
        _check_straight(first.maps[number], second.maps[number], each)
    empty: dict[str, Any] = dict.fromkeys(_TABLES, ())
    return replace(line.row(replace(first, **empty), replace(second, **empty), 'the iteration'), **tables)


def _check_straight(first: FeatureMap, second: FeatureMap, found: FeatureMap) -> None:
    """Bytes are those of the shape still, or two extents of the shape grew at once and bytes with their product."""
    if _fills(first) and _fills(second) and not _fills(found):
        raise ExtrapolationError(f'map {found.id} has {found.nbytes} bytes and the shape {found.shape} at the size that'
                                 ' is wanted, which do not agree; vary one extent of the inputs at a time')


def _fills(feature_map: FeatureMap) -> bool:
    return math.prod(feature_map.shape) * np.dtype(feature_map.dtype).itemsize == feature_map.nbytes


class _Line:
    """What lies on the line through two recordings."""

    def __init__(self, first_size: int, second_size: int, size: int):
        self.run, self.way = second_size - first_size, size - first_size

    def row(self, first: _Row, second: _Row, where: str) -> _Row:
        """Joins two rows, field by field."""
        return replace(first, **{  # type: ignore[type-var]
            item.name: self._field(item.name, getattr(first, item.name), getattr(second, item.name), where)
            for item in fields(first)})  # type: ignore[arg-type]

    def _field(self, name: str, first: Any, second: Any, where: str) -> Any:
        if first == second:
            return first
        if name not in _SIZED:
            raise ExtrapolationError(f'the recordings differ in {name} of {where}: {first!r} and {second!r}; record '
                                     'the same program twice, with inputs of two sizes')
        if isinstance(first, tuple):
            return tuple(self._entry(*pair, f'{name} of {where}') for pair in _pairs(first, second, where))
        return self._number(first, second, where)

    def _entry(self, first: Any, second: Any, where: str) -> Any:
        if not isinstance(first, ArrayForm):
            return self._number(first, second, where)
        dtype = self._field('dtype', first.dtype, second.dtype, where)
        return ArrayForm(dtype, self._field('shape', first.shape, second.shape, where))

    def table(self, name: str, first: Sequence[Any], second: Sequence[Any]) -> tuple[Any, ...]:
        """Joins two tables, row by row."""
        return tuple(self.row(*pair, f'{name}[{number}]') for number, pair in enumerate(_pairs(first, second, name)))

    def _number(self, first: int, second: int, where: str) -> int:
        rise = (second - first) * self.way
        if rise % self.run or first + rise // self.run < 0:
            raise ExtrapolationError(f'{where} has {first} and {second} in the recordings, which leads to no whole '
                                     'number at the size that is wanted; choose sizes that strides divide')
        return first + rise // self.run


def _pairs(first: Sequence[Any], second: Sequence[Any], where: str) -> list[tuple[Any, Any]]:
    if len(first) != len(second):
        raise ExtrapolationError(f'{where} has {len(first)} entries in one recording and {len(second)} in the other; '
                                 'record the same program twice, with inputs of two sizes')
    return list(zip(first, second, strict=True))
