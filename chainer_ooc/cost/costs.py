"""The times of one iteration on one machine, as the simulator and the policies see them.

They are measured with the trace itself (PoocH 4.2), or come from a description of another machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from chainer_ooc.trace import Trace


@dataclass(frozen=True)
class Costs:
    """Seconds by position, and the links between near and far memory.

    Attributes:
        seconds: of each position's computation: the calls, then the steps.
        write_bytes_per_second: near to far; 0 if a transfer takes no time, or if it is unknown.
        read_bytes_per_second: far to near; likewise.
        latency_seconds: what each transfer takes beside its bytes.
        slowdown: a computation takes 1 + slowdown times as long while copies run: a GPU has engines for them, on a host
            the cores that compute make them.
    """

    seconds: tuple[float, ...]
    write_bytes_per_second: float
    read_bytes_per_second: float
    latency_seconds: float = 0.0
    slowdown: float = 0.0

    def write_seconds(self, nbytes: int) -> float:
        """Time of a swap-out."""
        return self.latency_seconds + (nbytes / self.write_bytes_per_second if self.write_bytes_per_second else 0.0)

    def read_seconds(self, nbytes: int) -> float:
        """Time of a swap-in."""
        return self.latency_seconds + (nbytes / self.read_bytes_per_second if self.read_bytes_per_second else 0.0)


def measured(trace: Trace) -> Costs:
    """The times that were recorded with a trace."""
    return Costs((*(call.seconds for call in trace.calls), *(step.seconds for step in trace.steps)),
                 trace.write_bytes_per_second, trace.read_bytes_per_second, slowdown=trace.copy_slowdown)


def timed(trace: Trace, costs: Costs) -> Trace:
    """The trace as if these times had been recorded with it, but for their latency: `measured` gives them back."""
    calls, steps = costs.seconds[:len(trace.calls)], costs.seconds[len(trace.calls):]
    return replace(
        trace, calls=tuple(replace(each, seconds=own) for each, own in zip(trace.calls, calls, strict=True)),
        steps=tuple(replace(each, seconds=own) for each, own in zip(trace.steps, steps, strict=True)),
        write_bytes_per_second=costs.write_bytes_per_second, read_bytes_per_second=costs.read_bytes_per_second,
        copy_slowdown=costs.slowdown)
