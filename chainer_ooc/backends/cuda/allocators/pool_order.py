"""CuPy's own account of its pool, to hold the budget's against.

`Budget` counts by itself: memory hooks fire in `cupy.cuda.MemoryPool` alone, not for `cudaMallocAsync`, nor for ranges
of virtual addresses, and a hook sees neither the limit nor who asks. What a hook is good for is a second opinion where
there is a pool: this one writes down its mallocs and frees, and tests/gpu compare that with the budget's events.

Imports CuPy; nothing in the package imports this module.
"""

from __future__ import annotations

from typing import Any

import cupy


class PoolOrder(cupy.cuda.MemoryHook):  # type: ignore[misc]
    """Writes down what the pool does while it is entered as a context.

    Attributes:
        events: 'malloc' or 'free' with the bytes as the pool rounds them, in order; requests of 0 bytes are none.
    """

    name = 'chainer_ooc.PoolOrder'

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def malloc_postprocess(self, **about: Any) -> None:
        """CuPy calls it after each malloc; `mem_ptr` is 0 if that failed."""
        if about['mem_ptr']:
            self.events.append(('malloc', about['mem_size']))

    def free_postprocess(self, **about: Any) -> None:
        """CuPy calls it after each free."""
        self.events.append(('free', about['mem_size']))
