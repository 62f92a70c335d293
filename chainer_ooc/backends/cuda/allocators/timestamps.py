"""Timestamps in a stream's order: events of the driver, which are used again when nobody refers to them any more."""

from __future__ import annotations

from collections import deque
from typing import Any

from chainer_ooc.backends.cuda.allocators.mapping import MappingCalls


class Timestamp:
    """All that a stream had been given when its event was recorded."""

    __slots__ = ('_spare', 'event')

    def __init__(self, event: Any, spare: deque[Any]) -> None:
        self._spare, self.event = spare, event  # the last, see __del__

    def __del__(self) -> None:
        if hasattr(self, 'event'):  # else an interrupt came while it was made
            self._spare.append(self.event)


class Timestamps:
    """Records and waits."""

    def __init__(self, mapping: MappingCalls) -> None:
        self._mapping = mapping
        self._spare: deque[Any] = deque()

    def record(self, stream: Any) -> Timestamp:
        """The moment that a stream is at now."""
        event = self._spare.pop() if self._spare else self._mapping.new_event()
        try:
            self._mapping.record(event, stream.ptr)
        except BaseException:
            self._spare.append(event)
            raise
        return Timestamp(event, self._spare)

    def wait(self, timestamp: Timestamp) -> None:
        """Blocks until the moment has passed."""
        self._mapping.wait(timestamp.event)

    def close(self) -> None:
        """Destroys the events of timestamps that nobody refers to."""
        while self._spare:
            self._mapping.destroy_event(self._spare.pop())
