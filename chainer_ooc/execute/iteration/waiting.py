"""Maps that could leave, and stay until far memory is ready for them, or until memory is short.

Pinning takes longer than copying, and the thread that trains would stand still meanwhile. So far memory is asked for
beforehand, and what would have to wait for it stays where it is; it is evicted when memory is short. Under a plan all
that it swaps is asked for when the iteration begins. Without one it is not known what will have to leave, only how full
near memory is::

    near memory  |########## stays ##########|  leaves, the first one first, as soon as far memory is ready |
                 0                    half of the budget                                              budget

What is over half of it is what a plan will have to swap, or to recompute. Where far memory is at hand, as on the host,
no map waits here.
"""

from __future__ import annotations

import weakref
from collections import deque

from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage

#: Of the budget, what stays in near memory without a plan, and without having been evicted.
SHARE_THAT_STAYS = 0.5

#: So many of those that wait are looked at before a call: one of many costs what one of few costs.
LOOKED_AT = 64


class Waiting:
    """The maps of one iteration that wait.

    Attributes:
        maps: they, in the order in which they could leave.
    """

    def __init__(self, memory: Residency, following: Following):
        self._memory = memory
        self._following = following
        self.maps: deque[weakref.ref[Storage]] = deque()

    def prepare(self) -> None:
        """Asks for the far memory that the plan needs, in the order in which its maps leave."""
        graph, leave_after = self._following.graph, self._following.orders.leave_after
        if graph is not None and leave_after and self._memory.backend.prepares_far_memory:
            self._memory.backend.prepare(
                [graph.trace.maps[each].nbytes for position in sorted(leave_after) for each in leave_after[position]])

    def takes(self, storage: Storage) -> bool:
        """Whether a map that could leave now stays for a while."""
        backend = storage.memory.backend
        if not backend.prepares_far_memory or storage.memory is not self._memory:
            return False
        if not self.maps and self._over_bytes() > 0:
            backend.prepare([storage.nbytes])
            if backend.is_prepared(storage.nbytes):
                return False
        if not self._memory.can_leave(storage):
            return False
        self.maps.append(weakref.ref(storage))
        return True

    def go_on(self) -> None:
        """Has maps leave for which far memory is ready, and asks for that of the others."""
        over_bytes = self._over_bytes()
        staying, lacking = [], []
        for _ in range(min(LOOKED_AT, len(self.maps))):
            if over_bytes <= 0:
                break
            ref = self.maps.popleft()
            storage = ref()
            if storage is None or storage.state is not State.RESIDENT or storage.recalled or not storage.is_retained():
                continue
            over_bytes -= storage.nbytes
            is_prepared = self._memory.backend.is_prepared(storage.nbytes)
            if not is_prepared:
                lacking.append(storage.nbytes)
            if not (is_prepared and self._memory.swap_out(storage)):
                staying.append(ref)
        self.maps.extendleft(reversed(staying))
        if lacking:
            self._memory.backend.prepare(lacking)

    def begin_backward(self) -> None:
        """Without a plan what is still here is needed sooner or later: it stays unless memory is short."""
        if self._following.graph is None:
            self.maps.clear()

    def _over_bytes(self) -> float:
        """What has to leave near memory beside what is leaving."""
        budget_bytes = self._memory.budget_bytes
        if self._following.graph is not None:
            return float('inf')
        if budget_bytes is None:
            return 0.0
        leaving_bytes = sum(each.nbytes for each in self._memory.leaving if each.state is State.LEAVING)
        return self._memory.near_bytes() - leaving_bytes - SHARE_THAT_STAYS * budget_bytes
