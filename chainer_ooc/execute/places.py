"""The places where Chainer holds on to an array, each of which can give it up and take it back.

An array that left is replaced by an `Away`, which knows the storage that it lay on and its layout there. Whoever reads
the place reaches `Away.fetch` first: `VariableNode.data`, `FunctionNode.__getattr__` and the retained outputs through
the seam patch, a Variable's data list by its own `__getitem__`. That is promise P1.

    node._data ------> array --.
    Variable._data --> [array]--+--> root            (resident)
    function.mask ---> array --'

    node._ooc -------> Away ---.
    Variable._data --> Vacant --+--> Storage --> far copy   (away)
    function._ooc ---> Away ---'

Places hold nodes and functions weakly: a graph that dies takes its stand-ins with it, and so its far copies.

Source: PyTorch's saved-tensor hooks (pack and unpack), for a framework that has properties instead.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from chainer_ooc.backends.arrays import Layout, is_array, view

if TYPE_CHECKING:
    from chainer_ooc.execute.storage import Storage

Array = np.ndarray[Any, Any]
_Seen = TypeVar('_Seen')

#: Gives the stand-in for an array, or None for one that does not leave.
Stand = Callable[[Array], 'Away | None']
#: Gives the array for a stand-in, or None for one of another storage.
Return = Callable[['Away'], 'Array | None']


class Away:
    """Stands for an array that left."""

    __slots__ = ('layout', 'storage')

    def __init__(self, storage: Storage, layout: Layout):
        self.storage = storage
        self.layout = layout

    def fetch(self) -> Array:
        """Brings the storage back, and with it every place's array; returns the one that this stands for."""
        array: Array = view(self.storage.fetch(), self.layout)
        return array


class Place(abc.ABC):
    """Somewhere that arrays of one storage are held.

    Attributes:
        key: tells it from the other places that are alive.
    """

    __slots__ = ('key',)
    key: tuple[int, str | int]

    @abc.abstractmethod
    def is_alive(self) -> bool:
        """Whether the node or function that it stands for still exists."""

    @abc.abstractmethod
    def retained(self) -> Iterator[Array]:
        """What Chainer itself holds now for backward."""

    def variables(self) -> Iterator[Array]:
        """What a user may see through a Variable."""
        yield from ()

    def is_shown(self) -> bool:
        """Whether there is a Variable that a user may look at."""
        return False

    def arrays(self) -> Iterator[Array]:
        """Everything held; an array that is held twice comes twice."""
        yield from self.retained()
        yield from self.variables()

    @abc.abstractmethod
    def empty(self, away_for: Stand) -> None:
        """Gives up what is retained, as far as `away_for` has a stand-in for it."""

    @abc.abstractmethod
    def fill(self, array_for: Return) -> None:
        """Takes back what was retained, as far as `array_for` has an array for its stand-in."""

    def empty_variable(self, away_for: Stand) -> None:  # noqa: B027, most places have none
        """As `empty`, for what a user may see."""

    def fill_variable(self, array_for: Return) -> None:  # noqa: B027
        """As `fill`, for what a user may see."""


class Vacant(list):  # type: ignore[type-arg]
    """The data list of a Variable whose array is away; reading its element brings the array back.

    A copy of the Variable may share this very list and outlive it, so the list takes the array itself.
    """

    def __init__(self, away: Away):
        super().__init__([None])
        self.away: Away | None = away

    def __getitem__(self, index: Any) -> Any:
        if self.away is not None:
            array = self.away.fetch()
            if self.away is not None:  # a copy's list, which no place fills
                self[0] = array
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.away = None
        super().__setitem__(index, value)


