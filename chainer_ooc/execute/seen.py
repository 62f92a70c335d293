"""Which storages a function touches: its inputs, outputs, what it retains and what it hides."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

from chainer_ooc.backends import arrays
from chainer_ooc.execute.account import find
from chainer_ooc.execute.expected import Expected, Used
from chainer_ooc.execute.places import AttributePlace, OutputPlace, array_of, hidden_places, owners_of
from chainer_ooc.execute.residency import Residency
from chainer_ooc.execute.states import State
from chainer_ooc.execute.storage import Storage
from chainer_ooc.problem import Standing
from chainer_ooc.record.recorder import Recorder


@dataclass(frozen=True)
class Beside:
    """Bytes that live beside feature maps.

    Attributes:
        steady_bytes: of parameters and the optimizer's state, which stay from one iteration to the next.
        gradient_bytes: of the gradients of those that the graph uses, or of all while that is not known.
        others_bytes: of the gradients of others, which stay as they are in backward.
        counted_bytes: of these, what is counted elsewhere too: some were allocated since recording began.
        with_gradients: the numbers of those that have gradients which count here.
    """

    steady_bytes: int = 0
    gradient_bytes: int = 0
    others_bytes: int = 0
    counted_bytes: int = 0
    with_gradients: frozenset[int] = frozenset()

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return self.steady_bytes + self.gradient_bytes + self.others_bytes


class Parameters:
    """The parameters that functions were given: what stands in near memory through an iteration."""

    def __init__(self) -> None:
        self._parameters: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._numbers = itertools.count()
        self._roots: dict[int, weakref.ref[Any]] = {}
        self._expected = Expected()

    def add(self, parameter: Any) -> int:
        """Remembers a parameter; its array, and any view of it, is no feature map (P5).

        Returns its number, which no other parameter ever gets.
        """
        ref, number = self._parameters.get(id(parameter), (None, 0))
        if ref is None or ref() is not parameter:
            number = next(self._numbers)
            self._parameters[id(parameter)] = weakref.ref(parameter), number
        root = arrays.root_of(array_of(parameter))
        if root is not None and not self.own(root):
            self._roots[id(root)] = weakref.ref(root)
        return number

    def number_of(self, parameter: Any) -> int | None:
        """The number of a parameter; None if no function was given it yet."""
        ref, number = self._parameters.get(id(parameter), (None, None))
        return number if ref is not None and ref() is parameter else None

    def own(self, root: Any) -> bool:
        """Whether what owns a block owns a parameter's."""
        ref = self._roots.get(id(root))
        return ref is not None and ref() is root

    def beside(self, is_counted: Callable[[Any], bool] | None = None, own: Container[int] | None = None) -> Beside:
        """Bytes of the arrays, of the gradients and of the optimizer's state.

        Args:
            is_counted: whether a block, by its root, is counted elsewhere and so, but for gradients of others, does not
                count here; None if no block is.
            own: the numbers of those that the graph uses, or None while that is not known.
        """
        steady_bytes = own_bytes = others_bytes = counted_bytes = 0
        with_gradients = []
        self._roots = {key: ref for key, ref in self._roots.items() if ref() is not None}
        for number, parameter in self._alive():
            state = getattr(parameter.update_rule, 'state', None) or {}
            steady_bytes += sum(_nbytes(each, is_counted) for each in (array_of(parameter), *state.values()))
            is_own = own is None or number in own
            nbytes = _nbytes(parameter.grad, is_counted if is_own else None)
            if nbytes:
                with_gradients.append(number)
            if is_own:
                own_bytes += nbytes
            else:
                others_bytes += nbytes
                counted_bytes += nbytes - _nbytes(parameter.grad, is_counted)
        return Beside(steady_bytes, own_bytes, others_bytes, counted_bytes, frozenset(with_gradients))

    def new_bytes(self, is_counted: Callable[[Any], bool]) -> int:
        """Bytes of the arrays that are counted elsewhere, since they were made meanwhile."""
        found = (array_of(each) for _, each in self._alive())
        return sum(each.nbytes for each in found if each is not None and is_counted(arrays.root_of(each)))

    def standing(self, used: Used | None, left_bytes: int, adds_up: bool = True) -> Standing:
        """What lives through an iteration beside its feature maps, as far as it can be told when it begins.

        Gradients of other parameters than its own stand in backward for certain if they did the last time.

        Args:
            used: what the graph did with parameters when it ran last, or None if that is not known.
            left_bytes: what lives beside them.
            adds_up: sums with gradients that stand were recorded.
        """
        beside, certain_bytes, forward_bytes, backward_bytes, most_bytes = self.beside(), 0, 0, 0, 0
        for number, parameter in self._alive():
            gradient_bytes = _nbytes(parameter.grad, None)
            if used is None or number in used.own:
                if self._expected.is_unused(parameter):
                    backward_bytes += gradient_bytes
                    most_bytes = max(most_bytes, gradient_bytes)
            elif gradient_bytes and number in used.beside:
                certain_bytes += gradient_bytes
            elif gradient_bytes and number not in used.cleared:
                backward_bytes += gradient_bytes
            elif number in used.beside:
                forward_bytes += _nbytes(array_of(parameter), None)
        forward_bytes += self._expected.nbytes(each for _, each in self._alive())
        backward_bytes += 0 if adds_up else most_bytes
        steady_bytes = beside.steady_bytes + left_bytes
        return Standing(steady_bytes + beside.gradient_bytes, steady_bytes + certain_bytes, left_bytes,
                        forward_bytes, forward_bytes + backward_bytes)

    def gradients(self, own: Container[int]) -> dict[int, Any]:
        """The gradients of those with these numbers, where there are any."""
        return {number: each.grad for number, each in self._alive() if number in own and each.grad is not None}

    def evaluate(self, inputs: Sequence[Any]) -> None:
        """A function was given these without backprop: parameters among them may be trained later."""
        self._expected.see(inputs)

    def begin_backward(self) -> None:
        """A backward pass begins."""
        self._expected.begin_backward(each for _, each in self._alive())

    def _alive(self) -> list[tuple[int, Any]]:
        """Their numbers, and themselves."""
        alive = {key: (number, each) for key, (ref, number) in self._parameters.items() if (each := ref()) is not None}
        self._parameters = {key: self._parameters[key] for key in alive}
        return list(alive.values())


