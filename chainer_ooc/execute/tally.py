"""What an iteration cost, counted while it runs and frozen when it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from chainer_ooc.classify.verdict import Verdict
from chainer_ooc.quantities import format_bytes
from chainer_ooc.schedule.plan import Plan


@dataclass
class Tally:
    """Running counts of one iteration; see `IterationStats` for their meaning.

    Attributes:
        written_bytes, write_seconds: copies to far memory that have ended, and their own durations.
        read_bytes, read_seconds: the same of copies from there.
        recomputed_seconds: duration of the calls that ran again.
    """

    swapped_out_bytes: int = 0
    swapped_in_bytes: int = 0
    faults: int = 0
    recomputed_calls: int = 0
    evictions: int = 0
    stall_seconds: float = 0.0
    seconds: float = 0.0
    peak_bytes: int = 0
    written_bytes: int = 0
    write_seconds: float = 0.0
    read_bytes: int = 0
    read_seconds: float = 0.0
    recomputed_seconds: float = 0.0

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Counts the time within as stalled, except for what is counted inside already."""
        started, counted_seconds = time.perf_counter(), self.stall_seconds + self.recomputed_seconds
        try:
            yield
        finally:
            counted_seconds -= self.stall_seconds + self.recomputed_seconds
            self.stall_seconds += time.perf_counter() - started + counted_seconds


@dataclass(frozen=True)
class IterationStats:
    """The last finished iteration.

    Attributes:
        policy: its name.
        phase: 'profile' while a graph is recorded, 'run' when a plan runs.
        budget_bytes: what the iteration had to keep within.
        peak_bytes: the highest that near memory was, by accounting: parameters, gradients, optimizer state, feature
            maps and what the calls allocate.
        swapped_out_bytes, swapped_in_bytes: copied to and from far memory.
        recomputed_calls: forward calls that ran again.
        faults: feature maps that were read while they were away and no swap-in was under way.
        stall_seconds: waited for transfers.
        seconds: from the first function to the end of backward.
        predicted_seconds, predicted_peak_bytes: the plan's, or None while profiling.
        keep, swap, recompute: feature maps by verdict; all zero while profiling.
    """

    policy: str
    phase: str
    budget_bytes: int
    peak_bytes: int
    swapped_out_bytes: int
    swapped_in_bytes: int
    recomputed_calls: int
    faults: int
    stall_seconds: float
    seconds: float
    predicted_seconds: float | None
    predicted_peak_bytes: int | None
    keep: int
    swap: int
    recompute: int

    def __str__(self) -> str:
        return (f'{self.policy} ({self.phase}): {self.seconds:.3f} s, peak {format_bytes(self.peak_bytes)} of '
                f'{format_bytes(self.budget_bytes)}, out {format_bytes(self.swapped_out_bytes)}, in '
                f'{format_bytes(self.swapped_in_bytes)}, {self.recomputed_calls} calls run again, '
                f'{self.faults} faults, {self.stall_seconds:.3f} s stalled')


def freeze(tally: Tally, policy: str, budget_bytes: int, plan: Plan | None) -> IterationStats:
    """Makes the statistics of an iteration that followed `plan`, or none."""
    return IterationStats(
        policy=policy, phase='profile' if plan is None else 'run', budget_bytes=budget_bytes,
        peak_bytes=tally.peak_bytes, swapped_out_bytes=tally.swapped_out_bytes,
        swapped_in_bytes=tally.swapped_in_bytes, recomputed_calls=tally.recomputed_calls, faults=tally.faults,
        stall_seconds=tally.stall_seconds, seconds=tally.seconds,
        predicted_seconds=None if plan is None else plan.seconds,
        predicted_peak_bytes=None if plan is None else plan.peak_bytes,
        keep=0 if plan is None else plan.count(Verdict.KEEP), swap=0 if plan is None else plan.count(Verdict.SWAP),
        recompute=0 if plan is None else plan.count(Verdict.RECOMPUTE))
