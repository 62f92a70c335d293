"""Writes that nobody announces: of the program's functions to what they are given, of its hooks to what they are shown.

What was written to is neither what its far copy is, nor what a recipe gives. So whatever has one of these is compared
with its checksum from before: what a function is given when it has run, what hooks are shown when the next step begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from chainer_ooc.execute.account import find
from chainer_ooc.execute.prototype import may_change_maps
from chainer_ooc.execute.storage import Storage

#: A storage with its checksum from before something ran, and an array on it that has to live until that is over.
_Before = tuple[Storage, int | None, Any]


class Writes:
    """Looks for writes around the computations of one iteration."""

    def __init__(self) -> None:
        self._given: Sequence[_Before] = ()
        self._shown: Sequence[_Before] = ()

    def expect(self, function: Any, is_foreign: bool, storages: Iterable[Storage]) -> None:
        """A function is about to run, on these storages.

        Args:
            function: the function.
            is_foreign: it is the program's own, which may write to whatever it is given.
            storages: what it is given.
        """
        self._given = given = []
        if not is_foreign and not may_change_maps(function):
            return
        for storage in storages:
            if storage.readers and is_foreign:
                storage.memory.open(storage)
            elif storage.is_relied_on():
                given.append((storage, storage.checksum(), None))

    def look_at_given(self) -> None:
        """The function has run."""
        if self._given:
            _look(self._given)

    def show(self, found: Sequence[Any]) -> None:
        """Hooks may write to arrays from now on, also when a step has dropped what they lie on."""
        self.look_at_shown()
        self._shown = [(storage, storage.checksum(), array) for array in found
                       if (storage := find(array)) is not None and storage.is_relied_on()]

    def look_at_shown(self) -> None:
        """Hooks have had what they were shown."""
        if self._shown:
            _look(self._shown)


def _look(before: Sequence[_Before]) -> None:
    for storage, checksum, _ in before:
        if storage.checksum() != checksum:
            storage.spoil_readers()
            storage.expose()
            storage.memory.open(storage)
