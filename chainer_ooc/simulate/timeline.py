"""The timeline of one iteration: what each stream does when, and where the computation waits.

    compute    [F0][F1][F2]....[B2]..[B1][B0]         . a stall: for memory, or for a swap-in
    copy-out       [ 0    ][ 1    ]
    copy-in                    [ 1    ][ 0    ]
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field


class Stream(enum.Enum):
    """Where a task runs; each stream does one thing at a time, in order."""

    COMPUTE = 'compute'
    COPY_OUT = 'copy-out'
    COPY_IN = 'copy-in'


class Cause(enum.Enum):
    """What a computation waits for."""

    SWAP_IN = 'swap-in'
    MEMORY = 'memory'
    SWAP_OUT = 'swap-out'


@dataclass(frozen=True)
class Task:
    """One stretch of one stream.

    Attributes:
        stream: where.
        subject: position for computations, id of the feature map for copies.
        start_seconds, end_seconds: from the beginning of the iteration.
        recomputed_seconds: of a computation, what runs again before it, at its beginning.
    """

    stream: Stream
    subject: int
    start_seconds: float
    end_seconds: float
    recomputed_seconds: float = 0.0


@dataclass(frozen=True)
class Stall:
    """The computation at a position waits.

    Attributes:
        position: the computation.
        map: the feature map whose copy is waited for.
        seconds: how long.
        cause: for its swap-in, for the memory that its swap-out frees, or, where a policy synchronises, for the end of
            its copy.
    """

    position: int
    map: int
    seconds: float
    cause: Cause


@dataclass(frozen=True)
class Timeline:
    """A simulated iteration.

    Attributes:
        seconds: until the last computation has ended.
        peak_bytes: of near memory.
        tasks: of all streams, in the order in which they were issued.
        stalls: in order.
        near_bytes: what near memory holds during each position's computation.
        moving: at each position, the maps that are beside those which the schedule has there: on their way out, or in
            before their use. Empty where that is not known.
    """

    seconds: float
    peak_bytes: int
    tasks: tuple[Task, ...]
    stalls: tuple[Stall, ...]
    near_bytes: tuple[int, ...]
    moving: tuple[tuple[int, ...], ...] = field(default=(), compare=False)

    @property
    def stall_seconds(self) -> float:
        """Sum of all stalls."""
        return sum(each.seconds for each in self.stalls)

    def of(self, stream: Stream) -> Iterator[Task]:
        """The tasks of one stream, in order."""
        return (each for each in self.tasks if each.stream is stream)

    def starts(self) -> list[float]:
        """When the computation of each position begins, in seconds."""
        return [each.start_seconds for each in self.of(Stream.COMPUTE)]

    def waits(self) -> Iterator[tuple[Stall, float]]:
        """The stalls, each with its beginning in seconds: those of a position lie before it, one after the other."""
        starts = self.starts()
        for position in dict.fromkeys(each.position for each in self.stalls):
            stalls = [each for each in self.stalls if each.position == position]
            start = max(0.0, starts[position] - sum(each.seconds for each in stalls))
            for each in stalls:
                yield each, start
                start += each.seconds
