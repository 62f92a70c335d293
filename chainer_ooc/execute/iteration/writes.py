"""Finds writes of the program's functions to what they are given, and of its hooks to what they are shown.

What was written to is neither what its far copy is, nor what a recipe gives. So what has one of these is compared with
its checksum from before: what a function is given when it has run, what hooks are shown when the next step begins.

Within a backward pass only functions and hooks of the program's run. What a step has left is what the next one is given
there: its checksum is not computed again. A write in between, such as another thread's, is noticed then.

A function of the program's with ``ooc_recompute = True`` is taken to write to nothing. All that it is given is compared
while an iteration is recorded, and when it is the first of its type.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any

from chainer_ooc.backends import arrays
from chainer_ooc.execute import log
from chainer_ooc.execute.functions.prototype import believe, believed, declared_types, may_change_maps
from chainer_ooc.execute.storage.account import find
from chainer_ooc.execute.storage.slots import array_of
from chainer_ooc.execute.storage.storage import Storage

#: A storage with its checksum from before something ran, and an array on it that has to live until that is over: the
#: function may let go the last one that there is, and a Variable that shows it has what was written to it.
_Before = tuple[Storage, int | None, Any]


class Writes:
    """Finds writes around the computations of one iteration."""

    def __init__(self) -> None:
        self._given: Sequence[_Before] = ()
        self._shown: Sequence[_Before] = ()  # for the step that comes
        self._seen: Sequence[_Before] = ()  # for the last one: hooks may run after it
        self._read: Sequence[Storage] = ()  # by hooks, for the step that comes
        self._watched: Sequence[int | None] = ()  # checksums of what a function with ooc_recompute is given
        self._left: weakref.WeakKeyDictionary[Storage, int | None] | None = None  # by steps of this backward pass

    def begin_backward(self) -> None:
        """Begins a backward pass: until its end no code of the program's runs but functions and hooks."""
        self._left = weakref.WeakKeyDictionary()

    def end_backward(self) -> None:
        """Ends a backward pass, also one that failed."""
        self.show((), False)
        self._left, self._given = None, ()

    def expect(self, function: Any, is_foreign: bool, storages: Iterable[Storage]) -> None:
        """Exposes what recipes read and a foreign function is given; takes checksums of what else may be written to."""
        self._given = given = []
        if not is_foreign and not may_change_maps(function):
            return
        for storage in storages:
            if storage.readers() and is_foreign:
                storage.memory.open(storage)
            elif storage.is_relied_on():
                known = None if self._left is None else self._left.get(storage)
                given.append((storage, storage.checksum() if known is None else known, storage.root()))

    def look_at_given(self) -> None:
        """Compares them when the function has run."""
        given, self._given = self._given, ()
        if given:
            _look(given, self._left)

    def watch(self, function: Any, inputs: Sequence[Any], always: bool) -> None:
        """Takes checksums of the inputs of a function with ``ooc_recompute``: the first of its type, or always."""
        types = declared_types(function)
        needs_look = types and (always or not all(kind in believed for kind in types))
        self._watched = list(map(_checksum, inputs)) if needs_look else ()

    def look_at_inputs(self, function: Any, inputs: Sequence[Any]) -> bool:
        """Whether it has written to one of its inputs: its type runs again no more then."""
        watched, self._watched = self._watched, ()
        if not watched:
            return False
        changed = [each for each, before in zip(inputs, watched, strict=True) if _checksum(each) != before]
        types = declared_types(function)
        believe(types, is_true=not changed)
        for kind in types if changed else ():
            log.logger.warning(
                '%s has ooc_recompute = True and wrote to what it was given: it will not run again, and what it wrote '
                'to is swapped; have its forward work on a copy, or leave ooc_recompute out of it', kind.__name__)
        for storage in filter(None, (find(array_of(each)) for each in changed)):
            _open(storage)
        return bool(changed)

    def show(self, found: Sequence[Any], may_write: bool) -> None:
        """Takes checksums of arrays that hooks may write to, also when a step has dropped what they lie on."""
        self.look_at_shown()
        if self._left and (may_write or self._seen):
            self._left.clear()
        self._seen = ()
        shown = [(storage, array) for array in found if (storage := find(array)) is not None]
        self._read = [storage for storage, _ in shown]
        self._shown = [(storage, storage.checksum(), array) for storage, array in shown
                       if may_write and storage.is_relied_on()]

    def is_looking(self) -> bool:
        """Whether hooks were shown something that is to be compared, or that the step that comes reads."""
        return bool(self._shown or self._seen or self._read)

    def read_by_hooks(self) -> Sequence[Storage]:
        """Returns what hooks see of the step that comes, once: that step reads it."""
        read, self._read = self._read, ()
        return read

    def look_at_shown(self) -> None:
        """Compares what hooks were shown: a step begins, and hooks of the last one are done."""
        if self._shown or self._seen:
            _look((*self._seen, *self._shown))
            self._seen, self._shown = self._shown, ()


def _look(before: Sequence[_Before], left: MutableMapping[Storage, int | None] | None = None) -> None:
    for storage, checksum, _ in before:
        now = storage.checksum()
        if left is not None:
            left[storage] = now
        if now != checksum:
            _open(storage)


def _open(storage: Storage) -> None:
    """Exposes a storage that was written to."""
    storage.spoil_readers()
    storage.expose()
    storage.memory.open(storage)


def _checksum(given: Any) -> int | None:
    array = array_of(given)
    return None if array.dtype.hasobject else arrays.checksum(array)
