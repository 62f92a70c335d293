"""Which storages a function touches: its inputs, outputs, what it retains and what it hides."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from chainer_ooc.backends import arrays
from chainer_ooc.execute.places import AttributePlace, Away, NodePlace, OutputPlace, array_of, hidden_places
from chainer_ooc.execute.residency import Residency
from chainer_ooc.execute.storage import Storage
from chainer_ooc.record.recorder import Recorder


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

    def standing_bytes(self) -> tuple[int, int]:
        """Bytes of the arrays with the optimizer's state, and of the gradients."""
        steady = gradients = 0
        alive = {key: parameter for key, ref in self._parameters.items() if (parameter := ref()) is not None}
        self._parameters = {key: self._parameters[key] for key in alive}
        for parameter in alive.values():
            steady += _nbytes(array_of(parameter))
            gradients += _nbytes(parameter.grad)
            state = getattr(parameter.update_rule, 'state', None) or {}
            steady += sum(_nbytes(value) for value in state.values())
        return steady, gradients


def see_call(
        residency: Residency, recorder: Recorder, parameters: Parameters, token: object, function: Any,
        inputs: Sequence[Any], outputs: Sequence[Any], min_bytes: int) -> tuple[list[int], list[int], list[int]]:
    """Registers everything that a call touched.

    Returns:
        The ids of its inputs, outputs and hidden arrays; -1 for what cannot be moved.
    """
    position = len(recorder.calls)

    def see(array: Any, place: Any, producer: int | None, hidden: bool = False) -> int:
        if array is None or parameters.own(array):
            return -1
        storage = residency.register(array, token, len(recorder.maps), from_outside=producer is None)
        if storage is None:
            return -1
        if storage.token is not token or storage.map == len(recorder.maps):
            storage.token, storage.pending_uses = token, 0
            storage.map = recorder.new_map(array, storage.counted_bytes, producer, hidden)
        storage.touched = position
        storage.add_place(place)
        return storage.map

    inside = []
    for given, node in zip(inputs, function.inputs, strict=True):
        is_parameter = _is_parameter(given)
        if is_parameter:
            parameters.add(given)
        inside.append(-1 if is_parameter else see(array_of(given), NodePlace(node), None))
    outside = [see(array_of(each), NodePlace(each.node), position) for each in outputs]
    concealed = _see_hidden(residency, see, function, position, min_bytes)
    for storage in retained(residency, function):
        storage.pending_uses += 1
        if storage.token is token:
            recorder.maps[storage.map].retained = True
    return inside, outside, concealed


def name_of(function: Any) -> str:
    """What a function is called: its class, since a label may have a number in it that changes (``_ * 0.25``)."""
    name: str = function._impl_name
    return name


def retained(residency: Residency, function: Any) -> list[Storage]:
    """The storages that a function's backward may read, each once, wherever they are."""
    found = dict.fromkeys(_retained(residency, function))
    found.pop(None, None)
    return [each for each in found if each is not None]


def _retained(residency: Residency, function: Any) -> Iterator[Storage | None]:
    for index in function._input_indexes_to_retain or ():
        node = function.inputs[index]
        yield node._ooc.storage if isinstance(node._ooc, Away) else residency.find(node._data)
    for index, array in enumerate(function._retained_output_data or ()):
        storage = residency.find(array)
        if storage is not None:
            storage.add_place(OutputPlace(function, index))
        yield storage
    owners = [function, function.__dict__.get('_function')]
    for owner in owners:
        yield from (away.storage for away in (getattr(owner, '_ooc', None) or {}).values())
    for place in hidden_places(function):
        for array in place.arrays():
            yield residency.find(array)


def _see_hidden(residency: Residency, see: Any, function: Any, position: int, min_bytes: int) -> list[int]:
    """Registers the arrays that a function hides and nobody else has: persistent values and constants are no maps."""
    ids = []
    for place in hidden_places(function):
        if place.nbytes() < max(min_bytes, 1):
            continue
        if place.look(residency.find) is not None or _is_only_holder(residency, place):
            ids.append(place.look(functools.partial(see, place=place, producer=position, hidden=True)))
    return ids


def _is_only_holder(residency: Residency, place: AttributePlace) -> bool:
    root = place.look(arrays.root_of)
    if root is None:
        return False
    probe = Storage(residency, root)
    probe.add_place(place)
    del root
    return not probe.held_elsewhere()


def _is_parameter(given: Any) -> bool:
    import chainer

    return isinstance(given, chainer.Parameter)


def _nbytes(array: Any) -> int:
    return int(getattr(array, 'nbytes', 0) or 0)
