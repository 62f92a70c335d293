"""Counts what a process on a GPU does once for each kind of work: kernels compiled or loaded, cuDNN operations planned.

A call that does any of it takes far longer than the next one like it: its time says nothing about that one.
"""

from __future__ import annotations

import functools
from typing import Any

_total = 0


def note() -> None:
    """Counts one more. Of several threads at once some may not count: what matters is that the number grows."""
    global _total
    _total += 1


def total() -> int:
    """How many were, in this process."""
    return _total


def watch_compiler(compiler: Any) -> None:
    """Has each kernel count that `cupy.cuda.compiler` compiles, or finds on the disk and loads; once is enough.

    CuPy keeps kernels that it has loaded, and calls this for the others alone. It has no hook for that.
    """
    compile_module = compiler._compile_module_with_cache
    if getattr(compile_module, '_counts', False):
        return

    @functools.wraps(compile_module)
    def counted(*args: Any, **kwargs: Any) -> Any:
        note()
        return compile_module(*args, **kwargs)

    counted._counts = True  # type: ignore[attr-defined]
    compiler._compile_module_with_cache = counted
