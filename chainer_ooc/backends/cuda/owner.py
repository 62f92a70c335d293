"""Who owns a block of device memory.

CuPy's memory objects take no weak references, and its views need not know the array that they are a view of. So each
block that our allocator gives out has an owner of its own, which every array on it keeps alive::

    array --> MemoryPointer --> UnownedMemory --> Owner --> the allocator's block
    view  --> MemoryPointer -----^
"""

from __future__ import annotations

from collections.abc import Callable


class Owner:
    """Owns a block: with its last reference the block goes back to its allocator.

    Args:
        pointer: its address.
        nbytes: its size, as it was asked for.
        device_id: the device that it is on.
        give_back: called once, when nothing refers to the block any more; from any thread, also within the garbage
            collector.

    Attributes:
        pointer, nbytes, device_id: as given.
    """

    __slots__ = ('__weakref__', '_give_back', 'device_id', 'nbytes', 'pointer')

    def __init__(self, pointer: int, nbytes: int, device_id: int, give_back: Callable[[], None]) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.device_id = device_id
        self._give_back = give_back

    def __del__(self) -> None:
        if hasattr(self, '_give_back'):  # else an interrupt came while it was made
            self._give_back()
