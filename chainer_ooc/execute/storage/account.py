"""The account of near memory: which kind each byte is, from its allocation until it is really gone.

    parameters, gradients, optimizer     arrays of the parameters that functions were given
    scratch                              gradients on their way, and what else a backward pass holds between its steps
    maps                                 blocks of feature maps, the batch among them, until nothing refers to them
    spare                                maps without a known use, which stay while nothing else needs the room
    program                              what is left when its iteration is over and cannot be moved: the program's own

The first three lines count against the budget; spare maps have what these leave of it. The last does not count where
the budget is kept by this account: the program would have it in plain Chainer as well. A device that limits every
allocation counts it all the same (`Backend.counts_all`).

A block counts as long as anything refers to it. A weak reference calls back when it dies, and another when its storage
does: what was spare and is held by the program counts again. That may happen in another thread or in the garbage
collector, so a death is only queued there, and booked before a figure is read.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from chainer_ooc.backends import arrays
from chainer_ooc.execute.storage.held import NOBODY
from chainer_ooc.execute.storage.slots import Array
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage

#: What a block counts as, see above; it is gone before it is counted, and when it has died.
Kind = Literal['maps', 'spare', 'program', 'gone']

#: Is told (token, map id) of each block that is a map no more.
Listener = Callable[[object, int], None]


class _Ref(weakref.ref[Any]):
    """A weak reference that names its block, by the identity of the root."""

    __slots__ = ('key',)
    key: int


@dataclass(eq=False, slots=True)
class _Block:
    """One block, as it was counted.

    It keeps its storage alive, unless it is spare: what is spare lives no longer than the slots that could read it.

    Attributes:
        account: has its bytes.
        root: weak reference to what owns the block.
        storage: weak reference to its storage; one that is dead if it has none.
        held: the storage, if it is kept alive.
        nbytes: what of it counts.
        stretch: of metering, which saw it allocated; -1 if none has.
        token, map: the iteration that it was counted in, and the id of its feature map there.
    """

    account: Account
    root: _Ref
    storage: Callable[[], Any]
    kind: Kind = 'gone'
    held: Storage | None = None
    nbytes: int = 0
    stretch: int = -1
    token: object = None
    map: int = -1

    def move(self, kind: Kind, storage: Storage | None = None, stretch: int = -1) -> None:
        """Counts it as another kind, and for what its storage is now if that is given.

        What the system pages costs none of the budget.
        """
        if self.kind != 'gone':
            self.add(-1)
        before, self.kind = self.kind, kind
        if storage is not None:
            self.nbytes = 0 if storage.mapped else storage.counted_bytes
            self.stretch, self.token, self.map = stretch, storage.token, storage.map
        if kind != 'gone':
            self.add(1)
        self.held = self.storage() if kind in ('maps', 'program') else None
        if self.account.listener is not None and before == 'maps' != kind:
            self.account.listener(self.token, self.map)

    def add(self, sign: int) -> None:
        """Adds its bytes to the totals, or takes them out. For the meter a map is one also while it is spare."""
        totals = self.account._bytes
        totals[self.kind] += sign * self.nbytes
        if self.stretch == self.account._stretch and self.kind in ('maps', 'spare'):
            totals['metered'] += sign * self.nbytes

    def look(self) -> Kind:
        """Its kind by what is alive. If only its storage has died the program holds it, and it counts."""
        if self.root() is None:
            return 'gone'
        if self.kind == 'program':
            return 'program'
        storage = self.storage()
        return 'spare' if storage is not None and storage.state is State.SPARE else 'maps'


class Account:
    """The blocks of one memory that are alive, and what stands beside them.

    Which block is whose is known to all accounts together: a graph may span threads, and a block has one storage.

    Attributes:
        beside_bytes: what lives beside feature maps.
        older_bytes: of blocks that were counted in this stretch of metering, but allocated before.
    """

    _blocks: ClassVar[dict[int, _Block]] = {}  # by the root's identity
    _deaths: ClassVar[deque[_Ref]] = deque()  # to roots and storages that have died

    def __init__(self) -> None:
        self.beside_bytes = self.older_bytes = 0
        self.listener: Listener | None = None
        self._stretch = 0
        self._bytes = dict.fromkeys(('maps', 'spare', 'program', 'metered'), 0)

    def stands(self, beside_bytes: int) -> None:
        """Sets what lives beside feature maps now."""
        self.beside_bytes = beside_bytes

    def near_bytes(self) -> int:
        """Bytes in near memory that count."""
        if self._deaths:
            book_deaths()
        return self._bytes['maps'] + self.beside_bytes

    def held_bytes(self) -> int:
        """The same, and those of spare maps, which have what the others leave."""
        return self.near_bytes() + self._bytes['spare']

    def bytes_of(self, kind: Kind | Literal['metered']) -> int:
        """Bytes of one kind, or of the maps that were allocated since the meter was started."""
        book_deaths()
        return self._bytes[kind]

    def counts(self, root: Any) -> bool:
        """Whether a block counts, in any account."""
        block = self._blocks.get(id(root))
        return block is not None and block.root() is root and block.kind == 'maps'

    def storages(self) -> list[Storage]:
        """All feature maps that are in near memory and count."""
        book_deaths()
        return [each.held for each in list(self._blocks.values())
                if each.account is self and each.kind == 'maps' and each.held is not None]

    def meter(self, listener: Listener | None) -> None:
        """Begins a stretch of metering, which has not seen what is there now; or ends the last."""
        self._stretch += 1
        self._bytes['metered'] = self.older_bytes = 0
        self.listener = listener

    def count(self, root: Array, storage: Storage, metered: bool) -> None:
        """Counts a block that came into being, until it dies; the meter saw it unless it is older or a mapping."""
        if self._deaths:  # maybe of a block at the same place
            book_deaths()
        key, note_death = id(root), self._deaths.append  # not a function of ours, where an interrupt would lose a death
        if key in self._blocks:  # it was spare, and can be read no more
            self._blocks[key].move('gone')
        block = _Block(self, _Ref(root, note_death), of_storage := _Ref(storage, note_death))
        block.root.key = of_storage.key = key
        storage.watch_root(block.root)
        self._blocks[key] = block
        block.move('maps', storage, self._stretch if metered else -1)
        if not metered:
            self.older_bytes += block.nbytes

    def count_alone(self, root: Array, token: object, map_id: int) -> bool:
        """Counts a new block without a storage, as nothing will have it leave, until it dies; False if it is known."""
        if self._deaths:
            book_deaths()
        key = id(root)
        known = self._blocks.get(key)
        if known is not None:
            if known.root() is root:
                return False
            known.move('gone')
        ref, nbytes = _Ref(root, self._deaths.append), int(root.nbytes)
        ref.key = key  # before it is known, or after an interrupt its death would never be booked
        self._blocks[key] = _Block(self, ref, NOBODY, 'maps', None, nbytes, -1, token, map_id)
        self._bytes['maps'] += nbytes
        return True

    def map_alone(self, root: Any, token: object) -> int:
        """The map of an iteration that a block without a storage is; -1 if it is none such."""
        block = self._blocks.get(id(root))
        if block is None or block.root() is not root or block.token is not token or block.storage() is not None:
            return -1
        return block.map

    def bytes_alone(self) -> int:
        """Bytes of the blocks without a storage that count."""
        return sum(each.nbytes for each in self._alone())

    def book_alone(self, is_programs: Callable[[Any], bool]) -> None:
        """Counts blocks without a storage as the program's own if that holds of their iteration."""
        for each in self._alone():
            if is_programs(each.token):
                each.move('program')

    def _alone(self) -> list[_Block]:
        book_deaths()
        return [each for each in list(self._blocks.values())
                if each.account is self and each.kind == 'maps' and each.held is None]

    def count_again(self, storage: Storage) -> None:
        """Counts a known block anew: another size of it counts, or it is part of another iteration."""
        block = _block_of(storage)
        if block is not None:
            before_bytes = block.nbytes
            block.move('maps', storage)
            self.older_bytes += block.nbytes - before_bytes

    def book(self, storage: Storage, kind: Kind) -> None:
        """Counts a block as another kind; the program's own stays so until it is counted again."""
        block = _block_of(storage)
        if block is not None and block.kind != 'program':
            block.move(kind)

    def recount(self) -> None:
        """Puts all accounts right after an exception, which may have come between any two of their steps."""
        self._deaths.extend([each.root for each in list(self._blocks.values())])
        book_deaths()
        blocks = list(self._blocks.values())
        for account in {self, *(each.account for each in blocks)}:
            account._bytes = dict.fromkeys(account._bytes, 0)
        for each in blocks:
            each.add(1)

    def close(self) -> None:
        """Removes all blocks of this memory."""
        for key, each in list(self._blocks.items()):
            if each.account is self:
                del self._blocks[key]
        self.recount()


def find(array: Any) -> Storage | None:
    """Returns the storage under an array, or None if it is not known or cannot be moved."""
    root = arrays.root_of(array)  # as `storage_at`, which would be one call more for each array of each computation
    block = Account._blocks.get(id(root))
    return block.storage() if block is not None and block.root() is root else None


def storage_at(root: Any) -> Storage | None:
    """Returns the storage of the block that `root` owns, or None."""
    block = Account._blocks.get(id(root))
    return block.storage() if block is not None and block.root() is root else None


def book_deaths() -> None:
    """Books the blocks that have died, and those whose storages have died while they were spare."""
    deaths, blocks = Account._deaths, Account._blocks
    while deaths:
        key = getattr(deaths.popleft(), 'key', -1)  # -1 if an interrupt came before it was named
        block = blocks.get(key)
        if block is not None:
            block.move(block.look())
            if block.kind == 'gone':  # last, or after an interrupt its bytes would be in an account for ever
                del blocks[key]


def _block_of(storage: Storage) -> _Block | None:
    root = storage.root()
    return None if root is None else Account._blocks.get(id(root))
