"""The columns of each kind of part, and what only all rows together say: how one stands beside another."""
from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from chainer_ooc.report.table import Column, Table, megabytes, percent, plain, ratio, seconds

IN_CORE = ('keep', 'plain')


def speed(value: float) -> str:
    """Bytes per second in GB/s."""
    return f'{value / 1e9:.1f} GB/s'


def operations(value: float) -> str:
    """Operations per second in TFLOP/s."""
    return f'{value / 1e12:.1f} TFLOP/s'


def spread(value: Sequence[float]) -> str:
    """The smallest and the largest of some seconds."""
    return f'{value[0]:.3g} to {value[1]:.3g} s'


def ratios(value: Sequence[float]) -> str:
    """The median of some ratios, the smallest and the largest."""
    return f'{statistics.median(value):.3f} ({min(value):.3f} to {max(value):.3f})'


def size(value: Any) -> str:
    """A batch, or the height, width and frames of a video."""
    return 'x'.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def rate(value: float) -> str:
    """Images per second."""
    return f'{value:.1f}'


def share(value: tuple[float, Any]) -> str:
    """A share, and the batch that it is of."""
    return f'{100 * value[0]:.0f} % (batch {size(value[1])})'


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
    Column('host_seconds', 'by the host', seconds, right=True),
    Column('images_per_second', 'images/s', rate, right=True),
    Column('tf32', 'TF32', lambda used: 'yes' if used else 'no'),
    Column('autotune', 'autotune', lambda used: 'yes' if used else 'no'),
    Column('overhead', 'beside in-core', percent, right=True),
    Column('of_in_core_rate', 'images/s of in-core', share, right=True),
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
    'turns': (
        Column('network', 'network'),
        Column('batch', 'batch', size, right=True),
        Column('tf32', 'TF32', lambda used: 'yes' if used else 'no'),
        Column('plain_seconds', 'plain Chainer', seconds, right=True),
        Column('keep_seconds', 'keep', seconds, right=True),
        Column('ratios', 'ratio of each round', ratios),
        Column('plain_host_seconds', 'plain Chainer by the host', seconds, right=True),
        Column('keep_host_seconds', 'keep by the host', seconds, right=True),
        Column('host_ratios', 'ratio of each round', ratios),
        *OUTCOME),
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
        Column('pin_seconds', 'pinned in', seconds, right=True),
        Column('unpin_seconds', 'unpinned in', seconds, right=True),
        Column('pin_bytes_per_second', 'pinning', speed, right=True),
        Column('registered', 'how', lambda registered: 'hostRegister' if registered else 'hostAlloc'),
        Column('alloc_seconds', 'hostAlloc', seconds, right=True),
        Column('free_seconds', 'freeHost', seconds, right=True),
        Column('first_seconds', 'first iteration', seconds, right=True),
        Column('second_seconds', 'second', seconds, right=True),
        *OUTCOME),
    'chunks': (
        Column('nbytes', 'size', megabytes, right=True),
        Column('create_seconds', 'chunk taken', seconds, right=True),
        Column('map_seconds', 'mapped', seconds, right=True),
        Column('allow_seconds', 'allowed', seconds, right=True),
        Column('unmap_seconds', 'unmapped', seconds, right=True),
        Column('allow_together_seconds', 'allowed together', seconds, right=True),
        Column('unmap_together_seconds', 'unmapped together', seconds, right=True),
        Column('release_seconds', 'released', seconds, right=True),
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
    'operations': (
        Column('row', 'what'),
        Column('layer', 'layer'),
        Column('way', 'way'),
        Column('float32_per_second', 'float32', operations, right=True),
        Column('float32_repeatable_per_second', 'the same bits each time', operations, right=True),
        Column('float32_timed_per_second', 'the fastest engine', operations, right=True),
        Column('tf32_per_second', 'TF32', operations, right=True),
        Column('tf32_timed_per_second', 'TF32, the fastest', operations, right=True),
        Column('tf32_last_per_second', 'TF32, channels last', operations, right=True),
        Column('copy_per_second', 'copy', speed, right=True),
        Column('sum_per_second', 'sum of two', speed, right=True),
        Column('relu_per_second', 'ReLU', speed, right=True),
        Column('normalize_per_second', 'batch normalization', speed, right=True),
        Column('normalize_backward_per_second', 'its backward', speed, right=True),
        Column('empty_seconds', 'to queue an array', seconds, right=True),
        Column('sum_seconds', 'to queue a sum', seconds, right=True),
        Column('relu_seconds', 'to queue ReLU', seconds, right=True),
        Column('convolution_seconds', 'to queue a convolution', seconds, right=True),
        Column('normalization_seconds', 'to queue a normalization', seconds, right=True),
        *OUTCOME),
    'torch': (
        Column('mode', 'PyTorch'),
        Column('batch', 'batch', size, right=True),
        Column('seconds', 'iteration', seconds, right=True),
        Column('spread', 'spread', spread, right=True),
        Column('host_seconds', 'by the host', seconds, right=True),
        Column('images_per_second', 'images/s', rate, right=True),
        Column('tf32', 'TF32', lambda used: 'yes' if used else 'no'),
        Column('overhead', 'beside in-core', percent, right=True),
        Column('peak_bytes', 'peak', megabytes, right=True),
        Column('held_peak_bytes', 'held', megabytes, right=True),
        Column('budget_bytes', 'budget', megabytes, right=True),
        *OUTCOME),
    'doctor': (
        Column('can_train', 'training can work', lambda works: 'yes' if works else 'NO'),
        Column('problems', 'problems', one_line),
        Column('doctor_warnings', 'warnings', one_line),
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
    if not _is_in_core(row):
        if beside is not None:
            found['overhead'] = row['seconds'] / beside - 1
        rate = _in_core_rate(rows, row)
        if rate is not None and row.get('images_per_second'):
            found['of_in_core_rate'] = row['images_per_second'] / rate[0], rate[1]
    if row.get('device') == 'cuda' and row.get('budget_bytes') and 'driver_peak_bytes' in row:
        found['within_budget'] = row['driver_peak_bytes'] <= row['budget_bytes']
    if row.get('allocator'):
        pool = _seconds(rows, {'row': 'training', 'allocator': 'pool', 'batch': row['batch'], 'policy': row['policy']})
        if pool is not None:
            found['beside_pool'] = row['seconds'] / pool - 1
        if row.get('device') == 'cuda' and row.get('peak_bytes'):
            found['held_per_used'] = row['driver_peak_bytes'] / row['peak_bytes']
    return found


def _in_core_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the in-core row to compare with has."""
    if row['row'] == 'torch':
        return {'row': 'torch', 'mode': 'in-core', 'batch': row['batch'], 'tf32': row['tf32']}
    return {'row': 'training', 'policy': 'keep', 'network': row['network'], 'batch': row['batch'],
            'budget_bytes': None, 'tf32': row.get('tf32'), 'autotune': row.get('autotune')}


def _is_in_core(row: Mapping[str, Any]) -> bool:
    return row.get('mode') == 'in-core' or (row.get('policy') in IN_CORE and row.get('budget_bytes') is None)


def _in_core_rate(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> tuple[float, Any] | None:
    """Images per second of the same network in-core, and at which batch: the largest that there is."""
    if row['row'] != 'training':
        return None
    alike = [each for each in rows if each['row'] == 'training' and _is_in_core(each) and each['policy'] == 'keep'
             and all(each.get(name) == row.get(name) for name in ('network', 'tf32', 'autotune'))
             and isinstance(each['batch'], int) and 'images_per_second' in each]
    best = max(alike, key=lambda each: int(each['batch']), default=None)
    return None if best is None else (float(best['images_per_second']), best['batch'])


def _seconds(rows: Sequence[Mapping[str, Any]], having: Mapping[str, Any]) -> float | None:
    return next((each['seconds'] for each in rows
                 if 'seconds' in each and all(each.get(name) == value for name, value in having.items())), None)


def table_of(part: Mapping[str, Any]) -> Table:
    """One part as a table; columns that no row has a value for are left out."""
    columns = [column for column in COLUMNS[part['kind']]
               if any(row.get(column.key) is not None for row in part['rows'])]
    return Table(columns, part['rows'])
