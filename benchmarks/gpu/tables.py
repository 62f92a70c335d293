"""The columns of each kind of part, and what only all rows together say: how one stands beside another."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chainer_ooc.report.table import Column, Table, megabytes, percent, plain, ratio, seconds

IN_CORE = ('keep', 'plain')


def speed(value: float) -> str:
    """Bytes per second in GB/s."""
    return f'{value / 1e9:.1f} GB/s'


def spread(value: Sequence[float]) -> str:
    """The smallest and the largest of some seconds."""
    return f'{value[0]:.3g} to {value[1]:.3g} s'


def size(value: Any) -> str:
    """A batch, or the height, width and frames of a video."""
    return 'x'.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def rate(value: float) -> str:
    """Images per second."""
    return f'{value:.1f}'


def one_line(value: object) -> str:
    """Text that breaks no Markdown table."""
    return ' '.join(str(value).split()).replace('|', '/')


OUTCOME = (Column('outcome', 'outcome'), Column('reason', 'reason', one_line))
TRAINING = (
    Column('network', 'network'),
    Column('batch', 'batch', size, right=True),
    Column('policy', 'policy'),
    Column('seconds', 'iteration', seconds, right=True),
    Column('spread', 'spread', spread, right=True),
    Column('images_per_second', 'images/s', rate, right=True),
    Column('overhead', 'beside in-core', percent, right=True),
    Column('predicted_seconds', 'predicted', seconds, right=True),
    Column('stall_seconds', 'stalled', seconds, right=True),
    Column('peak_bytes', 'peak', megabytes, right=True),
    Column('predicted_peak_bytes', 'predicted', megabytes, right=True),
    Column('driver_peak_bytes', 'by the driver', megabytes, right=True),
    Column('budget_bytes', 'budget', megabytes, right=True),
    Column('within_budget', 'within', lambda within: 'yes' if within else 'NO'),
    Column('verdicts', 'keep/swap/recompute', right=True),
    Column('swapped_out_bytes', 'out', megabytes, right=True),
    Column('swapped_in_bytes', 'in', megabytes, right=True),
    Column('faults', 'faults', plain, right=True),
    *OUTCOME,
)
COLUMNS: dict[str, tuple[Column, ...]] = {
    'training': TRAINING,
    'allocators': (
        Column('allocator', 'allocator'),
        Column('batch', 'batch', size, right=True),
        Column('seconds', 'iteration', seconds, right=True),
        Column('spread', 'spread', spread, right=True),
        Column('beside_pool', 'beside pool', percent, right=True),
        Column('peak_bytes', 'peak', megabytes, right=True),
        Column('driver_peak_bytes', 'by the driver', megabytes, right=True),
        Column('held_per_used', 'held/used', ratio, right=True),
        *OUTCOME),
    'link': (
        Column('row', 'what'),
        Column('nbytes', 'size', megabytes, right=True),
        Column('out_bytes_per_second', 'out', speed, right=True),
        Column('in_bytes_per_second', 'in', speed, right=True),
        Column('both_bytes_per_second', 'both at once', speed, right=True),
        Column('latency_seconds', 'latency', seconds, right=True),
        Column('first_seconds', 'first iteration', seconds, right=True),
        Column('second_seconds', 'second', seconds, right=True),
        *OUTCOME),
    'bits': (
        Column('network', 'network'),
        Column('batch', 'batch', size, right=True),
        Column('policy', 'policy'),
        Column('equal', 'bits', lambda equal: 'equal' if equal else 'DIFFERENT'),
        Column('arrays_equal', 'arrays equal', plain, right=True),
        Column('budget_bytes', 'budget', megabytes, right=True),
        Column('in_core_peak_bytes', "keep's peak", megabytes, right=True),
        Column('swapped_out_bytes', 'out', megabytes, right=True),
        *OUTCOME),
    'torch': (
        Column('mode', 'PyTorch'),
        Column('batch', 'batch', size, right=True),
        Column('seconds', 'iteration', seconds, right=True),
        Column('spread', 'spread', spread, right=True),
        Column('images_per_second', 'images/s', rate, right=True),
        Column('overhead', 'beside in-core', percent, right=True),
        Column('peak_bytes', 'peak', megabytes, right=True),
        Column('held_peak_bytes', 'held', megabytes, right=True),
        Column('budget_bytes', 'budget', megabytes, right=True),
        *OUTCOME),
    'self-test': (Column('row', 'row'), *OUTCOME),
}


def with_comparisons(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of the parts, whose rows also say how they stand beside others of the same file."""
    return [{**part, 'rows': [_compared(row, parts) for row in part['rows']]} for part in parts]


def _compared(row: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rows = [each for part in parts for each in part['rows'] if each['outcome'] == 'done']
    found = dict(row)
    if row['outcome'] != 'done' or 'seconds' not in row:
        return found
    beside = _seconds(rows, _in_core_of(row))
    if beside is not None and row.get('policy') not in IN_CORE and row.get('mode') != 'in-core':
        found['overhead'] = row['seconds'] / beside - 1
    if row.get('device') == 'cuda' and row.get('budget_bytes') and 'driver_peak_bytes' in row:
        found['within_budget'] = row['driver_peak_bytes'] <= row['budget_bytes']
    if row.get('allocator'):
        pool = _seconds(rows, {'row': 'training', 'allocator': 'pool', 'batch': row['batch']})
        if pool is not None:
            found['beside_pool'] = row['seconds'] / pool - 1
        if row.get('device') == 'cuda' and row.get('peak_bytes'):
            found['held_per_used'] = row['driver_peak_bytes'] / row['peak_bytes']
    return found


def _in_core_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the in-core row to compare with has."""
    if row['row'] == 'torch':
        return {'row': 'torch', 'mode': 'in-core', 'batch': row['batch']}
    return {'row': 'training', 'policy': 'keep', 'network': row['network'], 'batch': row['batch']}


def _seconds(rows: Sequence[Mapping[str, Any]], having: Mapping[str, Any]) -> float | None:
    return next((each['seconds'] for each in rows
                 if 'seconds' in each and all(each.get(name) == value for name, value in having.items())), None)


def table_of(part: Mapping[str, Any]) -> Table:
    """One part as a table; columns that no row has a value for are left out."""
    columns = [column for column in COLUMNS[part['kind']]
               if any(row.get(column.key) is not None for row in part['rows'])]
    return Table(columns, part['rows'])
