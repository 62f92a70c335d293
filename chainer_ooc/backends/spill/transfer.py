"""Copies in flight, and their places in the spill file.

Three threads meet here without a lock. Each field has one writer, and the order of two assignments carries the meaning,
which the interpreter keeps:

    field                       written by
    Space.start                 the swap-out thread
    Space.reads_started         the caller
    Space.reads_ended           the swap-in thread
    Space.unwanted              any thread that releases (only ever from False to True)
    Space.mapped                the caller adds, any thread that drops a mapping discards: single calls of C
    HostTransfer, all fields    the thread that copies; ``done`` is the last to change

A lock would have to be taken in ``release``, which the garbage collector may call at any instruction, also while the
same thread holds that very lock.
"""

from __future__ import annotations

import threading
import time

from chainer_ooc.backends.owned import OwnedTransfer, Place
from chainer_ooc.errors import SpillError

#: Why a forked child cannot use the threads.
ELSEWHERE = ('the swap threads are those of the process that it was forked from, and what was away then can be read '
             'there alone; read it before the fork, or run forward again here')

#: A waiting caller looks again this often: an earlier one may have been interrupted while it had taken the gate.
_LOOK_AGAIN_SECONDS = 0.5


class HostTransfer(OwnedTransfer):
    """A copy that a swap thread makes; the thread calls ``end`` once.

    ``threading.Event`` would do, were it not for KeyboardInterrupt: raised within its Python code, it can leave the
    event's lock taken, and the swap thread would stand still for ever in ``set``. Here the thread only ever releases.
    """

    __slots__ = ('_ended_at', '_gate', '_seconds')

    elsewhere = ELSEWHERE

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self._seconds = self._ended_at = 0.0
        self._gate = threading.Lock()
        self._gate.acquire()

    @property
    def done(self) -> bool:
        return self._done

    @property
    def seconds(self) -> float:
        return self._seconds

    @property
    def moments(self) -> tuple[float, float] | None:
        return (self._ended_at - self._seconds, self._ended_at) if self._done else None

    def end(self, seconds: float, failure: SpillError | None) -> None:
        """Marks the copy as ended. ``failure`` must carry no traceback: its frames hold the array (C5)."""
        self._seconds, self._ended_at = seconds, time.perf_counter()
        self._failure = failure
        self._done = True
        self._gate.release()

    def outcome(self) -> SpillError | None:
        """Waits until the copy has ended; returns how it failed, without a traceback, or None."""
        try:
            self.wait()
        except SpillError as error:
            return SpillError(*error.args)
        return None

    def ends_within(self, seconds: float) -> bool:
        """Waits for so long at most; whether it has ended."""
        until = time.monotonic() + seconds
        while not self._done and time.monotonic() < until:
            self._wait()
        return self._done

    def _wait(self) -> None:
        if self._gate.acquire(timeout=_LOOK_AGAIN_SECONDS):
            self._gate.release()


class Space(Place):
    """One copy's place in the spill file, and what decides when the place may be used again.

    Attributes:
        nbytes: Size of the copy.
        start: Offset in the spill file, or None before it is written, after it failed and after it was given back.
        swap_out: The transfer that fills it.
        reads_started: Number of swap-ins asked for.
        reads_ended: Number of those that have ended.
        mapped: Tokens of the mappings that are alive.
    """

    __slots__ = ('mapped', 'nbytes', 'reads_ended', 'reads_started', 'start', 'swap_out')

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.nbytes = nbytes
        self.start: int | None = None
        self.swap_out = HostTransfer(nbytes)
        self.reads_started = 0
        self.reads_ended = 0
        self.mapped: set[object] = set()

    def useless(self) -> bool:
        """Whether the bytes will not be read any more."""
        return self.unwanted and self.reads_started == self.reads_ended and not self.mapped
