"""Near memory that lies in far memory while it lives: the part of the contract that few devices have, see `base`."""

from __future__ import annotations

import abc
from typing import Any


class FileBacked(abc.ABC):
    """Blocks of near memory that lie in far memory while they live, at the addresses that they have.

    Whoever reads or writes one finds nothing different but the time that it takes; what is touched of it is in near
    memory until it is dropped. A block becomes an ordinary one again when its process is forked.
    """

    @abc.abstractmethod
    def back(self, root: Any) -> bool:
        """Lays a block, as `arrays.root_of` gives it, on far memory; whether it lies there now.

        Raises:
            SpillError: its bytes cannot be written there. The block is as it was.
        """

    @abc.abstractmethod
    def is_backed(self, root: Any) -> bool:
        """Whether a block lies there."""

    @abc.abstractmethod
    def drop(self, root: Any) -> None:
        """Has no byte of such a block in near memory; of another block it does nothing."""

    @abc.abstractmethod
    def read(self, array: Any, into: Any) -> None:
        """Copies an array to another without having it in near memory. Both are C-contiguous, of one shape and dtype.

        Raises:
            SpillError: far memory cannot be read.
        """

    @abc.abstractmethod
    def write(self, array: Any, source: Any) -> None:
        """Copies to an array in the same way.

        Raises:
            SpillError: far memory cannot be written. Bytes of both are in the array.
        """
