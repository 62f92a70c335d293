"""What holds in every recorded iteration, checked where a trace is read: planning and simulating rely on it.

A trace comes from a file that anybody can write, and every index in it is followed without a second look: by the
policies in Python and over arrays in C. So positions, ids and the order in which maps are made are checked once, here,
and so is that sums of bytes stay within 64 bits and sums of seconds are finite. Left out: whether the figures are
true. A map that is larger than its shape, or a step that takes no time, is planned for as it is written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from chainer_ooc.quantities import MOST_BYTES
from chainer_ooc.trace.rows import Call, FeatureMap, Step
from chainer_ooc.trace.tables import Damage, shown

#: A time is 0 or between these, and a bandwidth 0 or at least a byte a second: quotients and sums are finite then.
LEAST_SECONDS, MOST_SECONDS = 1e-15, 1e12
#: A copy slows a computation down by less than this.
MOST_SLOWDOWN = 1e6


class _Rows(NamedTuple):
    """The tables of a trace."""

    calls: tuple[Call, ...]
    steps: tuple[Step, ...]
    maps: tuple[FeatureMap, ...]

    @property
    def positions(self) -> int:
        return len(self.calls) + len(self.steps)


def check_rows(calls: tuple[Call, ...], steps: tuple[Step, ...], maps: tuple[FeatureMap, ...],
               standing_bytes: int) -> None:
    """Passes if every index of a trace names something, each map is made before it is read, and figures add up.

    Raises:
        Damage: something does not hold; it says what and in which row.
    """
    rows = _Rows(calls, steps, maps)
    for number, feature_map in enumerate(maps):
        _check_map(rows, number, feature_map)
    for number, call in enumerate(calls):
        _check_call(rows, number, call)
    for number, step in enumerate(steps):
        _check_step(rows, number, step)
    computing = [abs(peak) + abs(other) for peak, other in (
        *((call.peak_bytes, call.other_bytes) for call in calls),
        *((step.peak_bytes, step.other_bytes) for step in steps))]
    check_bytes('maps, all together',
                sum(each.nbytes for each in maps) + standing_bytes + max(computing, default=0))


def check_bytes(where: str, nbytes: int) -> None:
    """Passes for an amount of bytes that a memory can have.

    Raises:
        Damage: it is negative, or more.
    """
    if not 0 <= nbytes <= MOST_BYTES:
        raise Damage(where, f'{shown(nbytes)} is no amount of bytes: 0 to 2**60')


def check_seconds(where: str, seconds: float) -> None:
    """Passes for a duration.

    Raises:
        Damage: it is negative, not finite, or too long or too short to calculate with.
    """
    if seconds != 0 and not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise Damage(where, f'{shown(seconds)} is no time: 0, or {LEAST_SECONDS:g} to {MOST_SECONDS:g} s')


def check_index(where: str, index: int, count: int, what: str, least: int = 0) -> None:
    """Passes for a number from `least` to below `count`.

    Raises:
        Damage: it is none.
    """
    if not least <= index < count:
        raise Damage(where, f'{shown(index)} is no {what}' + (f': {least} to {count - 1}' if count > least else ''))


def check_ascending(where: str, positions: Sequence[int]) -> None:
    """Passes if each is larger than the one before.

    Raises:
        Damage: one is not.
    """
    if any(one >= other for one, other in itertools.pairwise(positions)):
        raise Damage(where, f'{shown(list(positions))} is not in ascending order')


def check_bandwidth(where: str, bytes_per_second: float) -> None:
    """Passes for a bandwidth, or 0 for one that is not known.

    Raises:
        Damage: it is none.
    """
    if bytes_per_second != 0 and not 1 <= bytes_per_second < math.inf:
        raise Damage(where, f'{shown(bytes_per_second)} is no bandwidth: 0 if it is unknown, or 1 and more')


def _check_map(rows: _Rows, number: int, row: FeatureMap) -> None:
    where, calls, positions = f'maps, row {number}', len(rows.calls), rows.positions
    if row.id != number:
        raise Damage(where, f'its id is {shown(row.id)}; rows are in the order of their ids, from 0 on')
    check_bytes(f'{where}, nbytes', row.nbytes)
    if min(row.shape, default=0) < 0:
        raise Damage(f'{where}, shape', f'{min(row.shape)} is no extent')
    first = 0
    if row.producer is not None:
        check_index(f'{where}, producer', row.producer, calls, 'call')
        made = rows.calls[row.producer]
        if number not in made.outputs and number not in made.hidden:
            raise Damage(f'{where}, producer', f'call {row.producer} neither gives nor hides it')
        first = row.producer
    check_index(f'{where}, last_forward_use', row.last_forward_use, calls, 'call', first)
    check_index(f'{where}, last_alive', row.last_alive, positions, 'position', -1)
    check_index(f'{where}, last_held', row.last_held, calls, 'call', -1)
    check_ascending(f'{where}, backward_uses', row.backward_uses)
    for position in row.backward_uses:
        check_index(f'{where}, backward_uses', position, positions, 'position of a step', calls)
        if number not in rows.steps[position - calls].maps:
            raise Damage(f'{where}, backward_uses', f'the step at position {position} does not read it')


def _check_call(rows: _Rows, number: int, row: Call) -> None:
    where = f'calls, row {number}'
    if row.index != number:
        raise Damage(where, f'its index is {shown(row.index)}; rows are in the order of their positions, from 0 on')
    for name in ('inputs', 'outputs', 'hidden'):
        _check_ids(rows, f'{where}, {name}', getattr(row, name))
    for each in row.inputs:
        producer = rows.maps[each].producer if each >= 0 else None
        if producer is not None and producer >= number:
            raise Damage(f'{where}, inputs', f'map {each} is made by call {producer}, which is not before it')
    for each in (*row.inputs, *row.outputs, *row.hidden):
        if each >= 0 and rows.maps[each].last_forward_use < number:
            raise Damage(f'{where}', f'map {each} had its last forward use before, in call '
                                     f'{rows.maps[each].last_forward_use}')
    for name, forms in (('arguments', row.arguments), ('results', row.results)):
        for form in forms:
            check_bytes(f'{where}, {name}', form.nbytes)
    _check_computing(where, row)


def _check_step(rows: _Rows, number: int, row: Step) -> None:
    where, position = f'steps, row {number}', len(rows.calls) + number
    if row.position != position:
        raise Damage(where, f'its position is {shown(row.position)}, not {position}; steps follow the calls, in order')
    check_index(f'{where}, call', row.call, len(rows.calls), 'call', -1)
    _check_ids(rows, f'{where}, maps', row.maps, least=0)
    for each in row.maps:
        if position not in rows.maps[each].backward_uses:
            raise Damage(f'{where}, maps', f'map {each} has no backward use at position {position}')
    _check_computing(where, row)


def _check_computing(where: str, row: Call | Step) -> None:
    check_seconds(f'{where}, seconds', row.seconds)
    # Below 0 where another thread, which measures too, has reset what is measured.
    check_bytes(f'{where}, peak_bytes', abs(row.peak_bytes))
    check_bytes(f'{where}, other_bytes', abs(row.other_bytes))


def _check_ids(rows: _Rows, where: str, ids: Iterable[int], least: int = -1) -> None:
    for each in ids:
        check_index(where, each, len(rows.maps), 'feature map', least)
