"""Near memory as a GPU's looks to whoever uses it at the wrong moment.

Where a CUDA program reads what has not arrived, or what was freed and given to somebody else, it gets bytes that look
like numbers. Here it gets `POISON`: NaN in every float, -1 or the largest value in every integer, so that the fault
reaches the loss instead of hiding in it.

A copy in flight does not keep its near memory alive: on a GPU the caller has to. `Borrowed` therefore refers to it
weakly, and tells whether the owner let it go too early.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from chainer_ooc.backends.base import ByteArray

#: Each byte of memory that holds nothing. A float16, 32 or 64 of such bytes is NaN.
POISON = 0xFF


def poisoned(nbytes: int) -> ByteArray:
    """Returns new memory, full of poison.

    Raises:
        MemoryError: the system refuses.
    """
    return np.full(nbytes, POISON, np.uint8)


class Borrowed:
    """Near memory that a copy in flight reads or fills, and that only its owner keeps alive.

    What counts is the array that owns the memory, since views of it may come and go. While that array lives, its
    address does not change, so that the bytes can be reached without a reference to a view.

    Attributes:
        nbytes: size in bytes.
    """

    __slots__ = ('_address', '_owner', 'nbytes')

    def __init__(self, array: ByteArray) -> None:
        self.nbytes = array.nbytes
        self._address: int = array.ctypes.data
        owner: Any = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        self._owner: weakref.ref[Any] = weakref.ref(owner)

    def read_into(self, far: ByteArray) -> bool:
        """Copies the bytes as they are now; False, and `far` is untouched, if the memory was freed."""
        owner = self._owner()
        if owner is not None:
            ctypes.memmove(far.ctypes.data, self._address, self.nbytes)
        return owner is not None

    def fill_from(self, far: ByteArray) -> bool:
        """Fills the memory; False if it was freed."""
        owner = self._owner()
        if owner is not None:
            ctypes.memmove(self._address, far.ctypes.data, self.nbytes)
        return owner is not None
