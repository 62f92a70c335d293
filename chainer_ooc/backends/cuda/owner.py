"""Who owns a block of device memory.

CuPy's memory objects take no weak references, and its views need not know the array that they are a view of. So each
block that our allocator gives out has an owner of its own, which every array on it keeps alive::

    array --> MemoryPointer --> UnownedMemory --> Owner --> the allocator's block
    view  --> MemoryPointer -----^
"""

from __future__ import annotations

from collections.abc import Callable


class Owner:
    """Owns a block, for as long as anything refers to it; subclasses say what becomes of the block then.

    Attributes:
        pointer: its address.
        nbytes: its size, as it was asked for.
        device_id: the device that it is on.
    """

    __slots__ = ('__weakref__', 'device_id', 'nbytes', 'pointer')

    def __init__(self, pointer: int, nbytes: int, device_id: int) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.device_id = device_id


class Guest(Owner):
    """Stands for memory that another object owns.

    `gone` is called when nothing refers to the memory through this any more, from any thread, also within the garbage
    collector.
    """

    __slots__ = ('_gone',)

    def __init__(self, pointer: int, nbytes: int, device_id: int, gone: Callable[[], None]) -> None:
        super().__init__(pointer, nbytes, device_id)
        self._gone = gone  # the last, see __del__

    def __del__(self) -> None:
        if hasattr(self, '_gone'):  # else an interrupt came while it was made
            self._gone()
