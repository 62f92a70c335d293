"""How much near memory computations take: the part of the contract that recording needs, see `base`."""

from __future__ import annotations

import abc
import contextlib
from contextlib import AbstractContextManager
from typing import Any


class Meter(abc.ABC):
    """Counts, while it is `running`, how much near memory computations take at their highest, and what stays."""

    running = False
    #: What was allocated before `start` and is freed later makes `current_bytes` less.
    counts_older = False

    @abc.abstractmethod
    def start(self) -> bool:
        """Begins to count, if it does not count already; False if it cannot."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends counting, and leaves everything as it was found."""

    @abc.abstractmethod
    def current_bytes(self) -> int:
        """Bytes allocated since `start` that still live, or 0 when it does not count."""

    @abc.abstractmethod
    def has_counted(self, root: Any) -> bool:
        """Whether a block's bytes, by what owns them or None, are in `current_bytes`; False where that is not known."""

    def exclude(self, root: Any) -> bool:
        """Has a block count no more, as it lies in far memory (`FileBacked`); whether it did."""
        return False

    def leaves_out(self) -> AbstractContextManager[None]:
        """Within this nothing counts: what plans are made with is in the host's memory, beside what it computes."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def mark(self) -> None:
        """Begins a stretch whose peak `above_mark_bytes` gives."""

    @abc.abstractmethod
    def above_mark_bytes(self) -> int:
        """The peak since `mark`, above what lived then; 0 when it does not count."""
