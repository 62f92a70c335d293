"""Starts threads so that no interrupt leaves it open whether one runs, and nothing waits for ever.

``Thread.start`` waits for a thread's first line, which one that ends for lack of memory never reaches, and after an
interrupt within ``Thread.start`` it could not be told whether the thread runs. Interrupts come to the main thread only.
So another thread, which begins by a single call of C, starts it::

    caller    start_new_thread, waits for a while
    another                 Thread.start, waits
    thread                               its first line

What a caller waits with is no ``threading.Event``: see `HostTransfer`.

Left out: a stack size for these threads alone. Python has one for the whole process, so that a thread which the program
starts in the same moment gets it too.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

from chainer_ooc.backends.spill.transfer import HostTransfer


def start_beside(start: Callable[[], None], stack_bytes: int, seconds: float) -> bool:
    """Has another thread call what starts a thread; returns whether it has returned.

    Args:
        start: it may still be called after an interrupt, or after False was returned.
        stack_bytes: of both threads. A default stack (8 MB) is private memory, which RLIMIT_DATA counts.
        seconds: to wait at most.

    Raises:
        MemoryError, RuntimeError: there can be no thread; also what `start` raises of these.
    """
    over, failures = HostTransfer(0), []

    def run() -> None:
        try:
            start()
        except (MemoryError, RuntimeError) as error:
            failures.append(error)
        finally:
            over.end(0.0, None)

    stack_before = threading.stack_size()
    try:
        threading.stack_size(stack_bytes)
        _thread.start_new_thread(run, ())
        is_over = over.ends_within(seconds)
    finally:
        threading.stack_size(stack_before)
    if failures:
        raise failures.pop()
    return is_over
