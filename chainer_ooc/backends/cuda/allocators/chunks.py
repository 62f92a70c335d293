"""Physical memory in chunks of one size, created once and kept."""

from __future__ import annotations

from typing import Any

from chainer_ooc.backends.cuda.allocators.allocator import NoRoomError
from chainer_ooc.backends.cuda.allocators.mapping import Mapping


class Chunks:
    """The chunks that were taken from the driver.

    Attributes:
        free: handles of those that are mapped nowhere; the last is taken first.
        held_bytes: of all.
    """

    def __init__(self, mapping: Mapping, chunk_bytes: int) -> None:
        self.free: list[Any] = []
        self.held_bytes = 0
        self._mapping, self._chunk_bytes = mapping, chunk_bytes

    def create(self, limit_bytes: int | None) -> bool:
        """Takes one more from the driver; False if the limit or the device refuses."""
        if limit_bytes is not None and self.held_bytes + self._chunk_bytes > limit_bytes:
            return False
        try:
            self.free.append(self._mapping.create(self._chunk_bytes))
        except NoRoomError:
            return False
        self.held_bytes += self._chunk_bytes
        return True

    def release(self) -> None:
        """Gives the last of the free chunks back to the driver."""
        self._mapping.release(self.free[-1], self._chunk_bytes)
        self.free.pop()
        self.held_bytes -= self._chunk_bytes
