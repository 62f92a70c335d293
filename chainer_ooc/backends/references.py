"""How many references there are to an object: whether anybody else has it."""

from __future__ import annotations

import sys
from typing import Any

_OVERHEAD = 0


def references(holder: list[Any]) -> int:
    """How many references there are to the first in a list, beside the list's own and those of this call."""
    return sys.getrefcount(holder[0]) - _OVERHEAD


_OVERHEAD = references([object()])  # differs between releases of Python
