"""One block of near memory, and where its bytes are while they are not there.

A storage never owns its block while that is RESIDENT: the slots do, and a weak reference tells when it is really gone.

Every change is a method of `Storage` and goes through the table of `states`; nothing else writes its fields. A storage
has the `memory` of the session that made it, and a read of it, in whatever thread, goes to that memory: another
session's spill file has other bytes at the same place. All changes happen under one lock of the process,
`reentry.LOCK`, which is held while copies are waited for. Two locks could be taken in both orders; one cannot.

**What the program reads, it may write to.** Variables and nodes of a block that has a far copy, or that recipes read,
are watched (`slots`). After the program's first read the storage is *exposed*: the far copy is not trusted any more,
and what is made from it is made before (`residency`).

Left out: when to do what (`residency`), and which memory that frees.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import Backend, ByteArray, FarCopy, Transfer
from chainer_ooc.backends.references import references
from chainer_ooc.execute.storage.computing import is_computing, only_reads
from chainer_ooc.execute.storage.held import NOBODY, Held
from chainer_ooc.execute.storage.reentry import copies, refusal
from chainer_ooc.execute.storage.slots import Array, NodeSlot, Slot, VariableSlot
from chainer_ooc.execute.storage.states import TRANSITIONS, State


class Memory(Protocol):
    """The memory that a storage is in: what is used of `residency.Residency`."""

    backend: Backend
    closed: bool

    def fetch(self, storage: Storage, exposed: bool, beside: Iterable[Storage] = ()) -> ByteArray: ...
    def swap_out(self, storage: Storage) -> bool: ...
    def prefetch(self, storage: Storage) -> bool: ...
    def drop(self, storage: Storage, may_lose: bool) -> None: ...
    def touch(self, storage: Storage) -> None: ...
    def open(self, storage: Storage) -> None: ...
    def restore(self, storage: Storage, block: ByteArray, mapped: bool = False) -> None: ...
    def is_pinned(self, storage: Storage) -> bool: ...


class Token:
    """Stands for an iteration in its maps, which may outlive it.

    Attributes:
        has_ended: nothing becomes a map of it any more, and what it has left may be the program's own.
        graph: the known `graphs.graph.Graph` that it seems to be, or did at last; None without one.
    """

    __slots__ = ('graph', 'has_ended')

    def __init__(self) -> None:
        self.has_ended = False
        self.graph: Any = None


class Recipe(Protocol):
    """How a storage's bytes are made again: what is used of `recipe.Recipe`."""

    def is_whole(self) -> bool: ...
    def spoil(self) -> None: ...
    def trusts(self, storage: Storage) -> bool: ...
    def distrust(self, storage: Storage, block: ByteArray) -> None: ...
    def makes(self) -> list[Storage]: ...
    def reads(self) -> list[Storage]: ...


