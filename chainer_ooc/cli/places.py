"""What makes a feature map, and where in the user's model: the columns that `profile` and `explain` have of it.

Left out: where it is read. The calls that read it have places of their own, by their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chainer_ooc.report.table import Column
from chainer_ooc.trace import Trace


def facts_of(trace: Trace, map_id: int) -> dict[str, str | None]:
    """What makes a feature map, as JSON has it.

    Args:
        trace: of the iteration.
        map_id: the map.

    Returns:
        'producer', the function's name, or 'the batch'; 'path' of its link and 'line' of the model's code, None where
        they are not known.
    """
    maker = trace.maker_of(map_id)
    if maker is None:
        return {'producer': 'the batch', 'path': None, 'line': None}
    return {'producer': maker.label, 'path': maker.path or None, 'line': maker.line or None}


def columns(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The columns for these, without those of which no row has anything, as of a trace that was not recorded."""
    found = [Column('producer', 'made by'), Column('path', 'in link'), Column('line', 'at line')]
    return [each for each in found if any(row[each.key] is not None for row in rows) or each is found[0]]
