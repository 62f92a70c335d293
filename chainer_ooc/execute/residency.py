"""What is in near memory, and every change of that: swap-outs, swap-ins, drops, evictions.

    swap_out --> leaving --reap--> let go            what leaves, the oldest first
    prefetch --> arriving --fetch--> resident        what comes, the oldest first
    drop --> spare --yield--> lost                   what has no known use left, the oldest first

A swap-out that is done frees nothing by itself: `reap` looks at finished ones at the edges of calls, so that the memory
that a call sees does not change while it runs. An iteration says once what it wants (`Context`). How bytes that are not
there come back is a `Source`: copied in, mapped (`mapped`) or made again (`revival`).

Every method may be called from any thread; the callers of those without a lock of their own hold `storage.LOCK`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import Backend, ByteArray, FarCopy
from chainer_ooc.classify.decision import Shared
from chainer_ooc.errors import LostMapError
from chainer_ooc.execute import exposure, log
from chainer_ooc.execute.account import Listener, storage_at
from chainer_ooc.execute.arrivals import Arrivals
from chainer_ooc.execute.budget import Budget
from chainer_ooc.execute.places import Array
from chainer_ooc.execute.storage import LOCK, State, Storage
from chainer_ooc.execute.tally import Tally


class Source(Protocol):
    """A way in which bytes come back from far memory.

    Attributes:
        keeps_recalled: what is wanted again before it has left stays.
    """

    @property
    def keeps_recalled(self) -> bool: ...

    def needed_bytes(self, storage: Storage) -> int:
        """Near memory that it takes to have a storage back."""

    def begin(self, memory: Residency, storage: Storage) -> bool:
        """Starts early, where that can be done beside computations; False if there is no room now."""

    def bring(self, memory: Residency, storage: Storage) -> ByteArray:
        """Makes it resident now, and gives its block."""

    def want(self, memory: Residency, storage: Storage) -> None:
        """Somebody reads it while it is leaving."""

    def left(self, memory: Residency, storage: Storage) -> None:
        """Its swap-out has ended well, and it is resident again; lets go of it if nobody wants it."""


class CopyIn:
    """Copies from far memory into new near memory."""

    keeps_recalled = True

    def needed_bytes(self, storage: Storage) -> int:
        return storage.nbytes

    def begin(self, memory: Residency, storage: Storage) -> bool:
        try:
            block = memory.backend.allocate(storage.nbytes)
        except MemoryError:
            return False
        memory.begin_arrival(storage, block)
        return True

    def bring(self, memory: Residency, storage: Storage) -> ByteArray:
        memory.make_room(storage.nbytes)
        while not self.begin(memory, storage):
            if not memory.free_something():
                raise MemoryError(f'no near memory for the {storage.nbytes} bytes of feature map {storage.map}; lower '
                                  'chainer.config.ooc_budget, so that more of it stays free')
        return memory.arrive(storage)

    def want(self, memory: Residency, storage: Storage) -> None:
        storage.recall()

    def left(self, memory: Residency, storage: Storage) -> None:
        if storage.has_true_copy() and not storage.recalled and not memory.is_pinned(storage):
            storage.let_go()


COPY_IN = CopyIn()


@dataclass(frozen=True)
class Context:
    """What an iteration says to the memory that it runs in.

    Attributes:
        tally: counts what it costs.
        budget_bytes: what near memory may hold; nothing is moved for its sake if it is None.
        min_bytes: smaller blocks are never evicted.
        next_use: position of a storage's next use, for eviction; the farthest goes first.
        far: how what is in far memory comes back.
        recipes: makes what is lost resident again, and gives its block, as `revival.make_again` does.
        shares_chains: which maps, made again on the way to another, stay if functions still wait for them.
        on_lost: called with a storage that is read after it was lost.
        listener: is told of blocks that appear and go while the iteration is recorded, else None.
        is_metered: whether a block from outside of the graph was allocated while it was recorded.
    """

    tally: Tally
    budget_bytes: int | None = None
    min_bytes: int = 0
    next_use: Callable[[Storage], float] = lambda storage: -storage.touched
    far: Source = COPY_IN
    recipes: Callable[[Residency, Storage], ByteArray] | None = None
    shares_chains: Shared = True
    on_lost: Callable[[Storage], None] = lambda storage: None
    listener: Listener | None = None
    is_metered: Callable[[Array], bool] = lambda root: False


class Residency(Budget):
    """The storages of one session.

    Attributes:
        backend: moves the bytes.
        context: of the iteration in hand.
        pinned: storages that the current call needs.
        leaving: what is being copied out, the oldest first.
        closed: nothing is moved here any more.
    """

    _open: ClassVar[weakref.WeakSet[Residency]] = weakref.WeakSet()

    def __init__(self, backend: Backend, context: Context | None = None):
        self.context = context or Context(Tally(backend))
        super().__init__(backend, self.context.tally, self.context.budget_bytes)
        self.pinned: frozenset[Storage] = frozenset()
        self.leaving: deque[Storage] = deque()
        self.closed = False
        self._arrivals = Arrivals()
        self._all: weakref.WeakSet[Storage] = weakref.WeakSet()
        self._open.add(self)

    def enter(self, context: Context) -> None:
        """Begins an iteration, or goes on with it in another way."""
        if context.listener != self.context.listener:
            self.meter(context.listener)
        self.context = context
        self.begin(context.tally, context.budget_bytes)
        for storage in self.storages():
            self.touch(storage)

    def pin(self, storages: Iterable[Storage] = ()) -> None:
        """Says what the current computation needs, and is not evicted."""
        self.pinned = frozenset(storages)

    def is_pinned(self, storage: Storage) -> bool:
        """Whether a computation needs it, in whatever thread."""
        return storage in self.pinned or any(storage in each.pinned for each in list(self._open))

    def touch(self, storage: Storage) -> None:
        """A storage was used, or has come: its next use is another one now."""
        if storage.nbytes >= self.context.min_bytes:
            self.candidates.add(storage)

    def register(self, array: Any, root: Any, token: object, map_id: int, from_outside: bool) -> Storage | None:
        """Returns the storage under an array, made known as `map_id` of `token` if need be; None if it cannot be moved.

        Of a block from outside of the graph only the array's part counts: a batch may be a slice of a whole data set.

        Args:
            array: any array.
            root: its root.
            token: the iteration.
            map_id: what the storage is called there, if it is new.
            from_outside: no function of that iteration made it.
        """
        found = storage_at(root)
        if found is not None and not found.memory.closed:
            if found.state is State.SPARE:
                found.memory.fetch(found, exposed=False)
            return found
        if not self.backend.manages(root) or arrays.flat_bytes(root) is None:
            return None
        storage = Storage(self, root, int(root.nbytes))
        storage.assign(token, map_id, from_outside)
        if from_outside:
            storage.count_as(int(array.nbytes))
        self._all.add(storage)
        self._count(root, storage, not from_outside or self.context.is_metered(root))
        return storage

    # --- moving ----------------------------------------------------------------------------------------------------

    def swap_out(self, storage: Storage) -> bool:
        """Lets a resident storage go as soon as its copy is whole; False if it cannot go now.

        If this fails: `reap` reports it, and the storage stays resident.
        """
        if storage.state is not State.RESIDENT or self.closed:
            return False
        if storage.has_true_copy():
            storage.let_go()
            return True
        if storage.is_held_elsewhere():
            return False
        root = storage.root()
        block = None if root is None else arrays.flat_bytes(root)
        if block is None:
            return False
        copy, transfer = self.backend.swap_out(block)
        self.tally.swapped_out_bytes += storage.nbytes
        self.leaving.append(storage)  # first, or an interrupt leaves it to nobody
        storage.leave(block, copy, transfer, storage.recalled and not self.context.far.keeps_recalled)
        return True

    def give_up(self, storage: Storage) -> bool:
        """Gives up a map that can be made again; False if it has to go another way.

        What no function retains dies by itself, whoever holds it: what recipes read stays what it was.
        """
        if storage.state is not State.RESIDENT or storage.root() is None:
            return storage.state is State.LOST and storage.recipe is not None
        if storage.exposed or storage.recipe is None or not storage.recipe.is_whole():
            storage.remember(None)
            return False
        if storage.is_retained():
            if storage.is_held_elsewhere():
                return False
            storage.lose()
        return True

    def reap(self, wait: bool = False) -> None:
        """Lets go of what has been copied out; with `wait`, waits for the oldest swap-out first.

        Raises:
            SpillError: a swap-out failed; that storage is resident.
        """
        self._arrivals.forget_ended()
        while self.leaving:
            storage = self.leaving[0]
            if storage.state is State.LEAVING and storage.transfer is not None:
                if not storage.transfer.done and not wait:
                    return
                wait = False
                try:
                    self.see_off(storage)
                except OSError:
                    self.leaving.popleft()
                    raise
            self.leaving.popleft()

    def see_off(self, storage: Storage) -> None:
        """Waits for a swap-out, and lets go of what nobody wants.

        Raises:
            SpillError: it failed; the storage is resident and has no copy.
        """
        assert storage.transfer is not None
        try:
            with self.tally.stalled():
                storage.transfer.wait()
        except OSError:
            storage.drop_copy()  # before anything else, or an interrupt leaves one that seems whole
            storage.stay()
            raise
        self.tally.written.append(storage.transfer)
        storage.stay()
        self.context.far.left(self, storage)

    def abandon_dead(self) -> None:
        """Ends the swap-outs of maps that nobody can ask for any more, such as those of a graph that is gone."""
        for storage in self.leaving:
            if storage.copy is not None and not storage.is_wanted():
                storage.recall()  # there is no copy to go to
                storage.drop_copy()

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
        """Starts to bring a storage back, keeps one that is leaving; False if there is no room now."""
        storage.recall()
        if storage.state is State.SPARE:
            self._use_again(storage)
        found = storage.notice()
        if found is not None and storage.state is State.RESIDENT:  # nobody else may hold it for long
            storage.refill(found)
        if found is not None or storage.state is not State.AWAY:
            return True
        return self.context.far.begin(self, storage)

    def fetch(self, storage: Storage, exposed: bool) -> ByteArray:
        """Makes a storage resident because somebody reads it now (P1).

        Args:
            storage: what is read.
            exposed: the program reads it, who may write to it: then the far copy is worthless, and Variables get their
                arrays back. Else only what Chainer retains comes back.

        Returns:
            The block. It lives no longer than this reference and the places that took arrays on it.

        Raises:
            LostMapError: it was freed after its last known use.
            SpillError: a copy failed; the far copy is whole, and reading again tries again.
            MemoryError: no near memory for it.
        """
        with LOCK:
            if storage.state is State.LEAVING:
                self.context.far.want(self, storage)
            elif storage.state is State.SPARE:
                self._use_again(storage)
            block = storage.notice()
            if block is None:
                with self.tally.stalled():
                    block = self._bring(storage)
            if exposed:
                self._expose(storage, block)
            storage.refill(block)
            return block

    def open(self, storage: Storage) -> None:
        """Makes a storage resident for a function that may write to it.

        Raises:
            As `fetch`.
        """
        with LOCK:
            block = self.fetch(storage, exposed=False)
            if storage.is_in_place():  # else a copy of a Variable is all that is left, whose read is noticed
                self._expose(storage, block)
                storage.refill(block)

    def drop(self, storage: Storage, may_lose: bool) -> None:
        """Frees a storage after its last backward use.

        Its far copy stays while the graph lives, so that it can still be read, and so does its recipe. One with neither
        is lost as soon as its room is needed, where that is allowed and no Variable of the program's shows it.
        """
        if storage.state is State.ARRIVING:
            self.turn_back(storage)
        storage.recall(False)
        if storage.state is not State.RESIDENT or self.closed:
            return
        remade = storage.recipe is not None and not storage.exposed
        if storage.has_true_copy():
            storage.let_go()
        elif remade:
            storage.lose()
        elif may_lose and storage.copy is None and not storage.is_in_variables():
            self.keep_spare(storage)

    def restore(self, storage: Storage, root: Array, block: ByteArray) -> None:
        """Takes new bytes for a lost storage, of which `root` is the owner."""
        storage.make()
        self._count(root, storage, True)
        storage.refill(block)

    def show(self, storage: Storage, block: ByteArray) -> None:
        """Takes a mapping of the far copy for a storage that is away."""
        storage.show()
        self._count(arrays.root_of(block), storage, False)
        storage.refill(block)

    def turn_back(self, storage: Storage) -> None:
        """Ends a swap-in that nobody waits for: the far copy is still whole."""
        storage.notice()
        with contextlib.suppress(OSError):
            if storage.state is State.ARRIVING:
                self.arrive(storage)
                storage.let_go()

    def begin_arrival(self, storage: Storage, block: ByteArray) -> None:
        """Starts a swap-in into `block`.

        Raises:
            SpillError: as `Backend.swap_in`; the storage is away.
        """
        assert storage.copy is not None
        try:
            storage.come(block)
            self._count(arrays.root_of(block), storage, block.base is None)
            self.limit_kept(0)
            storage.coming(self._arrivals.begin(self.backend, storage, block))
        except BaseException:
            if storage.state is State.ARRIVING:
                storage.turn_back()
            raise
        self.tally.swapped_in_bytes += storage.nbytes

    def arrive(self, storage: Storage) -> ByteArray:
        """Waits for a swap-in and returns the block, which only the places own from then on.

        Raises:
            SpillError: it failed; the far copy is whole.
        """
        transfer = storage.transfer
        assert transfer is not None
        here = False
        try:
            transfer.wait()
            here = True
        finally:
            if transfer.done and not here:
                storage.turn_back()
        self.tally.read.append(transfer)
        block = storage.arrive()
        self._arrivals.forget_ended()
        return block

    def arrive_all(self) -> None:
        """Waits for all swap-ins that are under way.

        Raises:
            SpillError: one failed.
        """
        for storage in self._arrivals.storages():
            if storage.state is State.ARRIVING:
                self.fetch(storage, exposed=False)

    def release(self, copy: FarCopy) -> None:
        """Gives a far copy up, from any thread."""
        self.backend.release(copy)

    def close(self) -> None:
        """Brings back what somebody may still read, then gives the backend back.

        If this fails: an error of a transfer passes through, and the backend stays open with what it has.
        """
        self.enter(Context(self.tally, recipes=self.context.recipes, far=self.context.far))
        self.backend.limit(None, lambda nbytes: False)
        self.calm()
        exposure.make_last([*self._all, *(made for each in list(self._all) for made in exposure.made_from(each))])
        for storage in list(self._all):
            here = storage.notice()  # what only a recipe held dies before, and nothing while it is looked at
            if storage.state is not State.LOST:
                block = self.fetch(storage, exposed=True)
                if here is None:  # copies of Variables, which no place knows, find the block here as long as they live
                    storage.keep(block)
        self.backend.close()
        self._arrivals.clear()
        self.closed = True
        super().close()

    def is_idle(self) -> bool:
        """Whether nobody can ask for anything that is not in near memory."""
        with LOCK:
            return all(storage.state in (State.RESIDENT, State.SPARE) or not storage.is_wanted()
                       for storage in list(self._all))

    def leave_to_parent(self) -> None:
        """In a forked child: nothing is moved here any more, and what was away is the parent's."""
        self.closed = True
        self.context = Context(Tally(self.backend), recipes=self.context.recipes)
        self.begin(self.context.tally, None)
        super().close()

    # --- room ------------------------------------------------------------------------------------------------------

    def can_come(self, storage: Storage, beside_bytes: int) -> bool:
        """Whether a storage may come now and leave room for so many bytes more."""
        if storage.state is not State.AWAY:
            return True
        needed_bytes = self.context.far.needed_bytes(storage)
        return not needed_bytes or self.has_room(needed_bytes + beside_bytes)

    def free_something(self) -> bool:
        """Waits for the oldest swap-out, or else evicts; False if there is nothing left to try."""
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
        elif victim.is_retained() and ((victim.recipe is not None and self.give_up(victim)) or self.swap_out(victim)):
            self.tally.evictions += 1
            self.settle()
        return True

    # --- the small steps -------------------------------------------------------------------------------------------

    def _expose(self, storage: Storage, block: ByteArray) -> None:
        pinned = self.pinned
        self.pin([*pinned, storage])  # it makes no room for what is made from it
        try:
            exposure.expose(storage, block)
        finally:
            self.pin(pinned)

    def _use_again(self, storage: Storage) -> None:
        storage.use_again()
        self.book(storage, 'maps')
        self.touch(storage)

    def _count(self, root: Any, storage: Storage, metered: bool) -> None:
        self.count(root, storage, metered and self.context.listener is not None)
        self.touch(storage)

    def _bring(self, storage: Storage) -> ByteArray:
        if storage.state is State.ARRIVING:
            try:
                return self.arrive(storage)
            except OSError as error:
                log.logger.info('a swap-in failed and is tried again: %s', str(error))
        if storage.state is State.AWAY:
            self.tally.faults += 1
            return self.context.far.bring(self, storage)
        if self.context.recipes is None or (storage.recipe is None and storage.seal is None):
            self.context.on_lost(storage)
            raise LostMapError(
                f'feature map {storage.map} ({storage.nbytes} bytes) is read after its last known backward use, when '
                'its room was needed, and there is no copy of it; the next iteration plans for this use. To go on now '
                "raise chainer.config.ooc_budget, or use policy 'swap-all', whose maps can be read as long as their "
                'graph lives')
        return self.context.recipes(self, storage)
