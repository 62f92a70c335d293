"""Which storages a function touches: its inputs, outputs, what it retains and what it hides."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chainer_ooc.backends import arrays
from chainer_ooc.execute.account import find
from chainer_ooc.execute.places import AttributePlace, OutputPlace, array_of, hidden_places, owners_of
from chainer_ooc.execute.residency import Residency
from chainer_ooc.execute.storage import Storage
from chainer_ooc.record.recorder import Recorder


@dataclass(frozen=True)
class Beside:
    """Bytes that parameters take beside feature maps."""

    parameter_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0

    @property
    def steady_bytes(self) -> int:
        """Those that stay from one iteration to the next."""
        return self.parameter_bytes + self.optimizer_bytes

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


class Parameters:
    """The parameters that functions were given: what stands in near memory through an iteration."""

    def __init__(self) -> None:
        self._parameters: dict[int, weakref.ref[Any]] = {}
        self._roots: dict[int, weakref.ref[Any]] = {}

    def add(self, parameter: Any) -> None:
        """Remembers a parameter; its array, and any view of it, is no feature map (P5)."""
        self._parameters[id(parameter)] = weakref.ref(parameter)
        root = arrays.root_of(array_of(parameter))
        if root is not None and not self.own(root):
            self._roots[id(root)] = weakref.ref(root)

    def own(self, array: Any) -> bool:
        """Whether an array lies on a parameter's storage."""
        root = arrays.root_of(array)
        ref = self._roots.get(id(root))
        return ref is not None and root is not None and ref() is root

    def beside(self) -> Beside:
        """Bytes of the arrays, of the gradients and of the optimizer's state."""
        parameter_bytes = gradient_bytes = optimizer_bytes = 0
        alive = {key: parameter for key, ref in self._parameters.items() if (parameter := ref()) is not None}
        self._parameters = {key: self._parameters[key] for key in alive}
        for parameter in alive.values():
            parameter_bytes += _nbytes(array_of(parameter))
            gradient_bytes += _nbytes(parameter.grad)
            state = getattr(parameter.update_rule, 'state', None) or {}
            optimizer_bytes += sum(_nbytes(value) for value in state.values())
        return Beside(parameter_bytes, gradient_bytes, optimizer_bytes)


def see_call(
        memory: Residency, recorder: Recorder, parameters: Parameters, token: object, function: Any,
        inputs: Sequence[Any], outputs: Sequence[Any],
        min_bytes: int) -> tuple[tuple[list[int], list[int], list[int]], list[Storage], dict[int, Storage]]:
    """Registers everything that a call touched.

    Returns:
        The ids of its inputs, outputs and hidden arrays, -1 for what cannot be moved; what its backward may read; and
        what it touched, by id.
    """
    position, touched = len(recorder.calls), {}

    def see(array: Any, node: Any, producer: int | None, place: AttributePlace | None = None) -> int:
        if array is None or parameters.own(array):
            return -1
        storage = memory.register(array, token, len(recorder.maps), from_outside=producer is None)
        if storage is None:
            return -1
        if storage.token is not token:
            storage.assign(token, len(recorder.maps), from_outside=producer is None)
            if storage.counted_bytes < storage.nbytes:
                storage.count_as(int(array.nbytes))
            memory.count_again(storage)
        is_new = storage.map == len(recorder.maps)
        if is_new:
            recorder.new_map(array, storage.counted_bytes, producer, place is not None)
        if storage.counted_bytes < storage.nbytes and recorder.is_other_part(
                storage.map, arrays.layout_of(array, storage.root())) and not is_new:
            storage.count_as(min(storage.nbytes, storage.counted_bytes + int(array.nbytes)))
            memory.count_again(storage)
            recorder.maps[storage.map].nbytes = storage.counted_bytes
        storage.use(position)
        if place is None:
            storage.add_node(node)
        else:
            storage.add_places(place)
        storage.memory.touch(storage)
        touched[storage.map] = storage
        return storage.map

    inside = []
    for given, node in zip(inputs, function.inputs, strict=True):
        is_parameter = _is_parameter(given)
        if is_parameter:
            parameters.add(given)
        inside.append(-1 if is_parameter else see(array_of(given), node, None))
    outside = [see(array_of(each), each.node, position) for each in outputs]
    concealed = [see(place.get(), None, position, place) for place in hidden_places(function)
                 if _is_hidden_map(memory, place, min_bytes)]
    kept = retained(function)
    for storage in kept:
        storage.retain()
        if storage.token is token:
            recorder.maps[storage.map].retained = True
    return (inside, outside, concealed), kept, touched


def name_of(function: Any) -> str:
    """What a function is called: its class, since a label may have a number in it that changes (``_ * 0.25``)."""
    name: str = function._impl_name
    return name


def retained(function: Any) -> list[Storage]:
    """The storages that a function's backward may read, each once, wherever they are."""
    found = dict.fromkeys(_retained(function))
    found.pop(None, None)
    return [each for each in found if each is not None]


def _retained(function: Any) -> Iterator[Storage | None]:
    for index in function._input_indexes_to_retain or ():
        node = function.inputs[index]
        yield find(node._data) if node._ooc is None else node._ooc.storage
    for index, array in enumerate(function._retained_output_data or ()):
        storage = find(array)
        if storage is not None:
            storage.add_places(OutputPlace(function, index))
        yield storage
    for owner in owners_of(function):
        yield from (away.storage for away in (owner._ooc or {}).values())
    for place in hidden_places(function):
        yield find(place.get())


def _is_hidden_map(memory: Residency, place: AttributePlace, min_bytes: int) -> bool:
    """Whether a function hides an array that nobody else has: persistent values and constants are no maps."""
    array: Any = place.get()
    if array.nbytes < max(min_bytes, 1):
        return False
    if find(array) is not None:
        return True
    root = arrays.root_of(array)
    if root is None:
        return False
    probe = Storage(memory, root, root.nbytes)
    probe.add_places(place)
    del root, array
    return not probe.is_held_elsewhere()


def _is_parameter(given: Any) -> bool:
    import chainer

    return isinstance(given, chainer.Parameter)


def _nbytes(array: Any) -> int:
    return int(getattr(array, 'nbytes', 0) or 0)
