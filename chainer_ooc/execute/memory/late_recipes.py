"""Recipes that are written late: for maps that have yielded after their last known use, and are read all the same.

Nothing was written down when their functions ran, since that takes time and such reads are rare. But the graph has what
was made from what:

    batch, parameters --> Linear --> map (dead) --> ReLU --> map (sealed) --> backward reads it

A copy of each function runs once more, from what is left of the inputs. The bytes are compared with a checksum that was
taken when the map yielded, its *seal*. So a parameter that has changed since, or anything that the program has written
to, gives an error and never another result.

No storage keeps such a recipe: the next update would make it worthless, and a chain that fails leaves nothing behind.

Left out: functions that draw random numbers, whose state is not known, and a program's own, which may have effects.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import Any

from chainer_ooc.backends import arrays
from chainer_ooc.errors import LostMapError
from chainer_ooc.execute.functions.prototype import prepare_afterwards
from chainer_ooc.execute.functions.recipe import Between, Change, Fixed, Here, Made, Moved, Product, Recipe
from chainer_ooc.execute.storage.account import find
from chainer_ooc.execute.storage.slots import (
    Array,
    AttributeSlot,
    Away,
    NodeSlot,
    OutputSlot,
    Slot,
    VariableSlot,
    owners_of,
)
from chainer_ooc.execute.storage.storage import Storage


class LateRecipe(Recipe):
    """How a function is run again that was not copied before it ran. What it gives has to match the seals."""

    def run(self, here: Here) -> tuple[tuple[Array, ...], Made, list[Change]]:
        """See `Recipe.run`. Any error means that the function is not what it was."""
        try:
            return super().run(here)
        except (MemoryError, LostMapError):
            raise
        except Exception as error:  # it lacks something that could not be copied
            raise LostMapError(f'{self.prototype.name} does not run again ({type(error).__name__}: {error})') from error

    def brings(self, storage: Storage) -> bool:
        return storage.seal is not None


def write_afterwards(wanted: Storage) -> list[Recipe]:
    """Writes recipes for a lost map that has none, and all that it needs, in the order in which they have to run.

    Raises:
        LostMapError: the graph does not say how, a function must not run twice, what one was given is gone, or the map
            has no seal.
    """
    found: dict[Any, Recipe] = {}
    waiting = [_producer(wanted, math.inf)]
    while waiting:
        function = waiting.pop()
        if function not in found:
            found[function] = _written(function)
            for each in found[function].needs():
                if not isinstance(each, Storage):
                    waiting.append(each.creator_node)
                elif each.recipe is None and each.is_lost():
                    waiting.append(_producer(each, function.rank))
    needed = {wanted}.union(*(each.needs() for each in found.values()))
    for recipe in found.values():
        recipe.products = tuple(each for each in recipe.products if each.storage() in needed)
    return sorted(found.values(), key=lambda each: each.serial)


def _written(function: Any) -> Recipe:
    products = tuple(_products(function))
    made_bytes = sum(each.nbytes for each in {each.storage() for each in products} if each is not None)
    return LateRecipe(
        prepare_afterwards(function), tuple(map(_given, function.inputs)), products,
        made_bytes + sum(map(_nbytes, function.inputs)), function.rank, nodes=tuple(ref() for ref in function.outputs))


def _given(node: Any) -> Moved | Fixed | Between:
    content = _content(node)
    if content is None:
        if node.creator_node is None:
            raise LostMapError('the program has no more what it was made from')
        return Between(node)
    if type(content) is Away:
        return Moved(content.storage, content.layout, None)  # type: ignore[arg-type]
    storage = find(content)
    return Fixed(content, None) if storage is None else Moved(
        storage, arrays.layout_of(content, arrays.root_of(content)), None)


def _nbytes(node: Any) -> int:
    return 0 if node.shape is None else math.prod(node.shape) * int(node.dtype.itemsize)


def _content(node: Any) -> Array | Away | None:
    """The array of a node or its Variable, or the stand-in."""
    content = NodeSlot(node).get()
    return VariableSlot(node).get() if content is None else content


def _producer(storage: Storage, before_rank: float) -> Any:
    """The first function that has, or gave, an array on a storage, of those that ran before another."""
    found = [_function_of(slot, storage) for slot in storage.slots.values()]
    functions = [each for each in found if each is not None and each.inputs and each.rank < before_rank]
    if storage.seal is None or not functions:
        raise LostMapError('the graph does not say from what, or nothing would tell whether it is the same')
    return min(functions, key=lambda each: each.rank)


def _function_of(slot: Slot, storage: Storage) -> Any:
    owner, content = slot.owner(), slot.get()
    if owner is None or type(content) is not Away or content.storage is not storage:
        return None
    if isinstance(slot, AttributeSlot):
        return getattr(owner, 'node', owner)  # of an old-style function
    return owner if isinstance(slot, OutputSlot) else owner.creator_node


def _products(function: Any) -> Iterator[Product]:
    """What a function has given, as far as that is away."""
    found: list[tuple[int | str, Any]] = [
        (index, _content(node)) for index, ref in enumerate(function.outputs) if (node := ref()) is not None]
    for owner in owners_of(function):
        for key, away in (owner._ooc or {}).items():
            found.append((key if isinstance(key, str) else function._output_indexes_to_retain[key[1]], away))
    for name, away in found:
        if type(away) is Away:
            yield Product(name, weakref.ref(away.storage), away.layout)  # type: ignore[arg-type]
