"""Locks that an interrupt does not leave taken.

Python 3.14 looks for signals when a ``with`` statement has taken its lock and the block has not begun: a
KeyboardInterrupt there leaves the lock taken for ever. Other releases look before that, or in the block.

A `threading.Condition` has such moments in all of them, as its ``__enter__`` and ``__exit__`` are Python code that
calls the lock's: ``with`` goes around the lock itself, which the condition is made of.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from typing import Any

_Lock: Any = _thread.RLock

#: How often the calling thread has taken a lock; in Python 3.10 whether it has.
_taken: Callable[[threading.RLock], int] = getattr(_Lock, '_recursion_count', _Lock._is_owned)


class _GivenBack(_Lock):  # type: ignore[misc]
    """One whose ``__enter__`` gives it back when it is interrupted.

    As that is Python code, no signal is looked for between its return and the block. ``__exit__`` is the base's, one
    call of C, before and within which none is looked for.
    """

    def __enter__(self) -> bool:
        before = _taken(self)
        try:
            return bool(self.acquire())
        except BaseException:
            if _taken(self) > before:
                self.release()
            raise


def make_lock() -> threading.RLock:
    """Returns a reentrant lock."""
    return _GivenBack() if sys.version_info[:2] == (3, 14) else threading.RLock()
