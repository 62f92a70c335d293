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

from chainer_ooc.classify.search import largest_fitting
from chainer_ooc.papers.allocators.allocator import AllocatorModel, DeviceFullError, ModelBlock
from chainer_ooc.papers.allocators.events import BEFORE, Event
from chainer_ooc.papers.allocators.exact import ExactAllocator


@dataclass(frozen=True)
class Replay:
    """What happened.

    Attributes:
        peak_used_bytes: the most that was asked for and alive.
        peak_reserved_bytes: the most that the allocator had from the device.
        fragmentation: the share of that which was not used, when it first was so much.
        failed_at: the position whose malloc failed (`BEFORE` for what precedes the iteration), or None.
    """

    peak_used_bytes: int
    peak_reserved_bytes: int
    fragmentation: float
    failed_at: int | None


def replay(events: Sequence[Event], allocator: AllocatorModel, iterations: int = 1) -> Replay:
    """Runs events through a fresh allocator, until the end or until it has no room.

    Args:
        events: of one iteration, as `events_of` gives them.
        allocator: is changed: it holds afterwards what lives between iterations, or what lived at the failure.
        iterations: how often the iteration runs; later ones find the cache that the first has cut up.
    """
    blocks: dict[int, ModelBlock] = {}
    peak_used_bytes, peak_reserved_bytes, fragmentation, failed_at = 0, 0, 0.0, None
    try:
        for number in range(iterations):
            for event in events:
                if number and event.position == BEFORE:
                    continue
                if event.kind == 'malloc':
                    blocks[event.block] = allocator.malloc(event.nbytes)
                else:
                    allocator.free(blocks.pop(event.block))
                peak_used_bytes = max(peak_used_bytes, allocator.used_bytes)
                if allocator.reserved_bytes > peak_reserved_bytes:
                    peak_reserved_bytes = allocator.reserved_bytes
                    fragmentation = 1 - allocator.used_bytes / peak_reserved_bytes
    except DeviceFullError:
        failed_at = event.position
    return Replay(peak_used_bytes, peak_reserved_bytes, fragmentation, failed_at)


def smallest_capacity(events: Sequence[Event], allocator: Callable[[int], AllocatorModel], iterations: int = 1) -> int:
    """The smallest device, in bytes, in which the events succeed, by bisection.

    Between the bytes that live at most and the bytes that the allocator takes from a device without an end, a larger
    device is taken to be no worse. For a best-fit pool that is not quite so: what it gives back differs, and now and
    then a device somewhat smaller than the answer would do. The answer itself always does, and one byte less does not.
    Events and iterations are those of `replay`; `allocator` makes a fresh one for a capacity in bytes.
    """
    enough = replay(events, allocator(sys.maxsize), iterations).peak_reserved_bytes
    too_little = replay(events, ExactAllocator(sys.maxsize)).peak_used_bytes - 1
    return 1 + largest_fitting(too_little, enough, lambda capacity_bytes: (
        replay(events, allocator(capacity_bytes), iterations).failed_at is not None))
