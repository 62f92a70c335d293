"""The slots in which Chainer holds arrays, each of which can take a stand-in for its array, and the array again.

A slot holds an array, the stand-in (`Away`) of one that left, or nothing. A read of a slot whose array left reaches
`Away.fetch` first: `VariableNode.data`, `FunctionNode.__getattr__` and the retained outputs through the seam patch, a
Variable's data list by its own `__getitem__`. That is promise P1.

    node._data ------> array --.
    Variable._data --> [array]--+--> root            (resident)
    function.mask ---> array --'

    node._ooc -------> Away ---.
    Variable._data --> Watched -+--> Storage --> far copy, recipe   (away)
    function._ooc ---> Away ---'

What the program itself reads, it may write to. So a Variable's list and a node can be *watched* also while the array is
there: then the program's first read is noticed, and Chainer's own reads are not.

Slots hold nodes and functions weakly: a graph that dies takes its stand-ins with it, and so its far copies. A slot's
new content is put there before the old one goes, since another thread may read it at any moment.

Source: PyTorch's saved-tensor hooks (pack and unpack), for a framework that has properties instead.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, ClassVar, Protocol

import numpy as np

from chainer_ooc.backends.arrays import is_array, view
from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.layout import Layout
from chainer_ooc.backends.references import references
from chainer_ooc.execute.storage.computing import only_reads
from chainer_ooc.execute.storage.reentry import interrupted, is_locked, may_have_called, refusal

Array = np.ndarray[Any, Any]

#: What most attributes of functions are; `is_array` would say so too, in a call more for each.
_NO_ARRAYS = frozenset({type(None), bool, int, float, str, tuple, list, dict, weakref.ref})


class BlockOwner(Protocol):
    """What a stand-in gets the bytes from: a storage."""

    __slots__ = ()

    def fetch(self) -> ByteArray:
        """Makes the storage resident, notes if the program reads it, and gives its block (P1)."""

    def peek(self) -> ByteArray | None:
        """Its bytes as they are, for code that interrupts the core: nothing changes. None if they cannot be read."""

    def is_guarded(self) -> bool:
        """Whether what reads it now only reads, or is compared for writes afterwards."""


@dataclass(eq=False, slots=True)
class Away:
    """Stands for an array of a storage."""

    storage: BlockOwner
    layout: Layout

    def fetch(self, array: Array | None = None) -> Array:
        """Brings the storage back, and with it all slots' arrays; gives `array`, or the one that this stands for."""
        if is_locked() and (code := interrupted()) is not None:
            return self.look(code)
        found: Array = view(self.storage.fetch(), self.layout)
        return found if array is None else array

    def look(self, code: CodeType) -> Array:
        """The array as it lies, read-only, for a signal handler or a finalizer that has interrupted the core's code.

        Raises:
            ReentryError: it is in no memory that can be read here.
        """
        block = self.storage.peek()
        if block is None and may_have_called(code):  # by a function of the program's that runs again
            block = self.storage.fetch()
        if block is None:
            raise refusal(f'reads a feature map that is in no memory (shape {self.layout.shape}, {self.layout.dtype})')
        array: Array = view(block, replace(self.layout, writeable=False))
        return array

    def read(self, array: Array | None) -> Array:
        """What a read of a node gives that has this and, while it is only watched, its array."""
        if array is not None and (only_reads() or self.storage.is_guarded()):
            return array
        return self.fetch(array)


class Watched(list):  # type: ignore[type-arg]
    """The data list of a Variable whose array is away, or is there and must not be written to unnoticed.

    A copy of the Variable may share this very list and outlive it, so the list takes the array itself.
    """

    def __init__(self, away: Away | None, array: Array | None):
        super().__init__([array])
        self.away = away

    def __getitem__(self, index: Any) -> Any:
        away, array = self.away, super().__getitem__(0)
        if away is not None and (array is None or not only_reads()):
            if is_locked() and (code := interrupted()) is not None:
                return [away.look(code)][index]
            found = away.fetch()
            array = found if array is None else array
            if not only_reads():
                self[0] = array
        return [array][index]

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        self.away = None


_NO_LIST: weakref.ref[Watched] = weakref.ref(Watched(None, None))


class Slot(abc.ABC):
    """One slot.

    Attributes:
        owner: weak reference to the node or function that it belongs to.
        key: tells it from the other slots that are alive.
        name: what it is called where its owner has one of its kind.
    """

    __slots__ = ('key', 'owner')
    key: tuple[int, Any]
    name: ClassVar[str] = ''

    def __init__(self, owner: Any, name: str | int | None = None):
        self.key = id(owner), self.name if name is None else name
        self.owner: Callable[[], Any] = weakref.ref(owner)

    def is_alive(self) -> bool:
        """Whether the node or function that it belongs to still exists."""
        return self.owner() is not None

    @abc.abstractmethod
    def get(self) -> Array | Away | None:
        """What is in it; looking does not bring it back."""

    @abc.abstractmethod
    def put(self, content: Array | Away) -> None:
        """Puts an array or a stand-in there, in place of what it holds now; what is watched stays so.

        What it belongs to may have died meanwhile: the collector, or another thread, comes at any moment.
        """

    def is_watched(self, storage: BlockOwner) -> bool:
        """Whether the program's next read of a storage's array is noticed, or cannot be."""
        return True

    def watch(self, away: Away | None) -> None:  # noqa: B027  not every slot can be
        """Has the program's next read noticed, or no more if `away` is None; the array stays. Copies prevent it."""

    def unwatch(self, storage: BlockOwner) -> None:
        """Ends the watch for a storage's array; the slot may have another's by now."""
        content = self.get()
        if content is not None and type(content) is not Away and self.is_watched(storage):
            self.watch(None)


