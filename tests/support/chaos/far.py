"""Far memory, a table of byte arrays that has a size, and the handles of what it holds.

A GPU's is pinned host memory, set aside once and used again. So what is given back here is poisoned first: a swap-in
that still read it would show. Each copy is a mapping of its own, which tracemalloc does not see: execution takes what
a computation allocates in near memory from there.
"""

from __future__ import annotations

import collections
import errno
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.host.block import HeapBlock
from chainer_ooc.backends.owned import OwnedCopy, Place
from chainer_ooc.errors import SpillError
from chainer_ooc.quantities import format_bytes
from support.chaos.memory import POISON, Borrowed
from support.chaos.streams import ChaosTransfer


class ChaosPlace(Place):
    """Names a copy; its bytes are the backend's."""

    __slots__ = ('number',)

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class ChaosCopy(OwnedCopy):
    """A far copy.

    Args:
        swap_out: the transfer that fills it.
        unwanted: the backend's places of copies to give back.
    """

    __slots__ = ('swap_out',)

    def __init__(self, swap_out: ChaosTransfer, unwanted: collections.deque[ChaosPlace]) -> None:
        self.swap_out = swap_out
        super().__init__(swap_out.nbytes, ChaosPlace(swap_out.number), unwanted)


class FarMemory:
    """The bytes of far copies by their numbers.

    Args:
        nbytes: what it can hold.

    Attributes:
        unwanted: places of released copies, appended from any thread, in the order of release.
    """

    def __init__(self, nbytes: int) -> None:
        self.unwanted: collections.deque[ChaosPlace] = collections.deque()
        self._nbytes = nbytes
        self._contents: dict[int, ByteArray] = {}
        self._mapped: dict[int, list[weakref.ref[Any]]] = {}

    def free_bytes(self) -> int:
        """Returns what it can hold beside what it holds."""
        return self._nbytes - sum(content.nbytes for content in self._contents.values())

    def check_room(self, nbytes: int, set_aside_bytes: int = 0) -> None:
        """Raises SpillError unless so many more bytes fit, beside those that are set aside."""
        free_bytes = max(0, self.free_bytes() - set_aside_bytes)
        if nbytes > free_bytes:
            raise SpillError(errno.ENOSPC, f'the far memory of the chaos backend is too small (needed '
                             f'{format_bytes(nbytes)}, free {format_bytes(free_bytes)}); raise its far_bytes')

    def store(self, number: int, source: Borrowed) -> bool:
        """Copies the source as it is now; False if that was freed, and poison is stored.

        Raises:
            SpillError: there is no room. Nothing has changed.
        """
        self.check_room(source.nbytes)
        content = _poisoned_mapping(source.nbytes)
        alive = source.read_into(content)
        self._contents[number] = content
        return alive

    def load(self, number: int, target: Borrowed) -> bool:
        """Fills the target; False if that was freed."""
        return target.fill_from(self._contents[number])

    def map(self, number: int) -> ByteArray:
        """Returns another array over the bytes themselves."""
        content = self._contents[number]
        mapped: ByteArray = np.ndarray(content.nbytes, np.uint8, buffer=content.base)
        self._mapped.setdefault(number, []).append(weakref.ref(mapped))
        return mapped

    def _is_mapped(self, number: int) -> bool:
        return any(ref() is not None for ref in self._mapped.get(number, ()))

    def is_unwanted(self, number: int) -> bool:
        """Whether a copy was released and its bytes are not taken back yet."""
        return any(place.number == number for place in self.unwanted.copy())

    def take_back(self, in_use: Callable[[int], bool]) -> list[int]:
        """Frees what was released and neither a transfer nor a mapping needs; returns the numbers of what was freed."""
        taken = []
        for _ in range(len(self.unwanted)):
            number = self.unwanted[0].number
            if in_use(number) or self._is_mapped(number):
                self.unwanted.rotate(-1)
                continue
            if number in self._contents:
                self._contents.pop(number).fill(POISON)
                self._mapped.pop(number, None)
                taken.append(number)
            self.unwanted.popleft()  # only now, in case of an interrupt
        return taken

    def clear(self) -> None:
        """Frees everything."""
        self.unwanted.clear()
        self._contents.clear()
        self._mapped.clear()


def _poisoned_mapping(nbytes: int) -> ByteArray:
    content: ByteArray = np.ndarray(nbytes, np.uint8, buffer=HeapBlock(-1, max(nbytes, 1)))
    content.fill(POISON)
    return content