#: Ids of a call's inputs, outputs and hidden arrays; -1 for what cannot be moved.
Ids = tuple[list[int], list[int], list[int]]


class Register:
    """Gives a feature map's id to each storage that the calls of one iteration touch.

    Args:
        memory: where the storages are.
        parameters: which are no feature maps.
        min_bytes: smaller arrays that functions hide stay with them unseen.

    Attributes:
        recorder: takes the rows of the maps.
        token: what tells that a storage is a feature map of the iteration.
        storages: of the feature maps, by id.
        own: numbers of the parameters that its calls were given.
    """

    def __init__(self, memory: Residency, recorder: Recorder, parameters: Parameters, token: object, min_bytes: int):
        self.storages: list[weakref.ref[Storage]] = []
        self.own: set[int] = set()
        self.recorder = recorder
        self.token = token
        self._memory = memory
        self._parameters = parameters
        self._min_bytes = min_bytes

    def storage(self, map_id: int) -> Storage | None:
        """The storage of a feature map, if it is still known."""
        return self.storages[map_id]() if 0 <= map_id < len(self.storages) else None

    def left_behind(self) -> list[Storage]:
        """What is still in near memory when the iteration is over, and does not leave."""
        found = (each() for each in self.storages)
        return [each for each in found
                if each is not None and each.token is self.token and not can_leave(each, self._min_bytes)]

    def call(self, function: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Ids, list[Storage]]:
        """Takes note of all that a call has touched; returns the ids, and the storages that its backward may read."""
        producer = len(self.recorder.calls)
        given = [self._given(each, node) for each, node in zip(inputs, function.inputs, strict=True)]
        made = [self._shown(array_of(each), each.node, producer) for each in outputs]
        places = hidden_places(function)
        hidden = [self._hidden(each, producer) for each in places if self._is_map(each)]
        kept = retained(function, places)
        for storage in kept:
            storage.retain()
            if storage.token is self.token:
                self.recorder.maps[storage.map].retained = True
        return (given, made, hidden), kept

    def _given(self, given: Any, node: Any) -> int:
        import chainer

        if isinstance(given, chainer.Parameter):
            self.own.add(self._parameters.add(given))
            return -1
        return self._shown(array_of(given), node, None)

    def _shown(self, array: Any, node: Any, producer: int | None) -> int:
        """The map under the array of a node and its Variable."""
        storage = self._map(array, producer)
        if storage is None:
            return -1
        storage.add_node(node)
        return storage.map

    def _hidden(self, place: AttributePlace, producer: int) -> int:
        storage = self._map(place.get(), producer, hidden=True)
        if storage is None:
            return -1
        storage.add_places(place)
        return storage.map

    def _map(self, array: Any, producer: int | None, hidden: bool = False) -> Storage | None:
        """The storage under an array that a call has used, which has an id from now on."""
        root = arrays.root_of(array)
        if root is None or self._parameters.own(root):
            return None
        recorder, from_outside = self.recorder, producer is None
        new_id = len(recorder.maps)
        storage = self._memory.register(array, root, self.token, new_id, from_outside)
        if storage is None:
            return None
        if storage.token is not self.token:
            storage.assign(self.token, new_id, from_outside)
            if storage.counted_bytes < storage.nbytes:
                storage.count_as(int(array.nbytes))
            self._memory.count_again(storage)
        is_new = storage.map == new_id
        if is_new:
            recorder.new_map(array, storage.counted_bytes, producer, hidden)
            self.storages.append(weakref.ref(storage))
        if storage.counted_bytes < storage.nbytes:
            self._count_part(storage, array, is_new)
        storage.use(recorder.now)
        storage.memory.touch(storage)
        return storage

    def _count_part(self, storage: Storage, array: Any, is_new: bool) -> None:
        """One more part of a block from outside, of which only the parts that are used count."""
        if self.recorder.is_other_part(storage.map, arrays.layout_of(array, storage.root())) and not is_new:
            storage.count_as(min(storage.nbytes, storage.counted_bytes + int(array.nbytes)))
            self._memory.count_again(storage)
            self.recorder.maps[storage.map].nbytes = storage.counted_bytes

    def _is_map(self, place: AttributePlace) -> bool:
        """Whether a function hides an array that nobody else has: persistent values and constants are no maps."""
        array: Any = place.get()
        if array.nbytes < max(self._min_bytes, 1):
            return False
        if find(array) is not None:
            return True
        root = arrays.root_of(array)
        if root is None:
            return False
        probe = Storage(self._memory, root)
        probe.add_places(place)
        del root, array
        return not probe.is_held_elsewhere()


