"""Timestamps in a stream's order: events of the driver, shared by all that wait for the same one, and used again."""

from __future__ import annotations

from typing import Any

from chainer_ooc.backends.cuda.allocators.mapping import MappingCalls


class Timestamp:
    """All that a stream had been given when its event was recorded; `users` is how many ranges refer to it."""

    __slots__ = ('event', 'users')

    def __init__(self, event: Any) -> None:
        self.event = event
        self.users = 0

    def shared(self) -> Timestamp:
        """Counts one more user; returns itself."""
        self.users += 1
        return self


class Timestamps:
    """Records and waits; an event without users records the next timestamp."""

    def __init__(self, mapping: MappingCalls) -> None:
        self._mapping = mapping
        self._spare: list[Any] = []

    def record(self, stream: Any) -> Timestamp:
        """The moment that a stream is at now."""
        event = self._spare.pop() if self._spare else self._mapping.new_event()
        try:
            self._mapping.record(event, stream.ptr)
        except BaseException:
            self._spare.append(event)
            raise
        return Timestamp(event)

    def wait(self, timestamp: Timestamp | None) -> None:
        """Blocks until the moment has passed; at once if there is none."""
        if timestamp is not None:
            self._mapping.wait(timestamp.event)

    def drop(self, timestamp: Timestamp | None) -> None:
        """Counts one user less."""
        if timestamp is not None:
            timestamp.users -= 1
            if not timestamp.users:
                self._spare.append(timestamp.event)

    def close(self) -> None:
        """Destroys the events without users."""
        while self._spare:
            self._mapping.destroy_event(self._spare[-1])
            self._spare.pop()
