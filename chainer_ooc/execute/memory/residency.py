"""What is in near memory, and every change of that: swap-outs, swap-ins, drops, evictions.

    swap_out --> leaving --> freed                   what leaves, the oldest first, see `transit`
    prefetch --> arriving --fetch--> resident        what comes, the oldest first
    drop --> spare --yield--> lost                   what has no known use left, the oldest first

What the program reads, it may write to: what is made from it is made before (`expose`)::

    map --recipe--> map that backward waits for          made now, from the bytes as they are
     '--recipe--> map that backward waits for no more    its recipe goes on with a checksum of what it reads

The same is done when a session ends, whose storages others read.

Every method may be called from any thread; the callers of those without a lock of their own hold `reentry.LOCK`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable
from typing import Any

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import Backend, ByteArray
from chainer_ooc.errors import LostMapError, SpillError
from chainer_ooc.execute import log
from chainer_ooc.execute.memory.recomputation import make_again
from chainer_ooc.execute.memory.transit import Context, Transit
from chainer_ooc.execute.storage.account import storage_at
from chainer_ooc.execute.storage.reentry import LOCK
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage, Token
from chainer_ooc.execute.tally import Tally
from chainer_ooc.simulate.timeline import Cause

#: So many references to storages are never looked through for those of dead ones.
FEW = 64

#: A block that is given to a function although its storage is in one of these: the program has held on to it.
HELD_ON = frozenset({State.SPARE, State.AWAY, State.LOST})


class Residency(Transit):
    """The storages of one session.

    Attributes:
        closed: nothing is moved here any more.
    """

    def __init__(self, backend: Backend):
        super().__init__(backend)
        self.closed = False
        self._refs: list[weakref.ref[Storage]] = []  # no WeakSet: interrupts that come in its callback are lost
        self._most = FEW

    def register(self, array: Any, root: Any, token: Token, map_id: int, from_outside: bool) -> Storage | None:
        """Returns the storage under an array, new as `map_id` of iteration `token` if need be; None if it cannot move.

        Of a block from outside of the graph, which no function of the iteration made, only the array's part counts: a
        batch may be a slice of a whole data set.
        """
        found = storage_at(root)
        if found is not None and not found.memory.closed:
            if found.state in HELD_ON:
                found.memory.fetch(found, exposed=False)
            return found
        if not self.backend.manages(root) or arrays.flat_bytes(root) is None:
            return None
        storage = Storage(self, root)
        storage.assign(token, map_id, from_outside)
        if from_outside:
            storage.count_as(int(array.nbytes))
        self._add(storage)
        self._count(root, storage, not from_outside or self.context.is_metered(root))
        return storage

    def known(self) -> list[Storage]:
        """All storages that are alive, those that were made first before others."""
        return [storage for ref in self._refs if (storage := ref()) is not None]

    def _add(self, storage: Storage) -> None:
        self._refs.append(weakref.ref(storage))
        if len(self._refs) > self._most:  # each time that they have doubled, those of the dead go
            self._refs = [ref for ref in self._refs if ref() is not None]
            self._most = 2 * max(FEW, len(self._refs))

    def mend(self) -> None:
        """Puts storages and accounts right after an exception, which may have come between any two of their steps."""
        for storage in self.known():
            storage.mend()
        self.recount()

    # --- moving ----------------------------------------------------------------------------------------------------

    def swap_out(self, storage: Storage) -> bool:
        """Starts to copy a resident storage out, which is freed when the copy is whole; False if it cannot leave now.

        If this fails: `reap` reports it, and the storage stays resident.
        """
        if storage.state is not State.RESIDENT or self.closed:
            return False
        if storage.has_true_copy():
            storage.free()
            return True
        if storage.is_held_elsewhere():
            return False
        block = storage.bytes_here()
        if block is None:  # the collector or another thread has ended the last holder
            return False
        copy, transfer = self.backend.swap_out(block)
        self.tally.swapped_out_bytes += storage.nbytes
        self.leaving.append(storage)  # first, or after an interrupt it would never be seen off
        storage.leave(block, copy, transfer, storage.recalled and not self.context.far.takes_memory)
        return True

    def can_leave(self, storage: Storage) -> bool:
        """Whether nothing but what gives way holds a resident storage, which has no true copy."""
        return storage.state is State.RESIDENT and not storage.has_true_copy() and not storage.is_held_elsewhere()

    def prefetch(self, storage: Storage) -> bool:
        """Starts to bring a storage back, keeps one that is leaving; False if there is no room now."""
        storage.recall()
        found = self._notice(storage)
        if found is not None and storage.state is State.RESIDENT:  # what else holds it may not for long
            storage.refill(found)
        if found is not None or storage.state is not State.AWAY:
            return True
        return self.context.far.begin(self, storage)

    def fetch(self, storage: Storage, exposed: bool, beside: Iterable[Storage] = ()) -> ByteArray:
        """Makes a storage resident because it is read now, and gives the block (P1).

        What is read `beside` it, and is to be made again as well, comes back with it. The block lives no longer than
        this reference and the slots that took arrays on it. If `exposed`, the program reads it and may write to it:
        then the far copy is worthless, and Variables get their arrays back. Else only what Chainer retains comes back.

        Raises:
            LostMapError: it was freed, and cannot be made again.
            SpillError: a copy failed; the far copy is whole, and reading again tries again.
            MemoryError: no near memory for it.
        """
        with LOCK:
            if storage.state is State.LEAVING:
                self.context.far.want(self, storage)
            block = self._notice(storage)
            if block is None:
                block = self._bring(storage, beside)
            if exposed:
                self._expose(storage, block)
            storage.refill(block)
            return block

    def open(self, storage: Storage) -> None:
        """Makes a storage resident for a function that may write to it; raises as `fetch`."""
        with LOCK:
            block = self.fetch(storage, exposed=False)
            if storage.is_in_slots():  # else a copy of a Variable is all that is left, whose read is noticed
                self._expose(storage, block)
                storage.refill(block)

    def drop(self, storage: Storage, may_lose: bool) -> None:
        """Frees a storage after its last backward use.

        Its far copy stays while the graph lives, so that it can still be read, and so does its recipe. One with neither
        becomes spare, if `may_lose` and no Variable of the program's shows it.
        """
        if storage.state is State.ARRIVING:
            self.turn_back(storage)
        storage.recall(False)
        if storage.state is not State.RESIDENT or self.closed:
            return
        if storage.has_true_copy() or storage.recipe is not None:
            storage.free()
        elif may_lose and storage.copy is None and storage.root() is not None and not storage.is_in_variables():
            self.keep_spare(storage)

    def close(self) -> None:
        """Brings back what may still be read, then closes the backend.

        If this fails: an error of a transfer passes through, and the backend stays open with what it has.
        """
        self.enter(Context(self.tally, far=self.context.far))
        self.backend.limit(None, lambda nbytes: False)
        self.finish_swap_outs()
        make_last([*self.known(), *(made for each in self.known() for made in made_from(each))])
        for storage in self.known():
            here = storage.notice()  # what only a recipe held dies before, and nothing while it is looked at
            if storage.state is not State.LOST:
                block = self.fetch(storage, exposed=True)
                if here is None:  # copies of Variables, which no slot knows, find the block here as long as they live
                    storage.keep(block)
        self.backend.close()
        self._targets.clear()
        self.closed = True
        super().close()

    def is_idle(self) -> bool:
        """Whether all that can still be read is in near memory."""
        return all(storage.state in (State.RESIDENT, State.SPARE) or not storage.is_wanted()
                   for storage in self.known())

    def has_cut_off(self) -> bool:
        """Whether the program has maps that it has cut off from their graph, to go on from them."""
        return any(not storage.from_outside and storage.is_cut_off() for storage in self.known())

    def is_relied_on(self) -> bool:
        """Whether a far copy or a recipe would be wrong after a write that was not noticed."""
        return any(storage.is_relied_on() for storage in self.known())

    def leave_to_parent(self) -> None:
        """In a forked child: moves nothing any more; what was away is the parent's."""
        self.closed = True
        self.enter(Context(Tally(self.backend)))
        super().close()

    # --- room ------------------------------------------------------------------------------------------------------

    def can_come(self, storage: Storage, beside_bytes: int) -> bool:
        """Whether there is room for a storage to come now, and for so many bytes more."""
        return (storage.state is not State.AWAY or not self.context.far.takes_memory
                or self.has_room(storage.nbytes + beside_bytes))

    def free_something(self) -> bool:
        if self.leaving:
            self.reap(wait=True)
            return True
        victim = self.candidates.pop(self.context.next_use)
        if victim is None:
            return False
        if self.is_pinned(victim) or victim.mapped:
            return True
        if victim.state is State.ARRIVING:
            self.turn_back(victim)
        elif self._evict(victim):
            self.tally.evictions += 1
            self.settle()
        return True

    def _evict(self, storage: Storage) -> bool:
        """Discards or swaps out; what only a Variable of the iteration in hand has may soon be gone, and is left."""
        if storage.is_retained():
            return storage.discard() or self.swap_out(storage)
        return storage.token is not None and storage.token.has_ended and self.swap_out(storage)

    # --- the small steps -------------------------------------------------------------------------------------------

    def _expose(self, storage: Storage, block: ByteArray) -> None:
        self.context.on_exposed(storage)
        pinned = self.pinned
        self.pin([*pinned, storage])  # it is not evicted for what is made from it
        try:
            expose(storage, block)
        finally:
            self.pin(pinned)

    def _notice(self, storage: Storage) -> ByteArray | None:
        """As `Storage.notice`; what was spare is resident then."""
        if storage.state is State.SPARE:
            storage.use_again()
            self.book(storage, 'maps')
            self.touch(storage)
        return storage.notice()

    def _bring(self, storage: Storage, beside: Iterable[Storage]) -> ByteArray:
        if storage.state is State.ARRIVING:
            try:
                return self.arrive(storage)
            except OSError as error:
                log.logger.info('a swap-in failed and is tried again: %s', str(error))
        with self.tally.stalled(Cause.SWAP_IN, storage):
            if storage.state is State.AWAY:
                self.tally.faults += 1
                return self.context.far.bring(self, storage)
            return make_again(self, storage, beside)