def can_leave(storage: Storage, min_bytes: int) -> bool:
    """Whether what an iteration left behind can be moved out of the way."""
    return (storage.state is not State.RESIDENT or storage.root() is None
            or (storage.nbytes >= max(min_bytes, 1) and storage.is_retained() and not storage.is_held_elsewhere()))


def name_of(function: Any) -> str:
    """What a function is called: its class, since a label may have a number in it that changes (``_ * 0.25``)."""
    name: str = function._impl_name
    return name


def makes_graphs() -> bool:
    """Whether functions that are applied now, as those of a step of backward, are part of a graph."""
    import chainer

    return bool(chainer.config.enable_backprop)


def retained(function: Any, hidden: Sequence[AttributePlace] | None = None) -> list[Storage]:
    """The storages that a function's backward may read, each once, wherever they are.

    Args:
        function: the function.
        hidden: where it hides arrays, if that is known already.
    """
    found: dict[Storage | None, None] = {}
    for index in function._input_indexes_to_retain or ():
        node = function.inputs[index]
        found[find(node._data) if node._ooc is None else node._ooc.storage] = None
    for index, array in enumerate(function._retained_output_data or ()):
        storage = find(array)
        if storage is not None:
            storage.add_places(OutputPlace(function, index))
        found[storage] = None
    for owner in owners_of(function):
        for away in (owner._ooc or {}).values():
            found[away.storage] = None
    for place in hidden_places(function) if hidden is None else hidden:
        found[find(place.get())] = None
    return [each for each in found if each is not None]


def _nbytes(array: Any, is_counted: Callable[[Any], bool] | None) -> int:
    root = None if is_counted is None else arrays.root_of(array)
    return 0 if root is not None and is_counted is not None and is_counted(root) else getattr(array, 'nbytes', 0) or 0
