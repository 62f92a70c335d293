"""Copies that nobody has made yet, in two queues, and the seed that decides which of the allowed orders comes true.

What CUDA promises is kept: first in, first out within a direction (C3), a swap-in after its own swap-out (C4). What it
leaves open is drawn: how far the other direction gets meanwhile, and how many polls find nothing::

    asked      out 0   out 1   in 0 ................ in 0 waited for
    a seed                                            [out 0][in 0]              out 1 may wait for ever
    another                                           [out 0][out 1][in 0]
    a poll     may carry out any number of the first ones in either queue, or none

Nothing is carried out at the moment that it is asked for. A poll that always found nothing would hang whoever polls,
which a GPU does not: a copy's patience is drawn too, and once it is at an end the copy is made.

Each step can be repeated: a KeyboardInterrupt may come anywhere, and a copy leaves its queue after it is done.

Left out: copies that are in part carried out.
"""

from __future__ import annotations

import collections
import enum
import random
from collections.abc import Callable

from chainer_ooc.backends.owned import OwnedTransfer
from chainer_ooc.errors import SpillError
from support.chaos.memory import Borrowed

#: A copy takes as long as it would at these figures, so that times, too, are those of the seed alone.
BYTES_PER_SECOND = 1e9
LATENCY_SECONDS = 1e-6

#: Why a forked child cannot use the copies.
ELSEWHERE = ('the copies are those of the process that it was forked from, and what was away then can be read there '
             'alone; read it before the fork, or run forward again here')

#: How likely the other direction gets on before a copy that is waited for; drawn for each wait.
STRAYING = (0.0, 0.3, 0.9)

#: How many copies a poll carries out; drawn for each poll.
ON_A_POLL = (0, 0, 0, 1, 3)

#: A copy is done after fewer polls than this.
MOST_PATIENCE = 8


class Direction(enum.Enum):
    """The two streams."""

    OUT = 'swap-out'
    IN = 'swap-in'


class ChaosTransfer(OwnedTransfer):
    """A copy that is asked for, and carried out when somebody waits for it or the seed has it so.

    Args:
        direction: the stream that it belongs to.
        number: of the far copy, counted from 0.
        near: the near side, until it is done.
        after: the copy that must have ended well before, or None.
        doomed: it is to fail.
        streams: what carries it out.
    """

    __slots__ = ('_streams', 'after', 'direction', 'doomed', 'near', 'number', 'patience')

    elsewhere = ELSEWHERE

    def __init__(self, direction: Direction, number: int, near: Borrowed, after: ChaosTransfer | None, doomed: bool,
                 streams: Streams) -> None:
        super().__init__(near.nbytes)
        self.direction = direction
        self.number = number
        self.near: Borrowed | None = near
        self.after = after
        self.doomed = doomed
        self.patience = streams.patience()
        self._streams = streams

    def __str__(self) -> str:
        return f'{self.direction.value} of copy {self.number} ({self.nbytes} bytes)'

    @property
    def done(self) -> bool:
        if not self._done and self._is_here():
            self._streams.poll(self)
        return self._done

    @property
    def seconds(self) -> float:
        return LATENCY_SECONDS + self.nbytes / BYTES_PER_SECOND if self._done else 0.0

    def end(self, failure: SpillError | None) -> None:
        """Marks the copy as ended."""
        self.near = None
        self._failure = failure
        self._done = True

    def _wait(self) -> None:
        self._streams.wait_for(self)


class Streams:
    """The queues of one backend.

    Args:
        seed: decides everything that is left open.
        carry_out: makes a copy, and ends it.
    """

    def __init__(self, seed: int, carry_out: Callable[[ChaosTransfer], None]) -> None:
        self._random = random.Random(seed)
        self._carry_out = carry_out
        self._queues: dict[Direction, collections.deque[ChaosTransfer]] = {
            direction: collections.deque() for direction in Direction}

    def patience(self) -> int:
        """Draws how many polls may find a copy not done."""
        return self._random.randrange(MOST_PATIENCE)

    def put(self, transfer: ChaosTransfer) -> None:
        """Queues a copy."""
        self._queues[transfer.direction].append(transfer)

    def pending(self, direction: Direction) -> list[ChaosTransfer]:
        """Copies that are not done, the oldest first."""
        return [each for each in self._queues[direction] if not each.ended]

    def wait_for(self, transfer: ChaosTransfer) -> None:
        """Carries out a copy with all that has to come before it, and by the seed some of the other direction."""
        other = Direction.IN if transfer.direction is Direction.OUT else Direction.OUT
        straying = self._random.choice(STRAYING)
        while not transfer.ended:
            strays = self._random.random() < straying and self.pending(other)
            self._step(other if strays else transfer.direction)

    def poll(self, transfer: ChaosTransfer) -> None:
        """Carries out what the seed says; the copy itself at last, so that no caller polls for ever."""
        transfer.patience -= 1
        if transfer.patience < 0:
            self.wait_for(transfer)
            return
        for _ in range(self._random.choice(ON_A_POLL)):
            self._step_anywhere()

    def drain(self) -> None:
        """Carries out everything."""
        while self._step_anywhere():
            pass

    def _step_anywhere(self) -> bool:
        busy = [direction for direction in Direction if self.pending(direction)]
        if busy:
            self._step(self._random.choice(busy))
        return bool(busy)

    def _step(self, direction: Direction) -> None:
        """Carries out the first copy of a direction, or the first swap-out if that one has to wait for its own."""
        queue = self._queues[direction]
        while queue[0].ended:  # an interrupt came before it left
            queue.popleft()
        first = queue[0]
        if first.after is not None and not first.after.ended:
            self._step(first.after.direction)
            return
        self._carry_out(first)
        queue.popleft()