def expose(storage: Storage, block: ByteArray) -> None:
    """Has the program write to the block from now on: makes before what is waited for and made from it.

    Raises:
        SpillError, MemoryError: as `fetch`; nothing has changed.
    """
    if not storage.exposed:
        make_last(made_from(storage))
        for recipe in storage.readers():
            recipe.distrust(storage, block)
    if storage.state is State.RESIDENT:  # until the slots have it, or an interrupt leaves a copy that is worthless
        storage.keep(block)
    storage.expose()


def make_last(storages: Iterable[Storage]) -> None:
    """Makes what functions wait for, or a Variable shows, for the last time: what it is made from changes, or goes.

    A forked child, where far copies are the parent's, makes what it can.
    """
    waiting, seen = list(storages), set()
    while waiting:
        storage = waiting.pop()
        if storage in seen:
            continue
        seen.add(storage)
        if storage.pending_uses <= 0:  # it is only on the way to others, and may die with its Variable
            waiting += made_from(storage)
            if not storage.is_shown():
                continue
        block = storage.notice()
        with contextlib.suppress(LostMapError, *((SpillError,) if storage.memory.closed else ())):
            if block is None and storage.state is State.LOST and storage.recipe is not None:
                block = storage.memory.fetch(storage, exposed=False)
        if block is not None:
            storage.remember(None)
            storage.refill(block)


def made_from(storage: Storage) -> list[Storage]:
    """What recipes make from a storage."""
    return [made for recipe in storage.readers() for made in recipe.makes()]
