"""Whether what runs is what a known graph was recorded to be, found without a storage for each map.

A call is the recorded one if its function has the same name, each input comes from where it came from (an output of
which call, which batch, a known parameter), and inputs and outputs have the same forms. A step is if its call is (P8).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chainer_ooc.backends import arrays
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.recording.recorder import forms
from chainer_ooc.execute.recording.registration import name_of
from chainer_ooc.execute.storage.slots import array_in_slot
from chainer_ooc.trace import Call, Trace


class Calls:
    """The functions of an iteration's calls; their graph alone keeps them alive.

    Attributes:
        functions: weak references to them, in order.
    """

    def __init__(self) -> None:
        self.functions: list[weakref.ref[Any]] = []
        self._number_of: dict[int, int] = {}
        self._first = 0  # those before it are dead

    def add(self, function: Any) -> None:
        """Adds the function of the next call."""
        number = len(self.functions)
        self.functions.append(weakref.ref(function))  # first: an interrupt may come in between
        self._number_of[id(function)] = number

    def number(self, function: Any) -> int:
        """The number of a function's call; -1 if it is none of these."""
        number = self._number_of.get(id(function), -1)
        return number if number >= 0 and self.functions[number]() is function else -1

    def is_alive(self) -> bool:
        """Whether any of the functions is alive."""
        while self._first < len(self.functions):
            if self.functions[self._first]() is not None:
                return True
            self._first += 1
        return False

    def is_read_by(self, inputs: Sequence[Any]) -> bool:
        """Whether any of a call's inputs was made by one of these."""
        nodes = [getattr(each, '_node', None) for each in inputs]
        return any(each is not None and each._creator_node is not None and self.number(each._creator_node) >= 0
                   for each in nodes)

    def alive(self) -> Iterator[tuple[int, Any]]:
        """Those that are alive and in their graph, with their numbers."""
        for number, ref in enumerate(self.functions):
            function = ref()
            if function is not None and function.inputs is not None:
                yield number, function


class Comparison:
    """Compares an iteration with the recording of a graph.

    Attributes:
        batches: what its calls were given from outside, as a reference to the root and the map, by the root's id.
    """

    def __init__(self, parameters: Parameters, calls: Calls):
        self._calls = calls
        self._parameters = parameters
        self.batches: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._seen: set[int] = set()  # of these
        self._new: dict[int, tuple[weakref.ref[Any], int]] = {}  # of these, what the call has that is looked at

    def is_call(self, function: Any, inputs: Sequence[Any], trace: Trace, position: int) -> bool:
        """Whether what is about to run is the call at a position of a recording that begins like that of the graph."""
        call = trace.calls[position]
        if self._new:
            self._new = {}
        is_call = (call.label == name_of(function) and len(call.inputs) == len(inputs)
                   and all(map(self._is_known, inputs, call.inputs, itertools.repeat(trace)))
                   and forms([getattr(each, '_node', each) for each in inputs]) == call.arguments)
        if is_call and self._new:  # not before, or what another call would have been given were known from then on
            self.batches.update(self._new)
            self._seen.update(map_id for _, map_id in self._new.values())
        return is_call

    def _is_known(self, given: Any, map_id: int, trace: Trace) -> bool:
        """Whether an input is the map that it was in the recording; -1 stands for what is none, such as parameters."""
        node = getattr(given, '_node', None)
        creator = None if node is None else node._creator_node
        if creator is None:
            return self._is_outside(given, map_id, trace)
        number = self._calls.number(creator)
        if number < 0:
            return False
        outputs = trace.calls[number].outputs
        for ref, each in zip(creator.outputs, outputs, strict=False):  # noqa: SIM110  a generator is two functions more
            if ref() is node and each == map_id:
                return True
        return False

    def _is_outside(self, given: Any, map_id: int, trace: Trace) -> bool:
        """The same for what no function has made."""
        if hasattr(given, 'update_rule'):
            return map_id == -1 and self._parameters.number_of(given) is not None
        array = array_in_slot(given)
        if map_id == -1 or array is None:
            return array is not None
        root = arrays.root_of(array)
        if root is None:  # memory that is not NumPy's, such as a file's, where there was NumPy's own
            return False
        known = self._new.get(id(root)) or self.batches.get(id(root))
        if known is not None and known[0]() is root:
            return known[1] == map_id
        is_new = map_id not in self._seen and all(map_id != each for _, each in self._new.values())
        self._new[id(root)] = weakref.ref(root), map_id
        return is_new and trace.maps[map_id].producer is None


def gives(outputs: Sequence[Any], call: Call) -> bool:
    """Whether a call has given what it did in the recording."""
    return len(outputs) == len(call.outputs) and call.results == forms([each._node for each in outputs])


@dataclass(frozen=True)
class Made:
    """An output of a function, whose Variable may be gone."""

    node: Any
    _data: list[Any]


def given_to(function: Any) -> list[Any]:
    """The Variables that a function was given, or their arrays as far as they are retained."""
    found = [(node, node.get_variable_or_none()) for node in function.inputs]
    return [node._data if variable is None else variable for node, variable in found]


def made_by(function: Any) -> list[Made]:
    """The outputs of a function that are alive."""
    kept = dict(enumerate(function._retained_output_data or ()))
    made = []
    for rank, node in enumerate(ref() for ref in function.outputs):
        if node is not None:
            variable = node.get_variable_or_none()
            array = node._data if variable is None else array_in_slot(variable)
            made.append(Made(node, [kept.get(rank) if array is None else array]))
    return made
