"""Who owns a block of device memory.

CuPy's memory objects take no weak references, and its views need not know the array that they are a view of. So each
block that our allocators give out is an owner of its own, which every array on it keeps alive::

    array --> MemoryPointer --> UnownedMemory --> Owner --> memory of CuPy's, where there is any below
    view  --> MemoryPointer -----^

It ends when the last of them does, also where they are garbage in a cycle; see ``collector``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chainer_ooc.backends.collector import untrack


class Owner:
    """A block, for as long as anything refers to it; what becomes of it then is its allocator's to say.

    Attributes:
        pointer: its address.
        nbytes: its size, as it was asked for.
        size_bytes: its size, as the allocator rounds it.
        device_id: the device that it is on.
        memory: what it lies in and keeps alive, if anything.
    """

    __slots__ = ('__weakref__', 'device_id', 'memory', 'nbytes', 'pointer', 'size_bytes')

    def __init__(self, pointer: int, nbytes: int, device_id: int, size_bytes: int, memory: Any = None) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.device_id = device_id
        self.size_bytes = size_bytes
        self.memory = memory
        untrack(self)


class Guest(Owner):
    """Stands for memory that another object owns.

    `gone` is called when nothing refers to the memory through this any more, from any thread, also within the garbage
    collector.
    """

    __slots__ = ('_gone',)

    def __init__(self, pointer: int, nbytes: int, device_id: int, gone: Callable[[], None]) -> None:
        super().__init__(pointer, nbytes, device_id, nbytes)
        self._gone = gone  # the last, see __del__

    def __del__(self) -> None:
        if hasattr(self, '_gone'):  # else an interrupt came while it was made
            self._gone()