class NodeSlot(Slot):
    """A variable node's retained array."""

    __slots__ = ()
    name = 'node'

    def get(self) -> Array | Away | None:
        node = self.owner()
        if node is None:
            return None
        return node._ooc if node._data is None else node._data  # type: ignore[no-any-return]

    def put(self, content: Array | Away) -> None:
        node, is_away = self.owner(), isinstance(content, Away)
        if node is None:
            return
        if is_away:
            node._ooc = content
        node._data = None if is_away else content

    def is_watched(self, storage: BlockOwner) -> bool:
        node = self.owner()
        return node is None or (node._ooc is not None and node._ooc.storage is storage)

    def watch(self, away: Away | None) -> None:
        node = self.owner()
        if node is not None:
            node._ooc = away


class VariableSlot(Slot):
    """The array of a node's Variable, while that lives; then that of its copies, which share a list that is watched."""

    name = 'variable'
    _watched = _NO_LIST

    def is_alive(self) -> bool:
        return self.owner() is not None or self._watched() is not None

    def get(self) -> Array | Away | None:
        node = self.owner()
        variable = None if node is None else node._variable()
        data: Any = self._watched() if variable is None else variable._data
        if data is None:
            return None
        array: Array | None = list.__getitem__(data, 0)
        return data.away if array is None and type(data) is Watched else array

    def put(self, content: Array | Away) -> None:
        if isinstance(content, Away):
            self.watch(content)
            if type(data := self._data()) is Watched:  # a plain list stays that of the Variable and its copy
                list.__setitem__(data, 0, None)
        elif (data := self._data()) is not None:
            list.__setitem__(data, 0, content)

    def is_watched(self, storage: BlockOwner) -> bool:
        data = self._data()
        return data is None or (type(data) is Watched and data.away is not None and data.away.storage is storage)

    def watch(self, away: Away | None) -> None:
        if self.is_copied() or (data := self._data()) is None:
            return
        if type(data) is list:
            node = self.owner()
            variable = None if node is None else node._variable()
            if variable is None:
                return
            data = variable._data = Watched(None, data[0])
        data.away = away
        self._watched = weakref.ref(data)

    def is_shown(self) -> bool:
        """Whether there is a Variable that the program may look at."""
        return self._data() is not None

    def identity(self) -> int:
        """Tells its list from others; two slots may have one, of a Variable and its copy."""
        return id(self._data())

    def is_copied(self) -> bool:
        """Whether a copy of the Variable shares its list, so that what is read through that goes unnoticed."""
        return type(self._data()) is list and references([self._data()]) > 1

    def _data(self) -> Any:
        node = self.owner()
        variable = None if node is None else node._variable()
        return self._watched() if variable is None else variable._data


class OutputSlot(Slot):
    """One of the output arrays that a function retains for itself, beside those of the output nodes."""

    __slots__ = ()

    def get(self) -> Array | Away | None:
        function, index = self.owner(), self.key[1]
        if function is None or function._retained_output_data is None:
            return None
        array: Array | None = function._retained_output_data[index]
        return (function._ooc or {}).get(self.key) if array is None else array

    def put(self, content: Array | Away) -> None:
        function, index = self.owner(), self.key[1]
        if function is None:
            return
        is_away = isinstance(content, Away)
        if is_away:
            function.__dict__.setdefault('_ooc', {})[self.key] = content
        retained = list(function._retained_output_data)
        retained[index] = None if is_away else content
        function._retained_output_data = tuple(retained)
        if not is_away:
            (function._ooc or {}).pop(self.key, None)


class AttributeSlot(Slot):
    """An array that a function hides on itself (P5).

    The attribute is deleted while the array is away, so that reading it reaches `__getattr__`; one that the class
    itself has too would be read from there instead, and is left alone (see `hidden_slots`).
    """

    __slots__ = ()

    def get(self) -> Array | Away | None:
        owner, name = self.owner(), self.key[1]
        if owner is None:
            return None
        array: Array | None = owner.__dict__.get(name)
        return (owner._ooc or {}).get(name) if array is None else array

    def put(self, content: Array | Away) -> None:
        owner, name = self.owner(), self.key[1]
        if owner is None:
            return
        if isinstance(content, Away):
            owner.__dict__.setdefault('_ooc', {})[name] = content
            owner.__dict__.pop(name, None)
        else:
            owner.__dict__.setdefault(name, content)
            (owner._ooc or {}).pop(name, None)


def array_of(given: Any) -> Any:
    """The array of an argument of `apply`: a Variable or an array."""
    return given._data[0] if hasattr(given, '_data') else given


def array_in_slot(given: Any) -> Any:
    """The same, or None if it is away: looking does not bring it back."""
    data = getattr(given, '_data', None)
    return given if data is None else list.__getitem__(data, 0)


def owners_of(function: Any) -> list[Any]:
    """A function, and the old-style function that it adapts, if it does."""
    old_style = function.__dict__.get('_function')
    return [function] if old_style is None else [function, old_style]


def hidden_slots(function: Any) -> list[AttributeSlot]:
    """Finds where a function, or the old-style function that it adapts, keeps arrays as attributes."""
    found = []
    for owner in owners_of(function):
        for name, value in owner.__dict__.items():
            if type(value) not in _NO_ARRAYS and is_array(value) and not hasattr(type(owner), name):
                found.append(AttributeSlot(owner, name))
    return found
