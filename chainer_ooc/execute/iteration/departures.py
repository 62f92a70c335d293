"""The maps of one iteration on their way out: swapped out now or when that is possible, or discarded to be made again.

While a known graph is followed its plan says which, and after which call or step. Without a plan what a call retained
leaves as soon as the next call does not need it; once far memory refuses one, what comes stays until memory is short.

What the program still holds cannot leave. It is tried again when the next calls begin, then after two more, four, eight
and so on, so that holding everything costs each call the same. What could leave, and has no far memory yet, waits
(`Waiting`).
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterable, Sequence

from chainer_ooc.config import Settings
from chainer_ooc.errors import SpillError
from chainer_ooc.execute import log
from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.registration import Register
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage
from chainer_ooc.trace import Call

#: So many calls in a row try again what could not leave.
EVERY_CALL = 4

#: Of the budget, what stays in near memory without a plan, and without having been evicted.
SHARE_THAT_STAYS = 0.5

#: So many of those that wait are looked at before a call: one of many costs what one of few costs.
LOOKED_AT = 64

_Ref = weakref.ref[Storage]


class Departures:
    """Has maps leave."""

    def __init__(self, memory: Residency, following: Following, register: Register, settings: Settings):
        self._memory = memory
        self._following = following
        self._register = register
        self._settings = settings
        self._before: tuple[int, ...] = ()  # made by the call before
        self._is_eager = settings.policy != 'keep'
        self._now = 0
        self._waiting = Waiting(memory, following)
        self._retries: dict[int, list[tuple[_Ref, int]]] = collections.defaultdict(list)  # by when; with its tries
        self._only_shown: list[_Ref] = []

    def prepare(self) -> None:
        """Has far memory made ready for what the plan will have leave."""
        self._waiting.prepare()

    def catch_up(self, position: int) -> None:
        """Has leave what a plan that is followed from here on counts as gone by now."""
        orders = self._following.orders
        try:
            for each in range(position if orders.leave_after or orders.discard_after else 0):
                self._leave_after(each)
        except SpillError as error:
            self._is_refused(error)

    def forget_recipes(self) -> None:
        """Has nothing made again that the plan does not discard: its backward has no room for that.

        What another plan has discarded by now comes back only if all that it is made from can. Of that, what functions
        retain does by itself: this plan swaps or keeps it, and it would be discarded if it had a recipe.
        """
        if (graph := self._following.graph) is None:
            return
        here: list[Storage] = []
        gone: list[Storage] = []
        for ref in self._register.storages:
            storage = ref()
            if storage is not None and storage.recipe is not None:
                (gone if storage.notice() is None else here).append(storage)
        needed, retained = _made_from(gone), {each.id for each in graph.trace.maps if each.retained}
        for storage in here:
            is_needed = storage in needed and storage.map not in retained
            if not is_needed and not self._following.is_discardable(storage.map):
                storage.remember(None)

    def after_call(self, call: Call) -> None:
        """Has the maps of the plan leave; without one, what was retained and is not needed by the next call."""
        self._leave_after(call.index)
        if self._following.graph is None and self._following.ample is None and self._is_eager:
            try:
                self._leave_eagerly(call)
            except SpillError as error:
                self._is_refused(error)

    def _leave_after(self, position: int) -> None:
        """Has leave, or discards, what the plan has leave after a call."""
        maps = self._register.recorder.maps
        for map_id in self._leaving_after(position):
            # What is hidden does not go before the next call: F.dropout looks at the mask once more.
            (self.leave_later if maps[map_id].hidden else self.leave)(self._register.storage(map_id))

    def after_step(self, position: int) -> None:
        """The same after a step of backward."""
        for map_id in self._leaving_after(position):
            self.leave(self._register.storage(map_id))

    def _leaving_after(self, position: int) -> Sequence[int]:
        orders = self._following.orders
        return *orders.discard_after.get(position, ()), *orders.leave_after.get(position, ())

    def _leave_eagerly(self, call: Call) -> None:
        """Swaps out what is retained and is no output of the latest call: no plan says what is used again."""
        for map_id in dict.fromkeys((*self._before, *call.inputs, *call.hidden)):
            storage = self._register.storage(map_id) if map_id not in call.outputs else None
            if storage is not None and storage.pending_uses > 0 and storage.nbytes >= self._settings.min_bytes:
                self.leave(storage)
        self._before = call.outputs

    def leave(self, storage: Storage | None, tries: int = 0) -> bool:
        """Has a map leave that functions retain, now or once nothing else holds it; False if it has to wait.

        What can be made again is discarded, the rest is swapped out.

        Raises:
            SpillError: it could not be copied.
        """
        if storage is None or (storage.recipe is not None and storage.discard()):
            return True
        if not storage.is_retained() or self._waiting.takes(storage) or storage.memory.swap_out(storage):
            return True
        self.leave_later(storage, tries)
        return False

    def leave_later(self, storage: Storage | None, tries: int = 0) -> None:
        """Has a map leave when the next call begins; later if it could not several times."""
        if storage is not None:
            delay = 2 ** max(0, tries - EVERY_CALL)
            self._retries[self._now + delay].append((weakref.ref(storage), tries))

    def go_on(self) -> list[Storage]:
        """Ends swap-outs, and tries once more what could not leave, or was to leave only now; returns what left late.

        Raises:
            SpillError: one that the plan has could not be copied.
        """
        self._now += 1
        try:
            self._memory.reap()
            if self._waiting.maps:
                self._waiting.go_on()
            return self._try_again() if self._now in self._retries else []
        except SpillError as error:
            self._is_refused(error)
            return []

    def _is_refused(self, error: SpillError) -> None:
        """Far memory has refused a map: while recorded or without a plan nothing more leaves unless memory is short."""
        if self._following.graph is not None and not self._register.recorder.measures:
            raise error
        self._is_eager = False
        log.logger.warning('what no plan is known for stays in memory: %s', error)

    def _try_again(self) -> list[Storage]:
        late = []
        for ref, tries in self._retries.pop(self._now):
            storage = ref()
            if storage is None:
                continue
            was_evicted = storage.state is not State.RESIDENT  # memory was short, and it went as soon as it could
            stays = storage.recalled and self._memory.context.far.takes_memory  # its memory is planned for
            if was_evicted or (not stays and self.leave(storage, tries + 1)):
                late.append(storage)
        return late

    def begin_backward(self, is_recorded: bool) -> list[Storage]:
        """The frames of forward are gone: what they held is tried again, and returned, also what was evicted since."""
        if is_recorded and any(each.exposed for each in self._memory.leaving):
            self._memory.finish_swap_outs()  # till then nobody can tell whether the program holds what it has read
        held = [storage for entries in self._retries.values() for ref, _ in entries if (storage := ref()) is not None]
        self._retries.clear()
        self._waiting.begin_backward()
        for storage in held:
            self.leave_later(storage)
        self._keep_shown()
        return held

    def _keep_shown(self) -> None:
        """Has what a Variable of the program's shows swapped out in place of discarded.

        It may be read after the parameters have changed, from which it could not be made again. What no function
        retains stays where the Variable has it, and can be made again for what is made from it, if that ends before.
        """
        for ref in self._register.storages:
            storage = ref()
            if storage is None or storage.recipe is None or not storage.is_shown():
                continue
            if storage.is_lost():
                storage.memory.fetch(storage, exposed=False)
                storage.memory.swap_out(storage)
            elif not storage.is_retained():
                self._only_shown.append(ref)
                continue
            storage.remember(None)

    def end(self) -> None:
        """The iteration is over: what a Variable shows does not keep what it was made from."""
        for ref in self._only_shown:
            storage = ref()
            if storage is not None:
                storage.remember(None)
        self._only_shown.clear()


class Waiting:
    """Maps that could leave, and stay until far memory is ready for them, or until memory is short.

    Pinning takes longer than copying, and the thread that trains would stand still meanwhile. So far memory is asked
    for beforehand, and what would have to wait for it stays where it is; it is evicted when memory is short. Under a
    plan all that it swaps is asked for when the iteration begins. Without one it is not known what will have to leave,
    only how full near memory is::

        near memory  |########## stays ##########|  leaves, the first one first, as soon as far memory is ready |
                     0                    half of the budget                                              budget

    What is over half of it is what a plan will have to swap, or to recompute. Where far memory is at hand, as on the
    host, no map waits here.

    Attributes:
        maps: they, in the order in which they could leave.
    """

    def __init__(self, memory: Residency, following: Following):
        self._memory = memory
        self._following = following
        self.maps: collections.deque[_Ref] = collections.deque()

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


def _made_from(storages: Iterable[Storage]) -> set[Storage]:
    """All that the recipes of some storages read, and those of what they read."""
    found: set[Storage] = set()
    waiting = list(storages)
    while waiting:
        recipe = waiting.pop().recipe
        read = set() if recipe is None else {*recipe.reads()} - found
        found |= read
        waiting += read
    return found
