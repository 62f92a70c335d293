"""How near a limit training may come: the default budget, and what is left at each computation in a container.

A budget counts arrays. Beside them a process has the interpreter, libraries and the holes that freed arrays leave in
the heap, and a container counts the spill file's dirty pages too. What of that is there when an iteration begins is
measured: it is missing from what is free. What is still to come is set aside:

    limit | beside arrays | arrays held |                what is free                  |
          |<-- measured ->|<---- the default budget, in steps ---->|<--- set aside --->|

Set aside is a tenth of what is free. In a container it is a twentieth, what is allocated unasked, and half of the pages
that may be dirty: there each computation and each swap-in asks first, since the kernel refuses nothing and ends the
process. Maps are then evicted for what is lacking, which costs time and no more. A plan that needs more than the
default budget is tried before training is refused, if it leaves half of what is set aside.

A plan takes seconds to make, and it may need all of its budget. So the budget in force stays while a quarter of what
would be set aside is still free, and less than an eighth can be added. When it falls, half is set aside: the smallest
budget that works is not known here. All are multiples of coarse steps, so that a plan may be found again.

Ranks that share a container may all ask in the same moment: each gets its share of what is left.

Left out: small arrays that the program makes between two computations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from chainer_ooc.backends.base import SHARE_OF_FREE
from chainer_ooc.backends.host import groups
from chainer_ooc.backends.host.groups import Group
from chainer_ooc.ranks.node import node, share

#: Of what is free, for the holes between arrays and what libraries allocate: where each computation asks, and else.
SHARE_SET_ASIDE_ASKED, SHARE_SET_ASIDE = 0.05, 1 - SHARE_OF_FREE

#: Of a container's limit: for what is allocated unasked, and for the spill file's dirty pages.
SHARE_UNASKED, SHARE_DIRTY = 1 / 64, 1 / 32
LEAST_UNASKED_BYTES, LEAST_DIRTY_BYTES = 8 << 20, 16 << 20
MOST_DIRTY_BYTES = 256 << 20

#: A budget has this many binary digits that count.
_DIGITS = 7

_LOOK_AGAIN_SECONDS = 1.0


class Headroom:
    """What the containers that this process is in leave.

    Args:
        find: finds the groups in force; they are looked for again now and then, as limits change.

    Attributes:
        was_in_container: what `in_container` has given last.
    """

    was_in_container = False

    def __init__(self, find: Callable[[], Sequence[Group]] = groups.groups) -> None:
        self._find = find
        self._groups: Sequence[Group] = ()
        self._looked_at = float('-inf')

    def has_room(self, nbytes: int, will_write: bool) -> bool:
        """Whether so much more near memory can be used now, and the spill file be written to if `will_write`."""
        for each in self.in_force():
            needed_bytes = node().ranks * (nbytes + _unasked_bytes(each))
            dirty_bytes = _dirty_bytes(each) if will_write else 0
            if needed_bytes > each.left_now_bytes(needed_bytes, dirty_bytes):
                return False
        return True

    def left_bytes(self) -> int | None:
        """What can be used now at most; None where there is no container."""
        return min((share(each.left_now_bytes()) for each in self.in_force()), default=None)

    def in_container(self) -> bool:
        """Whether there is a container."""
        now = time.monotonic()
        if now - self._looked_at > _LOOK_AGAIN_SECONDS:
            self._groups, self._looked_at = self._find(), now
            self.was_in_container = bool(self._groups)
        return self.was_in_container

    def dirty_bytes(self) -> int | None:
        """How much of the spill file may be dirty; None for any amount."""
        return min(map(_dirty_bytes, self.in_force()), default=None)

    def set_aside_bytes(self, free_bytes: int) -> int:
        """What of the free memory is not for arrays."""
        groups_bytes = [_unasked_bytes(each) + _dirty_bytes(each) // 2 for each in self.in_force()]
        if not groups_bytes:
            return round(SHARE_SET_ASIDE * free_bytes)
        return int(SHARE_SET_ASIDE_ASKED * free_bytes) + max(groups_bytes)

    def in_force(self) -> Sequence[Group]:
        return self._groups if self.in_container() else ()


def budget(latest_bytes: int | None, whole_bytes: int, set_aside_bytes: int) -> int:
    """Returns the budget for an iteration.

    Args:
        latest_bytes: of the iteration before, or None.
        whole_bytes: of the arrays that are held, and what is free.
        set_aside_bytes: of these, what is not for arrays.
    """
    if latest_bytes is not None and holds(latest_bytes, whole_bytes, set_aside_bytes):
        return latest_bytes
    falls = latest_bytes is not None and latest_bytes > whole_bytes - set_aside_bytes
    found_bytes = max(1, whole_bytes - (set_aside_bytes // 2 if falls else set_aside_bytes))
    step_bytes = 1 << max(0, found_bytes.bit_length() - _DIGITS)
    return found_bytes // step_bytes * step_bytes


def holds(latest_bytes: int, whole_bytes: int, set_aside_bytes: int) -> bool:
    """Whether a budget may stay: a quarter of what is to be set aside is still there, and little can be added."""
    return (latest_bytes <= whole_bytes - set_aside_bytes // 4
            and whole_bytes - set_aside_bytes < latest_bytes + latest_bytes // 8)


def _unasked_bytes(group: Group) -> int:
    return max(LEAST_UNASKED_BYTES, int(SHARE_UNASKED * group.limit_bytes))


def _dirty_bytes(group: Group) -> int:
    return share(min(MOST_DIRTY_BYTES, max(LEAST_DIRTY_BYTES, int(SHARE_DIRTY * group.limit_bytes))))