class Storage(Held):
    """A block that several arrays may share. All attributes are for reading; see `Held` for others.

    Attributes:
        memory: moves it.
        state: where its bytes are.
        token, map: the iteration that it was last part of, and the id of its feature map there.
        from_outside: no function of that iteration made it.
        counted_bytes: what of it counts as near memory.
        pending_uses: functions that retained it and have not run backward yet.
        touched: the position that used it last.
        block, transfer: the bytes and the copy while that is under way, else None; what owns them while it is SPARE.
        copy: the far copy, which goes with it, or None; when RESIDENT it equals the block unless `exposed`.
        recipe: how the bytes are made again, or None; none of what is `exposed`.
        seal: checksum of what is LOST since its room was needed, or None.
        mapped: the block shows the far copy itself: the two cannot differ.
        recalled: it is to stay although it is LEAVING.
        exposed: the program may have an array on it, so that the far copy may be outdated.
    """

    __slots__ = (
        '_readers', 'block', 'copy', 'counted_bytes', 'exposed', 'from_outside', 'map', 'mapped', 'memory',
        'pending_uses', 'recalled', 'recipe', 'seal', 'state', 'token', 'touched', 'transfer')

    def __init__(self, memory: Memory, root: Array):
        super().__init__(root)
        self.memory = memory
        self.counted_bytes = self.nbytes
        self.state = State.RESIDENT
        self.token: Token | None = None
        self.map, self.touched, self.pending_uses = -1, -1, 0
        self.from_outside = False
        self.block: ByteArray | None = None
        self.copy: FarCopy | None = None
        self.transfer: Transfer | None = None
        self.recipe: Recipe | None = None
        self.seal: int | None = None
        self._readers: list[weakref.ref[Recipe]] = []  # no WeakSet: an interrupt in its callback is lost
        self.mapped = self.exposed = self.recalled = False

    # --- whose it is -----------------------------------------------------------------------------------------------

    def assign(self, token: Token, map_id: int, from_outside: bool) -> None:
        """Makes it a feature map of an iteration; functions of other iterations wait for it no more."""
        self.token, self.map, self.from_outside, self.pending_uses = token, map_id, from_outside, 0

    def count_as(self, nbytes: int) -> None:
        """Sets what of it counts as near memory."""
        self.counted_bytes = nbytes

    def use(self, position: int) -> None:
        """Notes that a computation has used it."""
        self.touched = position

    def retain(self) -> None:
        """Counts one more function that retains it for its backward."""
        self.pending_uses += 1

    def note_backward(self) -> bool:
        """Counts one of these functions less, which has run backward; True if it was the last.

        One may not have retained it: the program has put it in the place of what that retained, or runs backward again.
        """
        self.pending_uses = max(0, self.pending_uses - 1)
        return self.pending_uses == 0

    def add_node(self, node: Any) -> None:
        """Adds a variable node, and its Variable; reads of both are noticed from now on."""
        known = self.slots.get((id(node), NodeSlot.name))
        if known is None or not known.is_alive():
            self.add_slots(NodeSlot(node), VariableSlot(node))
        if self.is_relied_on():
            self.watch(self.slots[id(node), NodeSlot.name], self.slots[id(node), VariableSlot.name])

    def watch(self, *slots: Slot) -> None:
        """Has the program's next read noticed, in all slots or in these; where that fails it is exposed."""
        if self.is_relied_on() and not self.exposed and not self._watch(slots or self.slots.values()):
            self.expose()

    def notice_reads(self) -> None:
        """Has the program's next read noticed although nothing relies on the bytes yet, as far as it can be."""
        if not self.exposed:
            self._watch(self.slots.values())

    # --- reads and questions ---------------------------------------------------------------------------------------

    def fetch(self) -> ByteArray:
        if copies():
            raise refusal(f'reads feature map {self.map} in a thread that copies maps')
        return self.memory.fetch(self, exposed=not only_reads())

    def peek(self) -> ByteArray | None:
        """See `BlockOwner`. What arrives is not there yet, and what is exposed is not what its copy is."""
        copy, block = self.copy, None if self.state is State.ARRIVING else self.bytes_here()
        if block is None and copy is not None and self.has_true_copy():
            return self.memory.backend.peek(copy)
        return block

    def is_guarded(self) -> bool:
        return only_reads() or (is_computing() and self.memory.is_pinned(self))

    def has_true_copy(self) -> bool:
        """Whether the far copy is what the block is."""
        return self.copy is not None and (self.mapped or not self.exposed)

    def is_relied_on(self) -> bool:
        """Whether a far copy, its recipe or others would be wrong after a write that was not noticed."""
        return self.copy is not None or self.recipe is not None or bool(self.readers())

    def can_return(self) -> bool:
        """Whether its bytes can be had at any time, as long as its graph lives."""
        return self.has_true_copy() or self.recipe is not None or self.is_retained()

    def is_lost(self) -> bool:
        """Whether its bytes are in no memory."""
        return self.notice() is None and self.state is State.LOST

    def is_held_on(self) -> bool:
        """Whether the slots have the block no more, and the program holds it all the same."""
        if self.state is State.SPARE:
            return references([self.block]) > 1
        return self.state in (State.AWAY, State.LOST) and self.root() is not None

    def checksum(self) -> int | None:
        """A number that changes with the bytes; None if they are not in near memory."""
        block = self.bytes_here()
        return None if block is None else arrays.checksum(block)

    # --- changes ---------------------------------------------------------------------------------------------------

    def _go(self, event: str) -> None:
        after = TRANSITIONS.get((event, self.state))
        assert after is not None, f'{event!r} of a storage that is {self.state}'
        self.state = after

    def leave(self, block: ByteArray, copy: FarCopy, transfer: Transfer, recalled: bool) -> None:
        """A swap-out has started.

        The order matters to an interrupt, here and below: nothing writes to what is LEAVING or AWAY, and a copy is
        trusted when the state says so.
        """
        self.drop_copy()
        self.block, self.transfer = block, transfer
        self._empty()
        self._go('leave')
        self.copy, self.recipe, self.exposed, self.recalled = copy, None, False, recalled

    def go(self) -> None:
        """What was leaving is away: its copy is whole, and the slots are empty, as nothing has recalled it."""
        assert self.has_true_copy()
        self._go('go')
        self.block = self.transfer = None
        self._note_holder()

    def stay(self) -> None:
        """What was to leave is resident."""
        assert self.block is not None
        self._go('stay')
        self.transfer = None
        self.refill(self.block)

    def free(self) -> None:
        """Frees the block: its far copy is true, or else its recipe makes it again, or it is gone already."""
        root, true = self.root(), self.has_true_copy()
        assert root is None or true or self.recipe is not None
        self._empty()
        self._go('free' if true else 'lose')
        self.exposed, self.block = self.exposed and not true, None
        del root
        self._note_holder()

    def discard(self) -> bool:
        """Frees what can be made again; False if it has to be swapped out.

        What no function retains dies by itself, whatever holds it: what recipes read stays what it was.
        """
        if self.state is not State.RESIDENT or self.root() is None:
            return self.state is State.LOST and self.recipe is not None
        if self.recipe is None or not self.recipe.is_whole():
            self.remember(None)
            return False
        if self.is_retained():
            if self.is_held_elsewhere():
                return False
            self.free()
        return True

    def spare(self) -> None:
        """No known use is left: the block stays for an unknown one, as long as its room is not needed."""
        root = self.root()
        self._go('spare')
        self.block = root
        self._empty()

    def use_again(self) -> None:
        """What was spare is read; the caller gives the slots their arrays."""
        self._go('use again')

    def yield_room(self, is_sealed: bool) -> None:
        """Frees what was spare; it may be made again if `is_sealed`: nothing else has it that could write to it."""
        self.seal = arrays.checksum(self.block) if is_sealed and self.block is not None else None
        self._go('yield')
        self.block = None
        self._note_holder()

    def _note_holder(self) -> None:
        """Marks a freed block that is still held, and may be written to, in recipes of what functions wait for.

        The others are spoilt when it is read again; checksums of all that Chainer's own loop holds would take too long.
        """
        readers = self.readers()
        block = self.bytes_here() if readers else None
        if block is not None:
            for recipe in readers:
                if any(made.pending_uses > 0 for made in recipe.makes()):
                    recipe.distrust(self, block)

    def recall(self, wanted: bool = True) -> None:
        """Notes that it is wanted back soon, or is not any more."""
        if self.state is State.LEAVING and self.recalled and not (wanted or self.exposed):
            self._empty()  # a read has filled them; what is exposed stays, and a copied Variable has it
        self.recalled = wanted

    def come(self, block: ByteArray) -> None:
        """A swap-in is about to start, into `block`."""
        self._go('come')
        self.block, self.mapped = block, False

    def coming(self, transfer: Transfer) -> None:
        """The swap-in has started."""
        self.transfer = transfer

    def arrive(self) -> ByteArray:
        """The bytes are there; gives the block, which only the slots own from then on."""
        assert self.block is not None
        block = self.block
        self._go('arrive')  # before anything else, or an interrupt leaves it waiting for nothing
        self.block = self.transfer = None
        return block

    def turn_back(self) -> None:
        """The swap-in is of no use: the far copy is still whole."""
        self.block, self.transfer, self.root = None, None, NOBODY  # it may live on under a copy that is not waited for
        self._go('turn back')

    def come_back(self, mapped: bool) -> None:
        """There is a new block with the bytes: a mapping of the far copy, or made again."""
        self.exposed, self.mapped, self.seal = False, mapped, None
        self._go('show' if mapped else 'make')

    def watch_root(self, root: weakref.ref[Array]) -> None:
        """Sets what owns the block from now on."""
        self.root = root

    def refill(self, block: ByteArray) -> None:
        """Gives the slots their arrays, and what kept the block for them is over.

        Variables get theirs only if the program may write to it, or they may be all that keeps the bytes.
        """
        alone = self.copy is None and self.recipe is None
        self._fill(block, in_variables=self.exposed or alone, is_watched=not self.exposed)
        if self.state is State.RESIDENT and not self.memory.closed:
            self.block = None

    def notice(self) -> ByteArray | None:
        """Returns the block if it is in near memory; sets the state right where it came or went by itself."""
        root = self.root()
        if self.state is State.ARRIVING and self.transfer is None:  # an interrupt came while it turned back
            self.turn_back()
        elif self.state is State.LEAVING:
            self.recalled = True
        elif root is not None and self.state in (State.AWAY, State.LOST):
            for recipe in self.readers():  # what held the array may have written to it
                if recipe.trusts(self):
                    recipe.spoil()
            self._go('take up')
            self.expose()
        elif root is None and self.state is State.RESIDENT:
            self.free()
        return self.bytes_here() if self.state in (State.LEAVING, State.RESIDENT, State.SPARE) else None

    def expose(self) -> None:
        """The program reads it, and may write to it, which no recipe would."""
        self.exposed, self.recipe = True, None

    def enclose(self) -> None:
        """The program holds no array any more: what the block is now is true, and a copy from before is not."""
        if self.exposed and not self.mapped:
            self.drop_copy()
        self.exposed = False

    def remember(self, recipe: Recipe | None) -> None:
        """Sets how the bytes are made again, or that they cannot be. What the program may write to never is."""
        self.recipe = None if self.exposed else recipe

    def read_by(self, recipe: Recipe) -> None:
        """Adds a recipe that reads it, as long as that is alive."""
        self._readers = [*map(weakref.ref, self.readers()), weakref.ref(recipe)]

    def readers(self) -> list[Recipe]:
        """The recipes that read it and are alive."""
        return [recipe for ref in self._readers if (recipe := ref()) is not None] if self._readers else []

    def spoil_readers(self) -> None:
        """Spoils the recipes that have read it: the bytes may be others now."""
        for recipe in self.readers():
            recipe.spoil()
        self._readers = []

    def keep(self, block: ByteArray) -> None:
        """Keeps the bytes alive: until the slots have them, or as long as it lives once its memory is closed."""
        self.block = block

    def mend(self) -> None:
        """After an exception, which may have come between two steps: the block is not kept here where slots have it."""
        if self.state is State.RESIDENT and self.block is not None:
            self.refill(self.block)
        elif self.state in (State.AWAY, State.LOST):
            self.block = None
        self.watch()  # a function may have retained an array anew, which ends the watch of a node, and was not noted

    def drop_copy(self) -> None:
        """Releases the far copy."""
        copy, self.copy = self.copy, None
        if copy is not None:
            self.memory.backend.release(copy)
