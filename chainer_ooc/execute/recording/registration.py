"""Which storages a function touches: its inputs, outputs, what it retains and what it hides."""

from __future__ import annotations

import weakref
from collections.abc import Sequence, Set
from typing import Any

from chainer_ooc.backends import arrays
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.recording.recorder import Recorder
from chainer_ooc.execute.storage.account import find
from chainer_ooc.execute.storage.slots import AttributeSlot, OutputSlot, array_of, hidden_slots, owners_of
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage, Token
from chainer_ooc.trace import Call

#: Stands for the storage of a map that has none.
NO_STORAGE: weakref.ref[Storage] = weakref.ref(type('Gone', (), {})())

#: Ids of a call's inputs, outputs and hidden arrays; -1 for what cannot be moved.
Ids = tuple[list[int], list[int], list[int]]


class Register:
    """Gives a feature map's id to each storage that the calls of one iteration touch.

    Arrays that functions hide are no maps if they are smaller than `min_bytes`.

    Attributes:
        recorder: takes the rows of the maps.
        token: marks a storage as a feature map of the iteration.
        storages: of the feature maps, by id.
        own: numbers of the parameters that its calls were given.
        retained: for each call, the maps that its step may read, as far as they have storages.
        written: maps that the program may have written to when the graph in hand ran before.
    """

    def __init__(self, memory: Residency, recorder: Recorder, parameters: Parameters, token: Token, min_bytes: int):
        self.storages: list[weakref.ref[Storage]] = []
        self.own: set[int] = set()
        self.written: Set[int] = frozenset()
        self.retained: list[list[int]] = []
        self.recorder = recorder
        self.token = token
        self._memory = memory
        self._parameters = parameters
        self._min_bytes = min_bytes
        self._counts_alone = False  # some maps may have no storage

    def storage(self, map_id: int) -> Storage | None:
        """The storage of a feature map, if it is still known."""
        return self.storages[map_id]() if 0 <= map_id < len(self.storages) else None

    def note_holders(self, held: Sequence[Storage]) -> None:
        """Notes what the program holds when forward is over: `held` and more, and what its Variables show."""
        for each in held:
            if each.token is self.token:
                self.recorder.maps[each.map].last_held = len(self.recorder.calls) - 1
        for row, ref in zip(self.recorder.maps, self.storages, strict=True):
            storage = ref()
            row.foreign = storage is not None and is_foreign(storage)
            row.shown = storage is not None and storage.is_shown()

    def end_backward(self) -> None:
        """While recorded, notes what was evicted, and has reads from the graph noticed, of what no Variable shows.

        Maps that were evicted, and are alive, count as if they had stayed: with a larger budget they do, so that a
        floor without them would not hold.
        """
        if not self.recorder.measures:
            return
        for row, ref in zip(self.recorder.maps, self.storages, strict=True):
            if (storage := ref()) is None:
                continue
            if storage.state in (State.LEAVING, State.AWAY, State.ARRIVING):
                row.last_alive = None
            if not storage.is_shown():
                storage.notice_reads()

    def gone(self, token: object, map_id: int) -> None:
        """Notes that a map's block went, if it is one of these."""
        if token is self.token and map_id < len(self.recorder.maps):
            self.recorder.gone(map_id)

    def call(self, function: Any, inputs: Sequence[Any], outputs: Sequence[Any], producer: int
             ) -> tuple[Ids, list[Storage]]:
        """Registers all that a call has touched; returns the ids, and the storages that its backward may read."""
        given = [self._given(each, node) for each, node in zip(inputs, function.inputs, strict=True)]
        made = [self._shown(array_of(each), each.node, producer) for each in outputs]
        slots = hidden_slots(function)
        hidden = [self._hidden(each, producer) for each in slots if self._is_map(each)]
        kept = retained(function, slots)
        for storage in kept:
            storage.retain()
            if storage.token is self.token:
                self.recorder.maps[storage.map].retained = True
        self.retained[producer:producer + 1] = [[each.map for each in kept if each.token is self.token]]
        return (given, made, hidden), kept

    def count(self, call: Call, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
        """Counts what a known call has made without storages; False if an output is not the map that it was then.

        What a storage knows already it has to know of all arrays on it: that is no case for this.
        """
        self._counts_alone = True
        for each in inputs:
            if hasattr(each, 'update_rule'):
                self.own.add(self._parameters.add(each))  # its array may be another one now
        for each, map_id in zip(outputs, call.outputs, strict=True):
            array = each._data[0]
            root = arrays.root_of(array)
            if root is None or self._parameters.own(root):
                found = -1
            elif map_id < 0:
                return False
            elif map_id < len(self.recorder.maps):
                found = self._memory.map_alone(root, self.token)
            elif self._memory.count_alone(root, self.token, map_id):
                found = self.recorder.new_map(array, int(root.nbytes), call.index, False)
                self.storages.append(NO_STORAGE)
            else:
                return False
            if found != map_id:
                return False
        self.retained.append([])
        return True

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
        if self.recorder.measures or storage.map in self.written:
            storage.notice_reads()  # as under a plan, which may rely on the bytes from now on; copies would prevent it
        return storage.map

    def _hidden(self, slot: AttributeSlot, producer: int) -> int:
        storage = self._map(slot.get(), producer, hidden=True)
        if storage is None:
            return -1
        storage.add_slots(slot)
        return storage.map

    def _map(self, array: Any, producer: int | None, hidden: bool = False) -> Storage | None:
        """The storage under an array that a call has used, which has an id from now on."""
        root = arrays.root_of(array)
        if root is None or self._parameters.own(root):
            return None
        recorder, from_outside = self.recorder, producer is None
        new_id = map_id = len(recorder.maps)
        if self._counts_alone and (known := self._memory.map_alone(root, self.token)) >= 0:
            map_id, from_outside = known, False
        storage = self._memory.register(array, root, self.token, map_id, from_outside)
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
        elif map_id != new_id:
            self.storages[map_id] = weakref.ref(storage)
        if storage.counted_bytes < storage.nbytes:
            self._count_part(storage, array, is_new)
        storage.use(recorder.now)
        storage.memory.touch(storage)
        return storage

    def _count_part(self, storage: Storage, array: Any, is_new: bool) -> None:
        """Counts one more part of a block from outside, of which only the parts that are used count."""
        if self.recorder.add_part(storage.map, arrays.layout_of(array, storage.root())) and not is_new:
            storage.count_as(min(storage.nbytes, storage.counted_bytes + int(array.nbytes)))
            self._memory.count_again(storage)
            self.recorder.maps[storage.map].nbytes = storage.counted_bytes

    def _is_map(self, slot: AttributeSlot) -> bool:
        """Whether a function hides an array that nothing else has: persistent values and constants are no maps.

        Nor are they if a call of an earlier iteration was given them, such as a layer's running statistics.
        """
        array: Any = slot.get()
        if array.nbytes < max(self._min_bytes, 1):
            return False
        storage, root = find(array), arrays.root_of(array)
        if storage is not None and (storage.token is self.token or storage.state is not State.RESIDENT):
            return True
        if root is None:
            return False
        storage = storage or Storage(self._memory, root)
        storage.add_slots(slot)
        del root, array
        return not storage.is_held_elsewhere()


def is_foreign(storage: Storage) -> bool:
    """Whether the program holds it in near memory."""
    return storage.state is State.RESIDENT and storage.root() is not None and storage.is_held_elsewhere()


def name_of(function: Any) -> str:
    """A function's class, since its label may have a number in it that changes (``_ * 0.25``)."""
    name: str = function._impl_name
    return name


def makes_graphs() -> bool:
    """Whether functions that are applied now, as those of a step of backward, are part of a graph."""
    import chainer

    return bool(chainer.config.enable_backprop)


def retained(function: Any, hidden: Sequence[AttributeSlot] | None = None) -> list[Storage]:
    """The storages that a function's backward may read, each once, wherever they are.

    `hidden`: where it hides arrays, if that is known already.
    """
    found: dict[Any, None] = {}
    for index in function._input_indexes_to_retain or ():
        node = function.inputs[index]
        found[find(node._data) if node._ooc is None else node._ooc.storage] = None
    for index, array in enumerate(function._retained_output_data or ()):
        storage = find(array)
        if storage is not None:
            storage.add_slots(OutputSlot(function, index))
        found[storage] = None
        node = function.outputs[function._output_indexes_to_retain[index]]()
        # Backward reads what the node has, which the program may have replaced.
        if node is not None and (array is None or node._data is not array):
            found[find(node._data) if node._ooc is None else node._ooc.storage] = None
    for owner in owners_of(function):
        for away in (owner._ooc or {}).values():
            found[away.storage] = None
    for slot in hidden_slots(function) if hidden is None else hidden:
        found[find(slot.get())] = None
    found.pop(None, None)
    return list(found)
