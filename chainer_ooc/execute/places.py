"""The places where Chainer holds on to an array, each of which can give it up and take it back.

A place is one slot: it holds an array, the stand-in (`Away`) of one that left, or nothing. Whoever reads a slot whose
array left reaches `Away.fetch` first: `VariableNode.data`, `FunctionNode.__getattr__` and the retained outputs through
the seam patch, a Variable's data list by its own `__getitem__`. That is promise P1.

    node._data ------> array --.
    Variable._data --> [array]--+--> root            (resident)
    function.mask ---> array --'

    node._ooc -------> Away ---.
    Variable._data --> Watched -+--> Storage --> far copy, recipe   (away)
    function._ooc ---> Away ---'

What the program itself reads, it may write to. So a Variable's list and a node can be *watched* also while the array is
there: then the program's first read is noticed, and Chainer's own reads are not.

Places hold nodes and functions weakly: a graph that dies takes its stand-ins with it, and so its far copies. A slot's
new content is put there before the old one goes, since another thread may read it at any moment.

Source: PyTorch's saved-tensor hooks (pack and unpack), for a framework that has properties instead.
"""

from __future__ import annotations

import abc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from chainer_ooc.backends.arrays import Layout, is_array, view
from chainer_ooc.backends.base import ByteArray

Array = np.ndarray[Any, Any]

#: What most attributes of functions are; `is_array` would say so too, in a call more for each.
_NO_ARRAYS = frozenset({type(None), bool, int, str, tuple, list, dict})


class _Thread(threading.local):
    """Of each thread: how many computations it is within, and whether the innermost is one of the program's own."""

    computations = 0
    is_foreign = False


_thread = _Thread()


class computing:  # noqa: N801
    """Within it, this thread runs a function. Not a generator: one that an interrupt left open would end much later.

    Args:
        is_foreign: it is the program's own, which may write to whatever it reads. Chainer's functions only read.
    """

    __slots__ = ('_before', '_is_foreign')

    def __init__(self, is_foreign: bool = False):
        self._is_foreign = is_foreign

    def __enter__(self) -> None:
        self._before = _thread.computations, _thread.is_foreign
        _thread.computations, _thread.is_foreign = self._before[0] + 1, self._is_foreign

    def __exit__(self, *exception: object) -> None:
        _thread.computations, _thread.is_foreign = self._before


def forget_computations() -> None:
    """No function runs in this thread any more: an exception has come to the outermost, and may have hit any line."""
    _thread.computations, _thread.is_foreign = 0, False


def is_computing() -> bool:
    """Whether the calling thread runs a function."""
    return _thread.computations > 0


def only_reads() -> bool:
    """Whether it runs one that does not write to what it reads: whoever else reads is the program."""
    return _thread.computations > 0 and not _thread.is_foreign


class Owner(Protocol):
    """What a stand-in asks for the bytes: a storage."""

    def fetch(self) -> ByteArray:
        """Makes it resident, takes note if the program reads it, and gives its block."""

    def is_guarded(self) -> bool:
        """Whether nobody has to take note of who reads it now."""


class Away:
    """Stands for an array of a storage."""

    __slots__ = ('layout', 'storage')

    def __init__(self, storage: Owner, layout: Layout):
        self.storage = storage
        self.layout = layout

    def fetch(self) -> Array:
        """Brings the storage back, and with it every place's array; returns the one that this stands for."""
        array: Array = view(self.storage.fetch(), self.layout)
        return array

    def read(self, array: Array | None) -> Array:
        """What is read of a node that has this and, while it is only watched, its array."""
        if array is not None and (only_reads() or self.storage.is_guarded()):
            return array
        found = self.fetch()
        return found if array is None else array


class Watched(list):  # type: ignore[type-arg]
    """The data list of a Variable whose array is away, or is there and must not be written to unnoticed.

    A copy of the Variable may share this very list and outlive it, so the list takes the array itself.
    """

    def __init__(self, away: Away, array: Array | None = None):
        super().__init__([array])
        self.away: Away | None = away

    def __getitem__(self, index: Any) -> Any:
        away, array = self.away, super().__getitem__(0)
        if away is None or (array is not None and only_reads()):
            return super().__getitem__(index)
        found = away.fetch()
        array = found if array is None else array
        if only_reads():
            return [array][index]
        self[0] = array
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        self.away = None


class Place(abc.ABC):
    """One slot.

    Attributes:
        key: tells it from the other places that are alive.
        is_variable: it is what the program sees.
    """

    __slots__ = ('_owner', 'key')
    key: tuple[int, Any]
    is_variable = False

    def __init__(self, owner: Any, name: str | int):
        self.key = id(owner), name
        self._owner: Callable[[], Any] = weakref.ref(owner)

    def owner(self) -> Any:
        """The node or function that it belongs to, or None."""
        return self._owner()

    def is_alive(self) -> bool:
        """Whether the node or function that it belongs to still exists."""
        return self._owner() is not None

    def slot(self) -> object:
        """Tells it from other slots: two places may be one, of a Variable and its copy."""
        return self.key

    @abc.abstractmethod
    def get(self) -> Array | Away | None:
        """What is in it; looking does not bring it back."""

    @abc.abstractmethod
    def put(self, content: Array | Away) -> None:
        """Puts an array or a stand-in there, in place of what it holds now; what is watched stays so."""

    def is_watched(self, owner: Owner) -> bool:
        """Whether the program's next read of an owner's array is noticed, or cannot be."""
        return True

    def watch(self, away: Away) -> None:  # noqa: B027  not every slot can be
        """Has the program's next read noticed, unless there are copies; the array stays."""

    def unwatch(self, owner: Owner) -> None:  # noqa: B027
        """Has the program read an owner's array as it likes; there may be another's by now."""


