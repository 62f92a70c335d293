"""What is in near memory, and every change of that: swap-outs, swap-ins, drops, evictions, and the budget (P3).

Only the thread that trains changes residency. A swap-out that is done frees nothing by itself: `reap` looks at finished
ones at the edges of calls, so that the memory that a call sees does not change while it runs.

Source: zict's and distributed's two-tier mappings (evict until below target; the value is always in a tier).
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import Backend, ByteArray
from chainer_ooc.classify.decision import Shared
from chainer_ooc.execute import log
from chainer_ooc.execute.account import Account
from chainer_ooc.execute.arrivals import Arrivals
from chainer_ooc.execute.eviction import free_something
from chainer_ooc.execute.places import Array
from chainer_ooc.execute.revival import release, revive
from chainer_ooc.execute.storage import State, Storage
from chainer_ooc.execute.tally import Tally
from chainer_ooc.execute.through import come_back, see_off, show


class Residency(Account):
    """The storages of one backend.

    Attributes:
        backend: moves the bytes.
        budget_bytes: what near memory may hold; nothing is moved for its sake while it is None.
        min_bytes: smaller blocks are never evicted.
        inside: Chainer's own computation runs, so that whoever reads an array does not write to it.
        pinned: storages that the current call needs.
        next_use: position of a storage's next use, for eviction; the farthest goes first.
        maps_far_memory: what is away is read where it is, see `through`.
        shares_chains: which maps, made again on the way to another, stay if functions still wait for them.
        on_lost: called with a storage that is read after it was lost.
        leaving: what is being copied out, the oldest first.
    """

    def __init__(self, backend: Backend):
        super().__init__()
        self.backend = backend
        self.budget_bytes: int | None = None
        self.min_bytes = 0
        self.maps_far_memory = False
        self.shares_chains: Shared = True
        self.inside = False
        self.pinned: frozenset[Storage] = frozenset()
        self.next_use: Callable[[Storage], float] = lambda storage: -storage.touched
        self.on_lost: Callable[[Storage], None] = lambda storage: None
        self.tally = Tally(backend)
        self.leaving: deque[Storage] = deque()
        self._arrivals = Arrivals()
        self._all: weakref.WeakSet[Storage] = weakref.WeakSet()

    def register(self, array: Any, token: object, map_id: int, from_outside: bool) -> Storage | None:
        """Returns the storage under an array, made known as `map_id` of `token` if need be; None if it cannot be moved.

        Of a block from outside of the graph only the array's part counts: a batch may be a slice of a whole data set.
        """
        found = self.find(array)
        root = arrays.root_of(array)
        if found is not None or root is None or not self.backend.manages(root) or arrays.flat_bytes(root) is None:
            return found
        storage = Storage(self, root)
        storage.token, storage.map = token, map_id
        self._all.add(storage)
        if from_outside:
            storage.counted_bytes = int(array.nbytes)
        self.count(root, storage, self.metering and not from_outside)
        self.put(root, storage)
        return storage

    def known(self) -> list[Storage]:
        """All storages, wherever they are."""
        return list(self._all)

    # --- moving ----------------------------------------------------------------------------------------------------

    def swap_out(self, storage: Storage) -> bool:
        """Lets a resident storage go as soon as its copy is whole; False if it cannot go now.

        If this fails: `reap` reports it, and the storage stays resident.
        """
        if storage.state is not State.RESIDENT:
            return False
        if storage.has_true_copy():
            self.let_go(storage)
            return True
        release(storage)
        storage.recipe = None  # his Variables have their arrays again, and nobody notices what he writes there
        if storage.held_elsewhere():
            return False
        root = storage.root()
        block = None if root is None else arrays.flat_bytes(root)
        if block is None:
            return False
        self._discard_copy(storage)
        storage.copy, storage.transfer = self.backend.swap_out(block)
        self.tally.swapped_out_bytes += storage.nbytes
        storage.exposed, storage.recalled = False, storage.recalled and self.maps_far_memory
        storage.block, storage.state = block, State.LEAVING
        self.leaving.append(storage)
        storage.empty_places()
        return True

    def reap(self, wait: bool = False) -> None:
        """Lets go of what has been copied out; with `wait`, waits for the oldest swap-out first.

        Raises:
            SpillError: a swap-out failed; that storage is resident.
        """
        self._arrivals.forget_ended()
        while self.leaving:
            storage = self.leaving[0]
            transfer = storage.transfer
            if storage.state is State.LEAVING and transfer is not None:
                if not transfer.done and not wait:
                    return
                self.finish_leaving(storage)
                wait = False
            self.leaving.popleft()

    def abandon_dead(self) -> None:
        """Ends the swap-outs of maps that nobody can ask for any more, such as those of a graph that is gone."""
        for storage in self.leaving:
            if storage.copy is not None and not any(place.is_alive() for place in storage.places.values()):
                storage.recalled = True  # there is no copy to go to
                self._discard_copy(storage)

    def settle(self) -> None:
        """Waits for all swap-outs.

        Raises:
            SpillError: one failed.
        """
        while self.leaving:
            self.reap(wait=True)

    def calm(self) -> None:
        """Waits for all swap-outs; what could not leave stays, and nobody has to hear of it any more."""
        while self.leaving:
            try:
                self.settle()
            except OSError as error:
                log.logger.info('a swap-out failed after its iteration had ended: %s', str(error))

    def prefetch(self, storage: Storage) -> bool:
        """Starts the swap-in of a storage that is away, keeps one that is leaving; False if there is no room now."""
        storage.recalled = True
        found = self._near_block(storage)
        if found is not None and storage.state is State.RESIDENT:  # nobody else may hold it for long
            storage.fill_places(found, variables=storage.exposed)
        if found is not None or storage.state is not State.AWAY:
            return True
        assert storage.copy is not None
        try:
            if self.maps_far_memory:
                show(self, storage)
                return True
            block = self.backend.allocate(storage.nbytes)
        except MemoryError:
            return False
        on_heap, storage.mapped = block.base is None, False
        self.count(arrays.root_of(block), storage, self.metering and on_heap)
        self._limit_kept(0)
        storage.block, storage.state = block, State.ARRIVING
        try:
            storage.transfer = self._arrivals.begin(self.backend, storage.copy, block)
        except BaseException:
            storage.block = None
            self.detach(storage)  # the block may live on under a copy that nobody waits for
            raise
        self.tally.swapped_in_bytes += storage.nbytes
        return True

    def fetch(self, storage: Storage, exposed: bool) -> ByteArray:
        """Makes a storage resident because somebody reads it now (P1).

        Args:
            storage: what is read.
            exposed: the user reads it, who may write to it: then the far copy is worthless, and Variables get their
                arrays back. Else only what Chainer retains comes back.

        Returns:
            The block. It lives no longer than this reference and the places that took arrays on it.

        Raises:
            LostMapError: it was freed after its last known use.
            SpillError: the swap-in failed; the far copy is whole, and reading again tries again.
            MemoryError: no near memory for it.
        """
        with self.tally.stalled():
            if self.maps_far_memory and storage.state is State.LEAVING:
                see_off(self, storage)
            block = self._near_block(storage)
            if block is None:
                block = self._bring(storage)
            storage.fill_places(block, variables=exposed)
            storage.exposed = storage.exposed or exposed
        return block

    def guard(self, storage: Storage) -> None:
        """Empties the Variables of a resident storage that has a far copy, so that a user's read is noticed."""
        watched = storage.copy is not None or storage.hold is not None
        if storage.state is State.RESIDENT and watched and not storage.exposed:
            storage.empty_places(variables_only=True)

    def drop(self, storage: Storage, may_lose: bool) -> None:
        """Frees a storage after its last backward use.

        Its far copy stays while the graph lives, so that it can still be read, and so does its recipe. One with neither
        is lost, where that is allowed and no Variable of the user's shows it.
        """
        if storage.state is State.ARRIVING:
            self.turn_back(storage)
        storage.recalled = False
        if storage.state is not State.RESIDENT:
            return
        if storage.has_true_copy():
            self.let_go(storage)
        elif ((may_lose or (storage.recipe is not None and not storage.exposed))
                and storage.copy is None and not storage.in_variables()):
            storage.empty_places()
            storage.hold, storage.state = None, State.LOST

    def restore(self, storage: Storage, root: Array, block: ByteArray) -> None:
        """Takes new bytes for a lost storage, of which `root` is the owner."""
        self.count(root, storage, self.metering)
        storage.state, storage.exposed = State.RESIDENT, False
        storage.fill_places(block, variables=False)
        self.put(root, storage)

    def is_lost(self, storage: Storage) -> bool:
        """Whether its bytes are in no memory."""
        return self._near_block(storage) is None and storage.state is State.LOST

    def close(self) -> None:
        """Brings back what somebody may still read, then gives the backend back.

        If this fails: an error of a transfer passes through, and the backend stays open with what it has.
        """
        self.budget_bytes = None
        self.backend.limit(None, lambda nbytes: False)
        self.calm()
        for storage in list(self._all):
            if storage.state in (State.AWAY, State.ARRIVING):
                # Copies of Variables, which no place knows, find the block here as long as they live.
                storage.block = self.fetch(storage, exposed=True)
        self.backend.close()
        self._arrivals.clear()

    # --- the budget ------------------------------------------------------------------------------------------------

    def fits(self, nbytes: int) -> bool:
        """Whether so many more bytes keep within the budget."""
        return self.budget_bytes is None or self.near_bytes() + nbytes <= self.budget_bytes

    def has_room(self, nbytes: int) -> bool:
        """Whether so many more bytes keep within the budget, and the device gives them too.

        A device may refuse what the budget allows: free memory lies scattered, or others have taken it.
        """
        return self.budget_bytes is None or (self.fits(nbytes) and self.backend.has_room(nbytes))

    def can_come(self, storage: Storage, beside_bytes: int) -> bool:
        """Whether a storage may come now and leave room for so many bytes more."""
        return storage.state is not State.AWAY or self.maps_far_memory or self.has_room(storage.nbytes + beside_bytes)

    def make_room(self, nbytes: int) -> bool:
        """Waits for swap-outs, then evicts what is used last, until there is room; False if the budget has none."""
        self.reap()
        if not self.has_room(nbytes):
            with self.tally.stalled():
                if self.fits(nbytes):
                    self.backend.trim()
                stuck: set[int] = set()
                while not self.has_room(nbytes) and free_something(self, stuck):
                    pass
        self._limit_kept(nbytes)
        return self.fits(nbytes)

    def _limit_kept(self, nbytes: int) -> None:
        """What the device keeps for later, with what is near and so many bytes more, is within the budget."""
        if self.budget_bytes is not None:
            self.backend.keep_at_most(max(0, self.budget_bytes - self.near_bytes() - nbytes))

    # --- the small steps -------------------------------------------------------------------------------------------

    def finish_leaving(self, storage: Storage) -> None:
        assert storage.transfer is not None
        try:
            with self.tally.stalled():
                storage.transfer.wait()
        except OSError:
            self._stay(storage)
            self._discard_copy(storage)
            self.leaving.popleft()
            raise
        self.tally.written.append(storage.transfer)
        self._stay(storage)
        if storage.recalled and self.maps_far_memory:
            come_back(self, storage)
        elif not storage.recalled and not storage.exposed and storage not in self.pinned:
            self.let_go(storage)

    def _stay(self, storage: Storage) -> None:
        """What was to leave is resident: the places own it again."""
        assert storage.block is not None
        storage.fill_places(storage.block, variables=storage.exposed)
        storage.block, storage.transfer, storage.state = None, None, State.RESIDENT

    def let_go(self, storage: Storage) -> None:
        root = storage.root()
        storage.empty_places()
        storage.exposed, storage.state = False, State.AWAY
        del root

    def _near_block(self, storage: Storage) -> ByteArray | None:
        """Returns the block if it is in near memory, and takes note if it is so, or is not, without our doing."""
        root = storage.root()
        if storage.state is State.LEAVING:
            storage.recalled = True
        elif storage.state in (State.AWAY, State.LOST) and root is not None:
            storage.state, storage.exposed = State.RESIDENT, True
        elif storage.state is State.RESIDENT and root is None:
            storage.state = State.AWAY if storage.has_true_copy() else State.LOST
        near = root is not None and storage.state in (State.LEAVING, State.RESIDENT)
        return arrays.flat_bytes(root) if near and root is not None else None

    def _bring(self, storage: Storage) -> ByteArray:
        if storage.state is State.LOST:
            return revive(self, storage)
        if storage.state is State.ARRIVING:
            try:
                return self._arrive(storage)
            except OSError as error:
                log.logger.info('a swap-in failed and is tried again: %s', str(error))
        if storage.state is State.AWAY:
            self.tally.faults += 1
            if self.maps_far_memory:
                return show(self, storage)
            self.make_room(storage.nbytes)
            stuck: set[int] = set()
            while not self.prefetch(storage):
                if not free_something(self, stuck):
                    raise MemoryError(f'no near memory for the {storage.nbytes} bytes of feature map {storage.map}; '
                                      'lower chainer.config.ooc_budget, so that more of it stays free')
        return self._arrive(storage)

    def _arrive(self, storage: Storage) -> ByteArray:
        """Waits for a swap-in and returns the block, which only the places own from then on."""
        assert storage.transfer is not None and storage.block is not None
        block, state = storage.block, State.AWAY
        try:
            storage.transfer.wait()
            self.tally.read.append(storage.transfer)
            state = State.RESIDENT
            self.put(arrays.root_of(block), storage)
        finally:
            if storage.transfer.done:
                storage.block, storage.transfer, storage.state = None, None, state
                self._arrivals.forget_ended()
        return block

    def turn_back(self, storage: Storage) -> None:
        """Ends a swap-in that nobody waits for: the far copy is still whole."""
        with contextlib.suppress(OSError):
            self._arrive(storage)
        storage.state = State.AWAY

    def _discard_copy(self, storage: Storage) -> None:
        if storage.copy is not None:
            self.backend.release(storage.copy)
            storage.copy = None
