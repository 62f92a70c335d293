"""Maps that are given up and made again: how their chains of calls run.

    RESIDENT --give_up--> LOST, with a recipe --bring--> RESIDENT --drop--> LOST ...

A chain runs in the order of the first runs. What it makes for itself alone dies when its last reader in the chain has
run; what functions still wait for stays if the plan shares chains, so that a prefix of several runs once (P7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import ByteArray
from chainer_ooc.classify.decision import is_shared
from chainer_ooc.errors import LostMapError
from chainer_ooc.execute.places import Array
from chainer_ooc.execute.recipe import Moved, Product, Recipe
from chainer_ooc.execute.residency import Residency
from chainer_ooc.execute.storage import State, Storage


class MakeAgain:
    """Runs the calls that a lost map needs, when it is read."""

    keeps_recalled = True

    def needed_bytes(self, storage: Storage) -> int:
        return storage.nbytes

    def begin(self, memory: Residency, storage: Storage) -> bool:
        return True

    def want(self, memory: Residency, storage: Storage) -> None:
        pass

    def left(self, memory: Residency, storage: Storage) -> None:
        pass

    def bring(self, memory: Residency, storage: Storage) -> ByteArray:
        """See `Source.bring`.

        Raises:
            LostMapError: something that a call needs is gone, or has changed.
            RecomputeMismatchError: a call gave another shape or dtype than at first.
            SpillError, MemoryError: as for `Residency.fetch`.
        """
        pinned = memory.pinned
        try:
            return _run(memory, storage, pinned)
        except LostMapError:
            memory.context.on_lost(storage)
            raise
        finally:
            memory.pin(pinned)


MAKE_AGAIN = MakeAgain()


def _run(memory: Residency, wanted: Storage, pinned: frozenset[Storage]) -> ByteArray:
    blocks: dict[Storage, ByteArray] = {}
    made_here = set()
    chain = _chain(wanted)
    readers = Counter(each for recipe in chain for each in _inputs(recipe))
    for recipe in chain:
        for each in _inputs(recipe):
            if each not in blocks:
                blocks[each] = each.memory.fetch(each, exposed=False)
        memory.pin(pinned | blocks.keys())
        memory.make_room(recipe.peak_bytes)
        if recipe.spoilt:  # what it reads was found to be held by somebody
            raise _gone(wanted)
        with memory.tally.recomputing():
            made = recipe.run([each.unchanged(blocks[each.storage]) if isinstance(each, Moved) else each.unchanged()
                               for each in recipe.inputs])
        memory.tally.recomputed_calls += 1
        for storage, parts in _by_storage(made):
            if storage.recipe is recipe and is_lost(storage) and (
                    storage is wanted or readers[storage] or _stays(memory, storage)):
                blocks[storage] = _take_up(storage, parts)
                made_here.add(storage)
        made.clear()
        parts = []
        for each in _inputs(recipe):
            readers[each] -= 1
            if not readers[each] and each is not wanted:
                del blocks[each]
                if each in made_here and not _stays(memory, each):
                    each.memory.drop(each, may_lose=False)
    return blocks[wanted]


def is_lost(storage: Storage) -> bool:
    """Whether its bytes are in no memory."""
    return storage.notice() is None and storage.state is State.LOST


def _stays(memory: Residency, storage: Storage) -> bool:
    return is_shared(memory.context.shares_chains, storage.map) and storage.pending_uses > 0


def _chain(wanted: Storage) -> list[Recipe]:
    """The recipes that give a map, in the order in which they have to run."""
    found: dict[int, Recipe] = {}
    waiting = [wanted]
    while waiting:
        storage = waiting.pop()
        recipe = storage.recipe
        if not isinstance(recipe, Recipe) or recipe.spoilt:
            raise _gone(storage)
        if recipe.serial not in found:
            found[recipe.serial] = recipe
            waiting += [each for each in _inputs(recipe) if is_lost(each) and each.seal is None]
    return [found[serial] for serial in sorted(found)]


def _gone(storage: Storage) -> LostMapError:
    return LostMapError(
        f'feature map {storage.map} ({storage.nbytes} bytes) cannot be made again: what it was made from is gone, or '
        'may have been written to; the next iteration plans for this. To go on now use policy '
        "'swap-all', which keeps a copy of every map")


def _inputs(recipe: Recipe) -> set[Storage]:
    return {each.storage for each in recipe.moved()}


def _by_storage(made: dict[Product, Array]) -> Iterator[tuple[Storage, list[tuple[Product, Array]]]]:
    groups: dict[Storage, list[tuple[Product, Array]]] = {}
    for product, array in made.items():
        storage = product.storage()
        if storage is not None:
            groups.setdefault(storage, []).append((product, array))
    yield from groups.items()


def _take_up(storage: Storage, parts: list[tuple[Product, Array]]) -> ByteArray:
    """Makes new arrays a storage's content."""
    root, block = assemble(storage, parts)
    storage.memory.restore(storage, root, block)
    return block


def assemble(storage: Storage, parts: list[tuple[Product, Array]]) -> tuple[Array, ByteArray]:
    """Makes a block of new arrays, and what owns it; they are copied if they do not lie as those of the first run."""
    root = arrays.root_of(parts[0][1])
    block = None if root is None else arrays.flat_bytes(root)
    same = root is not None and block is not None and block.nbytes == storage.nbytes and all(
        arrays.root_of(array) is root and _lies_as(array, root, product) for product, array in parts)
    if not same or root is None or block is None:
        block = arrays.zeros_like_block(parts[0][1], storage.nbytes)
        root = arrays.root_of(block)
        for product, array in parts:
            arrays.view(block, product.layout.writable())[...] = array
    return root, block


def _lies_as(array: Array, root: Array, product: Product) -> bool:
    layout = arrays.layout_of(array, root)
    return (layout.strides, layout.offset_bytes) == (product.layout.strides, product.layout.offset_bytes)