class NodePlace(Place):
    """A variable node's retained array."""

    __slots__ = ()

    def __init__(self, node: Any):
        super().__init__(node, 'node')

    def get(self) -> Array | Away | None:
        node = self._owner()
        if node is None:
            return None
        return node._ooc if node._data is None else node._data  # type: ignore[no-any-return]

    def put(self, content: Array | Away) -> None:
        node = self._owner()
        if isinstance(content, Away):
            node._ooc = content
            node._data = None
        else:
            node._data = content

    def is_watched(self, owner: Owner) -> bool:
        node = self._owner()
        return node is None or (node._ooc is not None and node._ooc.storage is owner)

    def watch(self, away: Away) -> None:
        self._owner()._ooc = away

    def unwatch(self, owner: Owner) -> None:
        node = self._owner()
        if node is not None and node._data is not None and self.is_watched(owner):
            node._ooc = None


class VariablePlace(Place):
    """The array of a node's Variable, while that lives."""

    __slots__ = ()
    is_variable = True

    def __init__(self, node: Any):
        super().__init__(node, 'variable')

    def get(self) -> Array | Away | None:
        data = self._data()
        if data is None:
            return None
        array: Array | None = list.__getitem__(data, 0)
        return data.away if array is None and type(data) is Watched else array

    def put(self, content: Array | Away) -> None:
        is_copied, data = self.is_copied(), self._data()
        if not isinstance(content, Away):
            list.__setitem__(data, 0, content)
        elif type(data) is Watched:
            data.away = content
            list.__setitem__(data, 0, None)
        elif not is_copied:  # a plain list stays that of both
            self._owner().get_variable_or_none()._data = Watched(content)

    def is_watched(self, owner: Owner) -> bool:
        data = self._data()
        return data is None or (type(data) is Watched and data.away is not None and data.away.storage is owner)

    def watch(self, away: Away) -> None:
        if self.is_copied():
            return
        data = self._data()
        if type(data) is Watched:
            data.away = away
        else:
            self._owner().get_variable_or_none()._data = Watched(away, data[0])

    def unwatch(self, owner: Owner) -> None:
        data = self._data()
        if data is not None and list.__getitem__(data, 0) is not None and self.is_watched(owner):
            data.away = None

    def is_shown(self) -> bool:
        """Whether there is a Variable that the program may look at."""
        return self._data() is not None

    def slot(self) -> object:
        return id(self._data())

    def is_copied(self) -> bool:
        """Whether a copy of the Variable shares its list, so that what is read through that goes unnoticed."""
        return type(self._data()) is list and _is_shared(self._owner().get_variable_or_none())

    def _data(self) -> Any:
        node = self._owner()
        variable = None if node is None else node.get_variable_or_none()
        return None if variable is None else variable._data


class OutputPlace(Place):
    """One of the output arrays that a function retains for itself, beside those of the output nodes."""

    __slots__ = ()

    def get(self) -> Array | Away | None:
        function, index = self._owner(), self.key[1]
        if function is None or function._retained_output_data is None:
            return None
        array: Array | None = function._retained_output_data[index]
        return (function._ooc or {}).get(self.key) if array is None else array

    def put(self, content: Array | Away) -> None:
        function, index = self._owner(), self.key[1]
        away = isinstance(content, Away)
        if away:
            function.__dict__.setdefault('_ooc', {})[self.key] = content
        retained = list(function._retained_output_data)
        retained[index] = None if away else content
        function._retained_output_data = tuple(retained)
        if not away:
            (function._ooc or {}).pop(self.key, None)


class AttributePlace(Place):
    """An array that a function hides on itself (P5).

    The attribute is deleted while the array is away, so that reading it reaches `__getattr__`; one that the class
    itself has too would be read from there instead, and is left alone (see `hidden_places`).
    """

    __slots__ = ()

    def get(self) -> Array | Away | None:
        owner, name = self._owner(), self.key[1]
        if owner is None:
            return None
        array: Array | None = owner.__dict__.get(name)
        return (owner._ooc or {}).get(name) if array is None else array

    def put(self, content: Array | Away) -> None:
        owner, name = self._owner(), self.key[1]
        if isinstance(content, Away):
            owner.__dict__.setdefault('_ooc', {})[name] = content
            owner.__dict__.pop(name, None)
        else:
            owner.__dict__.setdefault(name, content)
            (owner._ooc or {}).pop(name, None)

    def source(self) -> tuple[Any, str]:
        """The function that has the attribute, and its name."""
        return self._owner(), str(self.key[1])


def _is_shared(variable: Any) -> bool:
    return _references(variable) > _ALONE


def _references(variable: Any) -> int:
    data = variable._data
    return sys.getrefcount(data)


def _calibrate() -> int:
    class Alone:
        def __init__(self) -> None:
            self._data = [None]

    return _references(Alone())


_ALONE = _calibrate()


def array_of(given: Any) -> Any:
    """The array of an argument of `apply`: a Variable or an array."""
    return given._data[0] if hasattr(given, '_data') else given


def array_in_place(given: Any) -> Any:
    """The same, or None if it is away: looking does not bring it back."""
    data = getattr(given, '_data', None)
    return given if data is None else list.__getitem__(data, 0)


def hidden_places(function: Any) -> list[AttributePlace]:
    """Finds where a function, or the old-style function that it adapts, keeps arrays as attributes."""
    owners = [function]
    old_style = function.__dict__.get('_function')
    if old_style is not None:
        owners.append(old_style)
    return [AttributePlace(owner, name)
            for owner in owners for name, value in owner.__dict__.items()
            if type(value) not in _NO_ARRAYS and is_array(value) and not hasattr(type(owner), name)]
