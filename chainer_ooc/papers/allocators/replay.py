"""Runs an iteration's mallocs and frees through an allocator, and finds the memory that it needs.

A plan with a budget of B bytes is kept by counting bytes; an allocator that fragments needs a larger device for it.
`smallest_capacity` says how much larger, and with that which budget a device allows::

    |<- budget of the plan (exact) ->|<- lost to fragmentation ->|
    |<---------- smallest capacity of the pool ----------------->|

Source: Window+VA section 4, and figure 3 (a budget of 8 GB filled a device of 16 GB at batch 928).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chainer_ooc.papers.allocators.allocator import AllocatorModel, DeviceFullError, ModelBlock, Operations
from chainer_ooc.papers.allocators.events import BEFORE, Event
from chainer_ooc.papers.allocators.exact import ExactAllocator


@dataclass(frozen=True)
class Replay:
    """What happened.

    Attributes:
        peak_used_bytes: the most that was asked for and alive.
        peak_reserved_bytes: the most that the allocator had from the device.
        fragmentation: 1 - used / reserved, when `reserved` first was at its peak.
        failed_at: the position whose malloc failed (`BEFORE` for what precedes the iteration), or None.
        external_fragmentation: 1 - largest free piece / free bytes at the failure; 0 without one.
        used_bytes: by position, the most that lived during its computation, in any iteration; 0 for what was not
            reached.
        reserved_bytes: by position, the same of what was reserved.
        operations: how often what was done.
    """

    peak_used_bytes: int
    peak_reserved_bytes: int
    fragmentation: float
    failed_at: int | None
    external_fragmentation: float
    used_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    operations: Operations


def replay(events: Sequence[Event], allocator: AllocatorModel, iterations: int = 1) -> Replay:
    """Runs events through a fresh allocator, until the end or until it has no room.

    Args:
        events: of one iteration, as `events_of` gives them.
        allocator: is changed: it holds afterwards what lives between iterations, or what lived at the failure.
        iterations: how often the iteration runs; later ones find the cache that the first has cut up.
    """
    gauge = _Gauge(allocator, max((event.position for event in events), default=BEFORE) + 1)
    blocks: dict[int, ModelBlock] = {}
    failed_at, external_fragmentation = None, 0.0
    try:
        for number in range(iterations):
            for event in events:
                failed_at = event.position
                if number and event.position == BEFORE:
                    continue
                gauge.read(event)
                if event.kind == 'malloc':
                    blocks[event.block] = allocator.malloc(event.nbytes)
                else:
                    allocator.free(blocks.pop(event.block))
                gauge.read(event)
        failed_at = None
    except DeviceFullError as error:
        external_fragmentation = error.external_fragmentation
    return Replay(gauge.peak_used_bytes, gauge.peak_reserved_bytes, gauge.fragmentation, failed_at,
                  external_fragmentation, tuple(gauge.used_bytes), tuple(gauge.reserved_bytes), allocator.operations)


class _Gauge:
    """Notes the peaks."""

    def __init__(self, allocator: AllocatorModel, positions: int):
        self.allocator = allocator
        self.peak_used_bytes = self.peak_reserved_bytes = 0
        self.fragmentation = 0.0
        self.used_bytes = [0] * positions
        self.reserved_bytes = [0] * positions

    def read(self, event: Event) -> None:
        used_bytes, reserved_bytes, position = (
            self.allocator.used_bytes, self.allocator.reserved_bytes, event.position)
        self.peak_used_bytes = max(self.peak_used_bytes, used_bytes)
        if reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = reserved_bytes
            self.fragmentation = (reserved_bytes - used_bytes) / reserved_bytes
        if not event.at_edge:
            self.used_bytes[position] = max(self.used_bytes[position], used_bytes)
            self.reserved_bytes[position] = max(self.reserved_bytes[position], reserved_bytes)


def smallest_capacity(events: Sequence[Event], allocator: Callable[[int], AllocatorModel], iterations: int = 1) -> int:
    """The smallest device, in bytes, in which the events succeed, by bisection.

    Between the bytes that live at most and the bytes that the allocator takes from a device without an end, a larger
    device is taken to be no worse. For a best-fit pool that is not quite so: what it gives back differs, and now and
    then a device somewhat smaller than the answer would do. The answer itself always does, and one byte less does not.

    Args:
        events: of one iteration, as `events_of` gives them.
        allocator: makes a fresh one for a capacity in bytes.
        iterations: how often the iteration runs.
    """
    enough = replay(events, allocator(sys.maxsize), iterations).peak_reserved_bytes
    too_little = replay(events, ExactAllocator(sys.maxsize)).peak_used_bytes - 1
    while enough - too_little > 1:
        middle = (enough + too_little) // 2
        if replay(events, allocator(middle), iterations).failed_at is None:
            enough = middle
        else:
            too_little = middle
    return enough
