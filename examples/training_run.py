"""What a training leaves behind to be reported: its iterations and the memory that it held.

Losses are kept as floats and compared bit by bit, so equal means equal; parameters are kept as a digest. Times are
seconds since the training began, so that runs can be laid over each other.
"""

from __future__ import annotations

import dataclasses
import enum
import statistics
from collections.abc import Mapping
from typing import Any


class Outcome(enum.Enum):
    """How a training ended."""

    FINISHED = 'finished'
    OUT_OF_MEMORY = 'MemoryError'
    FAILED = 'failed'


@dataclasses.dataclass(frozen=True, kw_only=True)
class IterationRow:
    """One iteration of a training.

    Attributes:
        start_seconds: When it began, after the beginning of the training.
        end_seconds: When it ended.
        loss: The loss that was minimised.
        swapped_out_bytes: Bytes copied to the spill file; 0 in-core.
        swapped_in_bytes: Bytes copied back; 0 in-core.
        faults: Feature maps that were read while they were away; 0 in-core.
    """

    start_seconds: float
    end_seconds: float
    loss: float
    swapped_out_bytes: int = 0
    swapped_in_bytes: int = 0
    faults: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_seconds - self.start_seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemorySample:
    """The memory of a process at one moment.

    Attributes:
        at_seconds: The moment, after the beginning of the training; negative before.
        resident_bytes: Private memory in use (RssAnon).
    """

    at_seconds: float
    resident_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """One training, from its process's start to its end.

    Attributes:
        name: What tables and legends call it.
        policy: The value of `chainer.config.ooc`; None is plain Chainer.
        workspace: The value of `chainer.config.ooc_workspace`, or None.
        wall_bytes: The limit on private memory (RLIMIT_DATA), or None.
        outcome: How it ended.
        message: One line on why, empty when it finished.
        peak_bytes: Largest resident memory (VmHWM).
        ended_seconds: When the process was gone, after the beginning of the training.
        parameters: Digest of parameters and persistent values after the last iteration, empty without one.
        iterations: The finished iterations in order.
        samples: Memory over time, in order.
    """

    name: str
    policy: str | None
    wall_bytes: int | None
    outcome: Outcome
    workspace: str | None = None
    message: str = ''
    peak_bytes: int = 0
    ended_seconds: float = 0.0
    parameters: str = ''
    iterations: tuple[IterationRow, ...] = ()
    samples: tuple[MemorySample, ...] = ()

    @property
    def is_in_core(self) -> bool:
        """Whether everything stays in memory: plain Chainer, or policy `keep`."""
        return self.policy in (None, 'keep')

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses to the last bit, as hexadecimal floats."""
        return tuple(iteration.loss.hex() for iteration in self.iterations)

    @property
    def median_seconds(self) -> float | None:
        """Median of the iterations behind the first one, which fills caches and is profiled; None without any."""
        later = [iteration.seconds for iteration in self.iterations[1:]]
        return statistics.median(later) if later else None

    def to_json(self) -> dict[str, Any]:
        """Gives a form that `json.dumps` takes and `from_json` reads back equal."""
        return {**dataclasses.asdict(self), 'outcome': self.outcome.value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TrainingRun:
        """Reads what `to_json` gave."""
        return cls(**{
            **value,
            'outcome': Outcome(value['outcome']),
            'iterations': tuple(IterationRow(**row) for row in value['iterations']),
            'samples': tuple(MemorySample(**row) for row in value['samples']),
        })
