"""Sums over a trace: what an iteration keeps, how long it takes, and the call that needs most at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chainer_ooc.trace import Trace


@dataclass(frozen=True)
class Totals:
    """What `profile` says about a whole iteration.

    Attributes:
        maps: number of feature maps.
        retained_maps: those that a function keeps for backward.
        retained_bytes: their size.
        retained_bytes_per_image: the same, by the batch size.
        calls, steps: number of forward calls and of steps in backward.
        forward_seconds, backward_seconds: their durations.
        working_set_bytes: the most that one call or step needs at once: the maps that it reads, and what it allocates.
        working_set_at: that call or step.
    """

    maps: int
    retained_maps: int
    retained_bytes: int
    retained_bytes_per_image: float
    calls: int
    steps: int
    forward_seconds: float
    backward_seconds: float
    working_set_bytes: int
    working_set_at: str


def totals(trace: Trace, batchsize: int) -> Totals:
    """Sums up a trace of an iteration over ``batchsize`` images."""
    retained = [each for each in trace.maps if each.retained]
    retained_bytes = sum(each.nbytes for each in retained)
    working_sets = _working_sets(trace)
    largest = max(range(trace.positions), key=lambda position: working_sets[position])
    return Totals(
        maps=len(trace.maps), retained_maps=len(retained), retained_bytes=retained_bytes,
        retained_bytes_per_image=retained_bytes / batchsize, calls=len(trace.calls), steps=len(trace.steps),
        forward_seconds=sum(call.seconds for call in trace.calls),
        backward_seconds=sum(step.seconds for step in trace.steps),
        working_set_bytes=working_sets[largest], working_set_at=trace.name_of(largest))


def _working_sets(trace: Trace) -> list[int]:
    def size(ids: Iterable[int]) -> int:
        return sum(trace.maps[each].nbytes for each in {*ids} if each >= 0)

    return [size(call.inputs) + call.peak_bytes for call in trace.calls] + [
        size(step.maps) + step.peak_bytes for step in trace.steps]
