"""Near memory that lies in far memory while it lives: the part of the contract that few devices have, see `base`."""

from __future__ import annotations

import abc
from contextlib import AbstractContextManager
from typing import Any


class FileBacked(abc.ABC):
    """Blocks of near memory that lie in far memory while they live, at the addresses that they have.

    Whoever reads or writes one finds nothing different but the time that it takes; what is touched of it is in near
    memory until it is dropped. A block becomes an ordinary one again when its process is forked. What another thread
    writes while it becomes one or the other may be lost.

    Attributes:
        refusal: why the system lays no block there any more; '' while it does.
    """

    refusal: str

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

    @abc.abstractmethod
    def note_written(self, nbytes: int) -> None:
        """Tells that so many bytes of such blocks were written to as they are."""

    @abc.abstractmethod
    def writing(self) -> AbstractContextManager[Any]:
        """Within this the calling thread may write to such blocks as they are; no fork comes meanwhile."""

    @abc.abstractmethod
    def close(self) -> None:
        """Makes all of them ordinary.

        Raises:
            MemoryError: there is no memory for one. What is still in far memory is all right there.
        """
