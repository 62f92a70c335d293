"""Blocks of near memory that stay mapped when their arrays are gone, for the next arrays of the same sizes.

A fresh mapping costs more than the copy into it, as the kernel makes and clears its pages: reading 51 MB from the page
cache takes 6.3 ms into a fresh block and 3.7 ms into one that was used before. Where a virtual machine gives free
memory back to its host, as it does after some seconds, a fresh page costs the host's fault too: 116 ms were measured.
Iterations ask for the same sizes again and again, so what one swap-in leaves is the next one's.

    lent   -- array dies -->  free  -- allocate(same size) -->  lent
                               |
                               +--- keep_at_most, oldest first ---> the system

A block that something still refers to when its array is gone (`array.base`) is never lent again.

One thread at a time asks for blocks. An array may die in any thread; its death is queued, as in the account.
Whatever an interrupt leaves between two steps here, a block that is forgotten goes back to the system.

Source: CuPy's memory pool (bins of equal sizes). Left out: blocks that fit only nearly, which would hold memory that no
account has.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.host import block
from chainer_ooc.backends.host.block import HeapBlock
from chainer_ooc.backends.host.groups import Group
from chainer_ooc.backends.layout import GAP_BYTES
from chainer_ooc.backends.references import references


class BlockPool:
    """The blocks of one backend."""

    serves_all = False

    def __init__(self) -> None:
        self._free: list[HeapBlock] = []  # the one that was freed last is the last
        self._lent: dict[int, tuple[weakref.ref[ByteArray], HeapBlock]] = {}
        self._deaths: deque[weakref.ref[ByteArray]] = deque()
        self._is_limited = False

    def begin(self) -> None:
        """Nothing to do."""

    def ask(self, make_room: Callable[[int], bool] | None) -> None:
        """Nobody: arrays come from elsewhere."""

    def lent(self) -> contextlib.AbstractContextManager[None]:
        """Nothing to do, in whatever thread."""
        return contextlib.nullcontext()

    def set_limited(self, yes: bool, offers: bool = False) -> None:
        """Sets whether a limit is in force; arrays come from the heap as it is."""
        self._is_limited = yes

    def rest(self) -> None:
        """Keeps nothing for now where a limit is in force, see `Arena.rest`."""
        if self._is_limited:
            self.keep_at_most(0)

    def contain(self, groups: Sequence[Group], ranks: int = 1, aside_bytes: int = 0) -> None:
        """The same."""

    def computes(self, yes: bool) -> None:
        """The same."""

    def allocate(self, nbytes: int) -> ByteArray:
        """Returns `nbytes` of near memory with any content, used before if there are such.

        Raises:
            MemoryError: the system refuses.
        """
        if nbytes < block.LEAST_MAPPED_BYTES:
            return np.empty(nbytes, np.uint8)
        found = self._unused(nbytes)
        return self._lend(block.make(nbytes) if found is None else found, nbytes)

    def nbytes(self) -> int:
        """Bytes that are kept for the next arrays."""
        self._bury()
        return sum(map(_array_bytes, self._free))

    def keep_at_most(self, nbytes: int) -> bool:
        """Gives the rest back to the system, what was freed first before the others; whether there was any."""
        if not self._free and not self._deaths:
            return False
        kept_bytes, number = self.nbytes(), 0
        while kept_bytes > nbytes:
            kept_bytes -= _array_bytes(self._free[number])
            number += 1
        del self._free[:number]
        return number > 0

    def close(self) -> None:
        """Keeps nothing any more; blocks whose arrays live on are freed with these."""
        self._lent.clear()
        self._free.clear()

    def _unused(self, nbytes: int) -> HeapBlock | None:
        self._bury()
        for number in reversed(range(len(self._free))):
            if _array_bytes(self._free[number]) == nbytes:
                found = self._free.pop(number)
                if references([found]) == 1:  # the name here
                    return found
        return None

    def _lend(self, found: HeapBlock, nbytes: int) -> ByteArray:
        array: ByteArray = np.ndarray(nbytes, np.uint8, buffer=found)
        ref = weakref.ref(array, self._deaths.append)  # not a function of ours, where an interrupt would lose a death
        self._lent[id(ref)] = ref, found
        return array

    def _bury(self) -> None:
        while self._deaths:
            _, found = self._lent.pop(id(self._deaths.popleft()), (None, None))
            if found is not None:
                self._free.append(found)


def _array_bytes(found: HeapBlock) -> int:
    """Of the array that it is for."""
    return len(found) - GAP_BYTES