class NodePlace(Place):
    """A variable node's retained array, and the array of its Variable while that lives."""

    __slots__ = ('_node',)

    def __init__(self, node: Any):
        self.key = id(node), ''
        self._node: Callable[[], Any] = weakref.ref(node)

    def is_alive(self) -> bool:
        return self._node() is not None

    def retained(self) -> Iterator[Array]:
        node = self._node()
        if node is not None and node._data is not None:
            yield node._data

    def variables(self) -> Iterator[Array]:
        variable = self._variable()
        if variable is not None and not _is_away(variable._data) and variable._data[0] is not None:
            yield variable._data[0]

    def is_shown(self) -> bool:
        return self._variable() is not None

    def empty(self, away_for: Stand) -> None:
        node = self._node()
        away = None if node is None or node._data is None else away_for(node._data)
        if away is not None:
            node._ooc, node._data = away, None

    def fill(self, array_for: Return) -> None:
        node = self._node()
        array = None if node is None or node._ooc is None else array_for(node._ooc)
        if array is not None:
            node._data, node._ooc = array, None

    def empty_variable(self, away_for: Stand) -> None:
        for array in self.variables():
            away = away_for(array)
            if away is not None:
                self._variable()._data = Vacant(away)

    def fill_variable(self, array_for: Return) -> None:
        variable = self._variable()
        array = None if variable is None or not _is_away(variable._data) else array_for(variable._data.away)
        if array is not None:
            variable._data[0] = array  # for copies of the Variable that share the list
            variable._data = [array]

    def _variable(self) -> Any:
        node = self._node()
        return None if node is None else node.get_variable_or_none()


def _is_away(data: Any) -> bool:
    return isinstance(data, Vacant) and data.away is not None


class OutputPlace(Place):
    """One of the output arrays that a function retains for itself, beside those of the output nodes."""

    __slots__ = ('_function', '_index')

    def __init__(self, function: Any, index: int):
        self.key = id(function), index
        self._function = weakref.ref(function)
        self._index = index

    def is_alive(self) -> bool:
        return self._function() is not None

    def retained(self) -> Iterator[Array]:
        function = self._function()
        if function is not None and function._retained_output_data is not None:
            array = function._retained_output_data[self._index]
            if array is not None:
                yield array

    def empty(self, away_for: Stand) -> None:
        for array in self.arrays():
            away = away_for(array)
            if away is not None:
                function = self._function()
                function.__dict__.setdefault('_ooc', {})[self] = away
                self._put(function, None)

    def fill(self, array_for: Return) -> None:
        function = self._function()
        if function is None or self not in (function._ooc or {}):
            return
        array = array_for(function._ooc[self])
        if array is not None:
            self._put(function, array)
            del function._ooc[self]

    def _put(self, function: Any, array: Array | None) -> None:
        retained = list(function._retained_output_data)
        retained[self._index] = array
        function._retained_output_data = tuple(retained)


class AttributePlace(Place):
    """An array that a function hides on itself (P5).

    The attribute is deleted while the array is away, so that reading it reaches `__getattr__`; one that the class
    itself has too would be read from there instead, and is left alone (see `hidden_places`).
    """

    __slots__ = ('_name', '_owner')

    def __init__(self, owner: Any, name: str):
        self.key = id(owner), name
        self._owner = weakref.ref(owner)
        self._name = name

    def is_alive(self) -> bool:
        return self._owner() is not None

    def retained(self) -> Iterator[Array]:
        owner = self._owner()
        array = None if owner is None else owner.__dict__.get(self._name)
        if array is not None:
            yield array

    def source(self) -> tuple[Any, str]:
        """The function that has the attribute, and its name."""
        return self._owner(), self._name

    def nbytes(self) -> int:
        """Size of the array."""
        return sum(array.nbytes for array in self.arrays())

    def look(self, at: Callable[[Array], _Seen]) -> _Seen:
        """Calls `at` with the array and keeps no reference to it."""
        return at(next(self.arrays()))

    def empty(self, away_for: Stand) -> None:
        for array in self.arrays():
            away = away_for(array)
            if away is not None:
                attributes = vars(self._owner())
                attributes.setdefault('_ooc', {})[self._name] = away
                del attributes[self._name]

    def fill(self, array_for: Return) -> None:
        owner = self._owner()
        if owner is None or self._name not in (owner._ooc or {}):
            return
        array = array_for(owner._ooc[self._name])
        if array is not None:
            del owner._ooc[self._name]
            if self._name not in owner.__dict__:
                owner.__dict__[self._name] = array


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
            if is_array(value) and not hasattr(type(owner), name)]
