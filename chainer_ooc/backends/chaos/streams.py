"""Two queues of copies, and the seed that decides which of the allowed orders comes true.

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
import random
from collections.abc import Callable

from chainer_ooc.backends.chaos.transfer import ChaosTransfer, Direction

#: How likely the other direction gets on before a copy that is waited for; drawn for each wait.
STRAYING = (0.0, 0.3, 0.9)

#: How many copies a poll carries out; drawn for each poll.
ON_A_POLL = (0, 0, 0, 1, 3)

#: A copy is done after fewer polls than this.
MOST_PATIENCE = 8


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
