"""Maps that have made room after their last known use, and are read all the same: made again without a recipe.

Their functions ran without anything being written down, since nobody expected this and nobody should pay for it. But
the graph still knows what was made from what:

    batch, parameters --> Linear --> map (dead) --> ReLU --> map (sealed) --> backward reads it

A copy of each function runs once more, from what is left of the inputs. Whether it gives what the first run gave, the
bytes tell: they are compared with a checksum that was taken when the map made room, its *seal*. So a parameter that has
changed since, or whatever the program has written to, gives an error and never another result.

Left out: functions that draw random numbers, as nobody has their state, and a program's own, which may have effects.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import ByteArray
from chainer_ooc.errors import LostMapError
from chainer_ooc.execute.places import Array, AttributePlace, Away, NodePlace, OutputPlace, Place, owners_of
from chainer_ooc.execute.recipe import Product, UnrepeatableError, prepare_afterwards, run_copy
from chainer_ooc.execute.residency import Residency
from chainer_ooc.execute.revival import MakeAgain, assemble, is_lost
from chainer_ooc.execute.storage import Storage


class FromGraph(MakeAgain):
    """Makes maps again by their recipes, and what has none as far as the graph tells how."""

    def bring(self, memory: Residency, storage: Storage) -> ByteArray:
        """See `Source.bring`.

        Raises:
            LostMapError: it cannot be made again as it was; it is lost as before.
            SpillError, MemoryError: as for `Residency.fetch`.
        """
        if storage.recipe is not None:
            return super().bring(memory, storage)
        pinned = memory.pinned
        try:
            return _make(memory, storage)
        except (LostMapError, RecursionError) as error:
            memory.context.on_lost(storage)
            raise LostMapError(
                f'feature map {storage.map} ({storage.nbytes} bytes) is read after its last known backward use, when '
                f'its room was needed, and cannot be made again: {error}; the next iteration plans for this use. To go '
                "on now raise chainer.config.ooc_budget, or use policy 'swap-all', whose maps can be read as long as "
                'their graph lives') from error
        finally:
            memory.pin(pinned)


FROM_GRAPH = FromGraph()


def _make(memory: Residency, wanted: Storage) -> ByteArray:
    functions = _functions(wanted)
    readers = Counter(id(node) for function, _ in functions for node in function.inputs)
    made: dict[int, Array] = {}
    block = None
    for function, storages in functions:
        given = [made[id(node)] if id(node) in made else _in_reach(node) for node in function.inputs]
        found = [each for each in (_storage_of(node) for node in function.inputs) if each is not None]
        memory.pin(memory.pinned.union(found))
        memory.make_room(sum(each.nbytes for each in given) + sum(each.nbytes for each in storages))
        products = [product for each in storages for product in _products(function, each)]
        with memory.tally.recomputing():
            outputs, parts = _run(function, given, products)
        memory.tally.recomputed_calls += 1
        for storage in storages:
            here = _restore(storage, [each for each in parts if each[0].storage() is storage])
            block = here if storage is wanted else block
        for node in function.inputs:
            readers[id(node)] -= 1
            if not readers[id(node)]:
                made.pop(id(node), None)
        made.update((id(ref()), array) for ref, array in zip(function.outputs, outputs, strict=True)
                    if readers[id(ref())])
        del given, outputs, parts
    assert block is not None
    return block


def _functions(wanted: Storage) -> list[tuple[Any, list[Storage]]]:
    """The functions that have to run, in order, each with the sealed storages that it makes."""
    found: dict[int, tuple[Any, list[Storage]]] = {}
    sealed: set[Storage] = set()
    waiting: list[tuple[Any, Storage | None]] = [(_producer(wanted), wanted)]
    while waiting:
        function, storage = waiting.pop()
        if storage is not None:
            if storage in sealed:
                continue
            sealed.add(storage)
        is_new = id(function) not in found
        storages = found.setdefault(id(function), (function, []))[1]
        if storage is not None:
            storages.append(storage)
        for node in function.inputs if is_new else ():
            source = _storage_of(node)
            if source is not None and source.recipe is None and is_lost(source):
                waiting.append((_producer(source), source))
            elif source is None and _content(node) is None:
                if node.creator_node is None:
                    raise LostMapError('the program has no more what it was made from')
                waiting.append((node.creator_node, None))
    return sorted(found.values(), key=lambda each: each[0].rank)


def _content(node: Any) -> Array | Away | None:
    """What a node or its Variable has."""
    content = node._ooc if node._data is None else node._data
    variable = node.get_variable_or_none() if content is None else None
    if variable is not None:
        content = list.__getitem__(variable._data, 0)
        content = getattr(variable._data, 'away', None) if content is None else content
    return content  # type: ignore[no-any-return]


def _storage_of(node: Any) -> Storage | None:
    """The storage of an array that is not there."""
    content = _content(node)
    return content.storage if type(content) is Away else None  # type: ignore[return-value]


def _in_reach(node: Any) -> Array:
    content = _content(node)
    if type(content) is Away:
        storage: Any = content.storage
        array: Array = arrays.view(storage.memory.fetch(storage, exposed=False), content.layout)
        return array
    if content is None:
        raise LostMapError('the program has no more what it was made from')
    return content  # type: ignore[return-value]


def _producer(storage: Storage) -> Any:
    """The first function that has, or gave, an array on a storage."""
    found = [each for each in map(_function_of, storage.places.values()) if each is not None]
    if storage.seal is None or not found:
        raise LostMapError('the graph does not say from what, or somebody else could write to it')
    return min(found, key=lambda each: each.rank)


def _function_of(place: Place) -> Any:
    owner = place.owner()
    if owner is None or type(place.get()) is not Away:
        return None
    if isinstance(place, NodePlace):
        return owner.creator_node
    if isinstance(place, AttributePlace):
        return getattr(owner, 'node', owner)  # of an old-style function
    return owner if isinstance(place, OutputPlace) else None


def _products(function: Any, storage: Storage) -> Iterator[Product]:
    """What a function gives of a storage."""
    owners = owners_of(function)
    for place in storage.places.values():
        content = place.get()
        if type(content) is Away and content.storage is storage and _function_of(place) is function:
            if isinstance(place, NodePlace):
                name: int | str = [ref() for ref in function.outputs].index(place.owner())
            elif isinstance(place, OutputPlace):
                name = function._output_indexes_to_retain[place.key[1]]
            else:
                name = place.key[1]
            owner = owners.index(place.owner()) if isinstance(name, str) else 0
            yield Product(name, owner, weakref.ref(storage), content.layout)


def _run(function: Any, given: Sequence[Array],
         products: Sequence[Product]) -> tuple[tuple[Array, ...], list[tuple[Product, Array]]]:
    """Runs a copy of a function; gives its outputs, and what it made of the products."""
    name = type(function).__name__
    try:
        owners, outputs = run_copy(prepare_afterwards(function), given)
    except (MemoryError, LostMapError):
        raise
    except UnrepeatableError as error:
        raise LostMapError(str(error)) from error
    except Exception as error:  # it lacks something that could not be copied
        raise LostMapError(f'{name} does not run again ({type(error).__name__}: {error})') from error
    parts = []
    for each in products:
        array: Any = outputs[each.name] if isinstance(each.name, int) else owners[each.owner].__dict__.get(each.name)
        if (getattr(array, 'shape', None), getattr(array, 'dtype', None)) != (each.layout.shape, each.layout.dtype):
            raise LostMapError(f'{name} has given another shape or dtype')
        parts.append((each, array))
    return outputs, parts


def _restore(storage: Storage, parts: list[tuple[Product, Array]]) -> ByteArray:
    """Makes new arrays a storage's content if they are what it was."""
    root, block = assemble(storage, parts)
    if arrays.checksum(block) != storage.seal:
        raise LostMapError('what it was made from has changed since, such as parameters after an update')
    storage.memory.restore(storage, root, block)
    return block
