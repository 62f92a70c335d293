"""What an iteration cost, counted while it runs and frozen when it ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Tally:
    """Running counts of one iteration; see `IterationStats` for their meaning."""

    swapped_out_bytes: int = 0
    swapped_in_bytes: int = 0
    faults: int = 0
    evictions: int = 0
    stall_seconds: float = 0.0
    seconds: float = 0.0
    peak_bytes: int = 0


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
