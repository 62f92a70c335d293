"""What every simulated allocator can do, and the one that loses nothing.

Two figures differ by what is lost: *used* is the sum of what was asked for, *reserved* is what the device has given to
the allocator. In between lie rounding (internal fragmentation) and cached memory that fits no request (external
fragmentation)::

    reserved   [#######..][#### |    ][###|  |#########]
    used        #######    ####        ###    #########        .: rounding    blank: cached

`ExactAllocator` has neither: it is what the planner's demand and the simulator's timeline count with.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

from chainer_ooc.errors import OocError


@dataclass(frozen=True)
class ModelBlock:
    """Memory that was asked for and given.

    Attributes:
        address: where it begins, in bytes; -1 for a block of 0 bytes, which lies nowhere.
        nbytes: what was asked for.
        size_bytes: what it takes away from the device, rounding included.
    """

    address: int
    nbytes: int
    size_bytes: int


NOTHING = ModelBlock(-1, 0, 0)


class DeviceFullError(OocError, MemoryError):
    """There is no room for a request, although all cached memory that can be given back was given back."""


class AllocatorModel(abc.ABC):
    """Gives blocks of a device of limited size, and takes them back.

    Attributes:
        capacity_bytes: of the device.
        used_bytes: sum of what was asked for and not freed.
        reserved_bytes: what the device has given; never below `used_bytes`, never above `capacity_bytes`.
    """

    def __init__(self, capacity_bytes: int):
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.reserved_bytes = 0

    def malloc(self, nbytes: int) -> ModelBlock:
        """Gives a block of `nbytes`, 0 or more.

        Raises:
            DeviceFullError: there is no room for it.

        If this fails:
            Every live block is where it was; cached memory may have been given back to the device.
        """
        if nbytes == 0:
            return NOTHING
        block = self._take(nbytes)
        self.used_bytes += nbytes
        return block

    def free(self, block: ModelBlock) -> None:
        """Takes back one of this allocator's live blocks."""
        if block.size_bytes:
            self.used_bytes -= block.nbytes
            self._give_back(block)

    @abc.abstractmethod
    def _take(self, nbytes: int) -> ModelBlock:
        """Finds room for 1 byte or more."""

    @abc.abstractmethod
    def _give_back(self, block: ModelBlock) -> None:
        """Does what follows a free."""


class ExactAllocator(AllocatorModel):
    """Counts bytes: a request succeeds exactly if they are there.

    Each block gets addresses that no block before it had, as if memory could be moved together at no cost.
    """

    _next_address = 0

    def _take(self, nbytes: int) -> ModelBlock:
        if self.reserved_bytes + nbytes > self.capacity_bytes:
            raise DeviceFullError
        self.reserved_bytes += nbytes
        address, self._next_address = self._next_address, self._next_address + nbytes
        return ModelBlock(address, nbytes, nbytes)

    def _give_back(self, block: ModelBlock) -> None:
        self.reserved_bytes -= block.size_bytes
