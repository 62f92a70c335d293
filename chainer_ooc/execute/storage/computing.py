"""What reads: a function of Chainer's, one of the program's own, or the program outside of all functions.

Chainer's functions only read what they are given; the others may write to it. What runs is kept for each thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class _Thread(threading.local):
    """For each thread, what runs in it.

    Attributes:
        is_foreign: whether the innermost function is the program's own; None if none runs.
        call: the outermost function, if it runs forward and may have a backward; None while a step runs.
    """

    is_foreign: bool | None = None
    call: Any = None


#: Sessions set it themselves around each computation: a function for that would cost as much as what they compare.
RUNNING = _Thread()


class computing:  # noqa: N801
    """Within it, this thread runs a function; if `is_foreign`, one of the program's own.

    Not a generator: one that an interrupt left open would end much later.
    """

    __slots__ = ('_before', '_is_foreign')

    def __init__(self, is_foreign: bool = False):
        self._is_foreign = is_foreign

    def __enter__(self) -> None:
        self._before, RUNNING.is_foreign = RUNNING.is_foreign, self._is_foreign

    def __exit__(self, *exception: object) -> None:
        RUNNING.is_foreign = self._before


def run_as(is_foreign: bool, run: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a function within `computing`, unless this thread is in one of this kind already."""
    if RUNNING.is_foreign is is_foreign:
        return run(*arguments)
    with computing(is_foreign):
        return run(*arguments)


def forget_computations() -> None:
    """Sets that no function runs in this thread: an exception has left the outermost, and may have hit any line."""
    RUNNING.is_foreign = RUNNING.call = None


def is_computing() -> bool:
    """Whether the calling thread runs a function."""
    return RUNNING.is_foreign is not None


def only_reads() -> bool:
    """Whether it runs a function that does not write to what it reads; any other read is the program's."""
    return RUNNING.is_foreign is False
