"""Who owns a block of device memory.

CuPy's memory objects take no weak references, and its views need not know the array that they are a view of. So each
block that our allocator gives out has an owner of its own, which every array on it keeps alive::

    array --> MemoryPointer --> UnownedMemory --> Owner --> the allocator's block
    view  --> MemoryPointer -----^
"""

from __future__ import annotations


class Owner:
    """Owns a block, for as long as anything refers to it; what becomes of the block then is a subclass's matter.

    Args:
        pointer: its address.
        nbytes: its size, as it was asked for.
        device_id: the device that it is on.

    Attributes:
        pointer, nbytes, device_id: as given.
    """

    __slots__ = ('__weakref__', 'device_id', 'nbytes', 'pointer')

    def __init__(self, pointer: int, nbytes: int, device_id: int) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.device_id = device_id
