"""What is in near memory, by the account: whose each byte is, from its birth until it is really gone.

    parameters, gradients, optimizer     arrays of the parameters that functions were given
    scratch                              gradients on their way, and what else a backward pass holds between its steps
    maps                                 blocks of feature maps, the batch among them, until nothing refers to them
    spare                                maps without a known use, which stay while nothing else needs the room
    program                              what is left when its iteration is over and cannot be moved: the program's own

The first three lines count against the budget; spare maps have what these leave of it. The last does not count where
the budget is kept by this account: the program had it, or would have it in plain Chainer as well, and nothing that the
manager does changes it. A device that limits every allocation counts it all the same (`Backend.counts_all`).

A block counts as long as anything refers to it; a weak reference tells when it dies. That may happen in another thread
or in the garbage collector, so a death is only queued there, and booked when somebody asks.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from chainer_ooc.backends import arrays
from chainer_ooc.execute.places import Array
from chainer_ooc.execute.storage import State, Storage

#: Is told ('malloc' or 'free', token, map id, bytes) when a block appears or goes.
Listener = Callable[[str, object, int, int], None]


@dataclass(eq=False)
class _Block:
    """One block that is alive, as it was counted.

    It keeps its storage alive, unless it is spare: what is spare lives no longer than those who could ask for it.
    """

    account: Account
    ref: weakref.ref[Array]
    storage: Storage | None
    nbytes: int
    epoch: int
    token: object
    map: int
    spare: weakref.ref[Storage] | None = None

    def known(self) -> Storage | None:
        """The storage, if anybody can ask for it."""
        return self.storage if self.spare is None else self.spare()

    def take_out(self) -> None:
        """Takes its bytes out of the account that has them."""
        account = self.account
        if self.token is _PROGRAM:
            account._program_bytes -= self.nbytes
        elif self.spare is not None:
            account._spare_bytes -= self.nbytes
        else:
            account._map_bytes -= self.nbytes
        if self.epoch == account._epoch:
            account._metered_bytes -= self.nbytes

    def use(self, storage: Storage | None) -> None:
        """It is spare no longer, and counts."""
        self.storage, self.spare = storage, None
        self.account._spare_bytes -= self.nbytes
        self.account._map_bytes += self.nbytes
        self.account.listener('malloc', self.token, self.map, self.nbytes)


class Account:
    """The blocks of one memory that are alive, and what stands beside them.

    Which block is whose is known to all accounts together: a graph may span threads, and a block has one storage.

    Attributes:
        beside_bytes: what lives beside feature maps.
    """

    _blocks: ClassVar[dict[int, _Block]] = {}  # by the root's identity
    _deaths: ClassVar[deque[tuple[int, weakref.ref[Array]]]] = deque()

    def __init__(self) -> None:
        self.beside_bytes = 0
        self.listener: Listener = _nobody
        self._map_bytes = self._spare_bytes = self._metered_bytes = self._program_bytes = 0
        self._epoch = 0

    def stands(self, beside_bytes: int) -> None:
        """Says what lives beside feature maps now."""
        self.beside_bytes = beside_bytes

    def near_bytes(self) -> int:
        """Bytes in near memory that count."""
        if self._deaths:
            bury()
        return self._map_bytes + self.beside_bytes

    def map_bytes(self) -> int:
        """Bytes of feature maps."""
        bury()
        return self._map_bytes

    def metered_bytes(self) -> int:
        """Those of them that were allocated since the meter was started."""
        bury()
        return self._metered_bytes

    def spare_bytes(self) -> int:
        """Bytes of maps that are only there because nothing else needs the room."""
        bury()
        return self._spare_bytes

    def program_bytes(self) -> int:
        """Bytes that were feature maps once, and are the program's own."""
        bury()
        return self._program_bytes

    def storages(self) -> list[Storage]:
        """All feature maps that are in near memory and count."""
        bury()
        return [each.storage for each in list(self._blocks.values())
                if each.account is self and each.token is not _PROGRAM and each.storage is not None]

    def meter(self, listener: Listener) -> None:
        """A new stretch of metering begins: what is there now was not seen by it."""
        self._epoch += 1
        self._metered_bytes, self.listener = 0, listener

    def stop_metering(self) -> None:
        """Nobody listens any more."""
        self._epoch += 1
        self.listener = _nobody

    def count(self, root: Array, storage: Storage, metered: bool) -> None:
        """Counts a block that came into being, until it dies; the meter saw it unless it is older or a mapping.

        What the system pages costs none of the budget.
        """
        bury()  # a block that died at the same place
        key, deaths = id(root), self._deaths
        if key in self._blocks:  # it was spare, and nobody can ask for that any more
            self._blocks[key].take_out()
        ref = weakref.ref(root, lambda ref: deaths.append((key, ref)))
        nbytes = 0 if storage.mapped else storage.counted_bytes
        storage.watch_root(ref)
        self._blocks[key] = _Block(
            self, ref, storage, nbytes, self._epoch if metered else -1, storage.token, storage.map)
        self._map_bytes += nbytes
        if metered:
            self._metered_bytes += nbytes
        self.listener('malloc', storage.token, storage.map, nbytes)

    def count_again(self, storage: Storage) -> None:
        """A block that is known has another size that counts, or is part of another iteration."""
        block = _block_of(storage)
        if block is not None:
            block.take_out()
            block.nbytes = 0 if storage.mapped else storage.counted_bytes
            block.epoch, block.token, block.map = -1, storage.token, storage.map
            block.storage, block.spare = storage, None
            block.account._map_bytes += block.nbytes

    def count_as_spare(self, storage: Storage) -> None:
        """A block is only there because nothing else needs the room. For the meter it is what it was."""
        block = _block_of(storage)
        if block is not None and block.token is not _PROGRAM and block.spare is None:
            block.storage, block.spare = None, weakref.ref(storage)
            self._map_bytes -= block.nbytes
            self._spare_bytes += block.nbytes
            self.listener('free', block.token, block.map, block.nbytes)

    def count_as_used(self, storage: Storage) -> None:
        """It counts again."""
        block = _block_of(storage)
        if block is not None and block.spare is not None:
            block.use(storage)

    def disown(self, root: Array) -> None:
        """What was spare has died, and somebody else holds its block; from any thread."""
        block = self._blocks.get(id(root))
        if block is not None:
            self._deaths.append((id(root), block.ref))

    def hand_over(self, storage: Storage) -> None:
        """A block is the program's own from now on, until it is a feature map again."""
        block = _block_of(storage)
        if block is not None and block.token is not _PROGRAM:
            block.take_out()
            block.token, block.epoch = _PROGRAM, -1
            block.account._program_bytes += block.nbytes

    def recount(self) -> None:
        """Puts the account right after an exception, which may have come between any two of its steps."""
        bury()
        for key, each in list(self._blocks.items()):
            if each.ref() is None:
                del self._blocks[key]
            elif (storage := each.known()) is not None:
                is_spare = storage.state is State.SPARE and each.token is not _PROGRAM
                each.storage, each.spare = (None, weakref.ref(storage)) if is_spare else (storage, None)
        own = [each for each in self._blocks.values() if each.account is self]
        self._program_bytes = sum(each.nbytes for each in own if each.token is _PROGRAM)
        self._spare_bytes = sum(each.nbytes for each in own if each.spare is not None)
        self._map_bytes = sum(each.nbytes for each in own) - self._program_bytes - self._spare_bytes
        self._metered_bytes = sum(each.nbytes for each in own if each.epoch == self._epoch)

    def close(self) -> None:
        """No block is this memory's any more."""
        for key, each in list(self._blocks.items()):
            if each.account is self:
                del self._blocks[key]
        self.recount()


def find(array: Any) -> Storage | None:
    """Returns the storage under an array, or None if it is not known or cannot be moved."""
    return storage_at(arrays.root_of(array))


def storage_at(root: Any) -> Storage | None:
    """Returns the storage of the block that `root` owns, or None."""
    block = Account._blocks.get(id(root))
    return block.known() if block is not None and root is not None and block.ref() is root else None


def bury() -> None:
    """Books the blocks that have died."""
    deaths, blocks = Account._deaths, Account._blocks
    while deaths:
        key, ref = deaths.popleft()
        block = blocks.get(key)
        if block is not None and block.ref is ref and ref() is not None:
            if block.spare is not None and block.known() is None:
                block.use(None)
        elif block is not None and block.ref is ref:
            del blocks[key]
            block.take_out()
            if block.token is not _PROGRAM and block.spare is None:
                block.account.listener('free', block.token, block.map, block.nbytes)


def _block_of(storage: Storage) -> _Block | None:
    root = storage.root()
    return None if root is None else Account._blocks.get(id(root))


_PROGRAM = object()


def _nobody(kind: str, token: object, map_id: int, nbytes: int) -> None:
    """Listens to nothing."""
