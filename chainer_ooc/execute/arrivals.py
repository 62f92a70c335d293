"""The blocks that copies write to: they must live until their copies have ended, though their storages may not."""

from __future__ import annotations

from collections import deque

from chainer_ooc.backends.base import Backend, ByteArray, FarCopy, Transfer


class Arrivals:
    """Swap-ins under way, in the order in which they began."""

    def __init__(self) -> None:
        self._blocks: deque[list[ByteArray | Transfer | None]] = deque()  # each with its transfer

    def begin(self, backend: Backend, copy: FarCopy, block: ByteArray) -> Transfer:
        """Starts a swap-in; its block lives until the copy has ended, also if this is interrupted.

        Raises:
            SpillError: as `Backend.swap_in`.
        """
        self.forget_ended()
        self._blocks.append([block, None])
        transfer = backend.swap_in(copy, block)
        self._blocks[-1][1] = transfer
        return transfer

    def forget_ended(self) -> None:
        """Lets go of blocks whose copies have ended.

        Copies end in order, so that one that an interrupt hid from us has ended when a later one has.
        """
        ended = 0
        for number, (_, transfer) in enumerate(self._blocks, 1):
            if isinstance(transfer, Transfer) and transfer.done:
                ended = number
        for _ in range(ended):
            self._blocks.popleft()

    def clear(self) -> None:
        """Lets go of all: the backend is closed, and no copy runs any more."""
        self._blocks.clear()
