"""What every simulated allocator can do.

Two figures differ by what is lost: *used* is the sum of what was asked for, *reserved* is what the device has given to
the allocator. In between lie rounding (internal fragmentation) and cached memory that fits no request (external
fragmentation)::

    reserved   [#######..][#### |    ][###|  |#########]
    used        #######    ####        ###    #########        .: rounding    blank: cached
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

from chainer_ooc.errors import OocError
from chainer_ooc.quantities import format_bytes


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
    """The capacity does not hold a request, although all cached memory that can be given back was given back.

    Attributes:
        nbytes: the request.
        capacity_bytes, used_bytes, reserved_bytes: of the allocator.
        free_bytes, largest_free_bytes: what no block takes, and the largest request that would have succeeded.
    """

    def __init__(self, nbytes: int, capacity_bytes: int, used_bytes: int, reserved_bytes: int, free_bytes: int,
                 largest_free_bytes: int):
        self.nbytes = nbytes
        self.capacity_bytes, self.used_bytes, self.reserved_bytes = capacity_bytes, used_bytes, reserved_bytes
        self.free_bytes, self.largest_free_bytes = free_bytes, largest_free_bytes
        super().__init__(nbytes, capacity_bytes, used_bytes, reserved_bytes, free_bytes, largest_free_bytes)

    def __str__(self) -> str:
        return (f'no room for {format_bytes(self.nbytes)} in a device of {format_bytes(self.capacity_bytes)} '
                f'(used {format_bytes(self.used_bytes)}, reserved {format_bytes(self.reserved_bytes)}, free '
                f'{format_bytes(self.free_bytes)}, of which {format_bytes(self.largest_free_bytes)} in one piece); '
                'plan with a smaller budget, or take an allocator that fragments less')


class AllocatorModel(abc.ABC):
    """Gives blocks of a device of limited size, and takes them back.

    Attributes:
        capacity_bytes: of the device.
        used_bytes: sum of what was asked for and not freed.
        reserved_bytes: what the device has given; never below `used_bytes`, never above `capacity_bytes`.
    """

    def __init__(self, capacity_bytes: int, unit_bytes: int = 1):
        if capacity_bytes < 0:
            raise ValueError(f'a device of {capacity_bytes} bytes cannot be; give a capacity of 0 bytes or more')
        self.capacity_bytes = capacity_bytes
        self._usable_bytes = capacity_bytes // unit_bytes * unit_bytes
        self.used_bytes = 0
        self.reserved_bytes = 0
        self._taken_bytes = 0
        self._live: dict[int, ModelBlock] = {}

    def malloc(self, nbytes: int) -> ModelBlock:
        """Gives a block of `nbytes`.

        Raises:
            DeviceFullError: there is no room for it.

        If this fails:
            Every live block is where it was; cached memory may have been given back to the device.
        """
        if nbytes < 0:
            raise ValueError(f'{nbytes} bytes cannot be allocated')
        if nbytes == 0:
            return NOTHING
        block = self._take(nbytes)
        self.used_bytes += nbytes
        self._taken_bytes += block.size_bytes
        self._live[block.address] = block
        return block

    def free(self, block: ModelBlock) -> None:
        """Takes a block back.

        Raises:
            ValueError: it is none of this allocator's live blocks; nothing has changed.
        """
        if block.size_bytes == 0:
            return
        if self._live.get(block.address) is not block:
            raise ValueError(f'{block} is not alive in this allocator; it was freed before, or comes from another')
        del self._live[block.address]
        self.used_bytes -= block.nbytes
        self._taken_bytes -= block.size_bytes
        self._give_back(block)

    @property
    def free_bytes(self) -> int:
        """What no live block takes, cached or still the device's; without what is too little for any block."""
        return self._usable_bytes - self._taken_bytes

    @property
    @abc.abstractmethod
    def largest_free_bytes(self) -> int:
        """The largest request that can be met without giving cached memory back."""

    def _full(self, nbytes: int) -> DeviceFullError:
        return DeviceFullError(nbytes, self.capacity_bytes, self.used_bytes, self.reserved_bytes, self.free_bytes,
                               self.largest_free_bytes)

    @abc.abstractmethod
    def _take(self, nbytes: int) -> ModelBlock:
        """Finds room for 1 byte or more."""

    @abc.abstractmethod
    def _give_back(self, block: ModelBlock) -> None:
        """Does what follows a free."""
