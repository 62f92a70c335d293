"""Copies that nobody has made yet, and the handles of the far memory that they will fill."""

from __future__ import annotations

import collections
import enum
import os
from typing import TYPE_CHECKING

from chainer_ooc.backends.base import FarCopy, Transfer
from chainer_ooc.backends.chaos.memory import Borrowed
from chainer_ooc.errors import SpillError

if TYPE_CHECKING:
    from chainer_ooc.backends.chaos.streams import Streams

#: A copy takes as long as it would at these figures, so that times, too, are those of the seed alone.
BYTES_PER_SECOND = 1e9
LATENCY_SECONDS = 1e-6


class Direction(enum.Enum):
    """The two streams."""

    OUT = 'swap-out'
    IN = 'swap-in'


class ChaosTransfer(Transfer):
    """A copy that is asked for, and carried out when somebody waits for it or the seed has it so.

    Args:
        direction: the stream that it belongs to.
        number: of the far copy, counted from 0.
        near: the near side, until it is done.
        after: the copy that must have ended well before, or None.
        doomed: it is to fail.
        streams: what carries it out.
    """

    __slots__ = (
        '_done', '_failure', '_owner', '_streams', 'after', 'direction', 'doomed', 'nbytes', 'near', 'number',
        'patience')

    def __init__(self, direction: Direction, number: int, near: Borrowed, after: ChaosTransfer | None, doomed: bool,
                 streams: Streams) -> None:
        self.direction = direction
        self.number = number
        self.near: Borrowed | None = near
        self.nbytes = near.nbytes
        self.after = after
        self.doomed = doomed
        self.patience = streams.patience()
        self._streams = streams
        self._owner = os.getpid()
        self._failure: SpillError | None = None
        self._done = False

    def __str__(self) -> str:
        return f'{self.direction.value} of copy {self.number} ({self.nbytes} bytes)'

    @property
    def done(self) -> bool:
        if not self._done and os.getpid() == self._owner:
            self._streams.poll(self)
        return self._done

    @property
    def ended(self) -> bool:
        """Whether it is done, for those who only look and change nothing by it."""
        return self._done

    @property
    def failure(self) -> SpillError | None:
        """How it failed."""
        return self._failure

    @property
    def seconds(self) -> float:
        return LATENCY_SECONDS + self.nbytes / BYTES_PER_SECOND if self._done else 0.0

    def wait(self) -> None:
        if not self._done:
            if os.getpid() != self._owner:
                raise forked('wait for a copy')
            self._streams.wait_for(self)
        if self._failure is not None:
            raise SpillError(*self._failure.args)  # a new one: a traceback would grow, and keep frames alive

    def end(self, failure: SpillError | None) -> None:
        """Marks the copy as ended."""
        self.near = None
        self._failure = failure
        self._done = True


class ChaosCopy(FarCopy):
    """A far copy; its bytes are the backend's.

    Args:
        swap_out: the transfer that fills it.
        unwanted: the backend's numbers of copies to give back; appending to it is atomic.
    """

    __slots__ = ('released', 'swap_out', 'unwanted')

    def __init__(self, swap_out: ChaosTransfer, unwanted: collections.deque[int]) -> None:
        super().__init__(swap_out.nbytes)
        self.swap_out = swap_out
        self.released = False
        self.unwanted = unwanted  # the last, see __del__

    def release(self) -> None:
        """Only notes it: the garbage collector may call this in the middle of a copy (C7)."""
        if not self.released:
            self.unwanted.append(self.swap_out.number)
            self.released = True

    def __del__(self) -> None:
        if hasattr(self, 'unwanted'):  # else an interrupt came while it was made
            self.release()


def forked(act: str) -> SpillError:
    """The error of a child process that uses its parent's backend."""
    return SpillError(f'cannot {act} in process {os.getpid()}: the copies are those of the process that it was forked '
                      'from, and what was away then can be read there alone; read it before the fork, or run '
                      'forward again here')
