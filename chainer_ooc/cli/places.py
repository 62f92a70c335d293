"""What makes a feature map, and where in the user's model: what `profile` and `explain` say of it.

Left out: where it is read. The calls that read it have places of their own, by their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chainer_ooc.trace import Trace
from chainer_ooc.trace.rows import place


def facts_of(trace: Trace, map_id: int) -> dict[str, str | None]:
    """What makes a feature map, as JSON has it.

    'producer', the function's name, or 'the batch'; 'path' of its link and 'line' of the model's code, None where they
    are not known.
    """
    maker = trace.maker_of(map_id)
    if maker is None:
        return {'producer': 'the batch', 'path': None, 'line': None}
    return {'producer': maker.label, 'path': maker.path or None, 'line': maker.line or None}


def named(row: Mapping[str, Any]) -> str:
    """What `facts_of` says in words: ``'ReLU at /stage2/0 in resnet.py:57'``."""
    return f'{row["producer"]}{place(row["path"], row["line"])}'
