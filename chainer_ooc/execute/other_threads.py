"""Whether other threads are at work while an iteration is recorded: the meter counts what they allocate too.

    another thread                               | is noticed by
    trains, evaluates, or has done so before     | its session, while it lives
    has done so, and is gone again               | the number of sessions that were made
    makes batches, or whatever the program has   | the processor time that it took

A thread that only waits allocates nothing, also where it waits for another one to run its backward pass. Left out: a
thread without a session that comes and goes meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Set

from chainer_ooc.backends.base import OWN_THREADS

#: What a thread may take to begin to wait, or to see that nothing has come yet; arrays of some MB take as long.
WAITING_NANOSECONDS = 5_000_000


class OtherThreads:
    """The other threads, as a session sees them.

    Attributes:
        made: how many sessions were made.
        has_sessions: whether another thread that lives has a session.
    """

    made = 0

    def __init__(self, has_sessions: Callable[[], bool]):
        OtherThreads.made += 1
        self.has_sessions = has_sessions
        self._made_before = 0
        self._times: dict[int, int] = {}
        self._was_there = False
        self._thread: int | None = None  # which works for the iteration

    def watch(self) -> None:
        """Begins to watch, for an iteration of the calling thread."""
        self._made_before, self._times, self._was_there = OtherThreads.made, _times(), self.has_sessions()
        self._thread = threading.get_native_id()

    def hand_over(self, thread: threading.Thread) -> None:
        """Another thread works for the iteration from now on, and the one that did so far waits."""
        if self._thread is not None:
            self._times[self._thread] = _nanoseconds(self._thread) + WAITING_NANOSECONDS
        self._thread = thread.native_id

    def was_at_work(self, readers: Set[int]) -> bool:
        """Whether another thread has been at work since `watch`, or was one of those that have read maps."""
        return (not readers <= {threading.get_ident()} or self._was_there or self.has_sessions()
                or OtherThreads.made != self._made_before
                or any(nanoseconds > self._times.get(thread, 0) for thread, nanoseconds in _times().items()))


def other_threads() -> list[threading.Thread]:
    """The program's threads, as far as Python knows them, without the calling one.

    Not by `threading.enumerate`: an interrupt in its ``with`` leaves the lock of all threads taken for ever on Python
    3.14 (see `locks`), after which none begins or ends.
    """
    own = threading.current_thread()
    known: list[threading.Thread] = list(threading._active.values())  # type: ignore[attr-defined]
    return [each for each in known if each is not own and not each.name.startswith(OWN_THREADS)]


def _times() -> dict[int, int]:
    """The processor time of each of the program's other threads, in nanoseconds."""
    found = [each.native_id for each in other_threads()]
    return {each: _nanoseconds(each) for each in found if each is not None}


def _nanoseconds(thread: int) -> int:
    """Processor time of a thread by the system's number; 0 of one that is gone.

    Linux makes the number of a clock from that of its thread; `time.pthread_getcpuclockid` must not be called for one
    that may have ended.
    """
    try:
        return time.clock_gettime_ns((~thread << 3) | 6)
    except OSError:
        return 0
