"""What goes when near memory is short: first what is leaving anyway, then what is used last (P3)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from chainer_ooc.execute.revival import forget
from chainer_ooc.execute.storage import State

if TYPE_CHECKING:
    from chainer_ooc.execute.residency import Residency


def relief(residency: Residency) -> Callable[[int], bool]:
    """Returns what a device calls when an allocation does not fit, see `Backend.limit`."""
    return functools.partial(_relieve, residency)


def _relieve(residency: Residency, nbytes: int) -> bool:
    stuck: set[int] = set()
    before_bytes = residency.near_bytes()
    residency.tally.missing_bytes = max(residency.tally.missing_bytes, nbytes)
    with residency.tally.stalled():
        while residency.near_bytes() > before_bytes - nbytes and free_something(residency, stuck):
            pass
    return residency.near_bytes() < before_bytes


def free_something(residency: Residency, stuck: set[int]) -> bool:
    """Waits for the oldest swap-out, or else evicts; False if there is nothing left to try.

    Args:
        residency: where memory is short.
        stuck: what was tried already, by identity.
    """
    if residency.leaving:
        residency.reap(wait=True)
        return True
    return _evict(residency, stuck)


def _evict(residency: Residency, stuck: set[int]) -> bool:
    candidates = [each for each in residency.known()
                  if each.state in (State.RESIDENT, State.ARRIVING) and each not in residency.pinned
                  and not each.mapped and each.nbytes >= max(residency.min_bytes, 1) and id(each) not in stuck]
    if not candidates:
        return False
    victim = max(candidates, key=residency.next_use)
    stuck.add(id(victim))
    if victim.state is State.ARRIVING:
        residency.turn_back(victim)
    elif victim.is_retained() and (
            (victim.recipe is not None and forget(residency, victim)) or residency.swap_out(victim)):
        residency.tally.evictions += 1
        residency.settle()
    return True
