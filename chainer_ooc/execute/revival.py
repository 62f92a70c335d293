"""Maps that are given up and made again: how one is let go of, and how its chain of calls runs.

    RESIDENT, held --forget--> LOST, with a recipe --revive--> RESIDENT --drop--> LOST ...

From its birth on such a map is *held*: its Variables are vacant, so that every read of the user's is noticed. He may
have written to what he read, and the recipe would not give that: then the map is copied instead.

A chain runs in the order of the first runs. What it makes for itself alone dies when its last reader in the chain has
run; what functions still wait for stays if the plan shares chains, so that a prefix of several runs once (P7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import ByteArray
from chainer_ooc.classify.decision import is_shared
from chainer_ooc.errors import LostMapError
from chainer_ooc.execute.places import Array
from chainer_ooc.execute.recipe import Moved, Product, Recipe
from chainer_ooc.execute.storage import State, Storage

if TYPE_CHECKING:
    from chainer_ooc.execute.residency import Residency


def hold(storage: Storage, recipe: Recipe) -> None:
    """Says how a new map can be made again, and has reads of the user's noticed from now on."""
    root = storage.root()
    block = None if root is None else arrays.flat_bytes(root)
    if block is not None:
        storage.recipe, storage.hold = recipe, block
        storage.empty_places(variables_only=True)


def forget(residency: Residency, storage: Storage) -> bool:
    """Gives up a map that can be made again, after its last forward use; False if it has to go another way.

    What nobody retains is the user's own from here on, if a Variable of his shows it: whatever he writes to it, a chain
    starts from what the calls before saw. If he may have written already, that is copied to far memory.

    Raises:
        SpillError: that copy failed; the map is resident and will be lost.
    """
    if storage.state is not State.RESIDENT or storage.root() is None:
        release(storage)
        return storage.state is State.LOST and storage.recipe is not None
    if storage.recipe is not None and not storage.is_retained():
        _part(residency, storage)
        return True
    if storage.exposed:
        release(storage)
    storage.hold = None
    if storage.exposed or storage.recipe is None or not storage.recipe.is_whole() or storage.held_elsewhere():
        storage.recipe = None
        return False
    storage.empty_places()
    storage.state = State.LOST
    return True


def _part(residency: Residency, storage: Storage) -> None:
    block = storage.hold
    release(storage)
    if storage.exposed and block is not None:
        storage.recipe = None
        storage.copy, transfer = residency.backend.swap_out(block)
        residency.tally.swapped_out_bytes += storage.nbytes
        transfer.wait()
        storage.exposed = False
    del block
    residency.detach(storage)


def release(storage: Storage) -> None:
    """Ends the watch over a map: its Variables have their arrays again."""
    block, storage.hold = storage.hold, None
    if block is not None:
        storage.fill_places(block, variables=True)


def revive(residency: Residency, wanted: Storage) -> ByteArray:
    """Runs the calls that a lost map needs.

    Returns:
        Its block.

    Raises:
        LostMapError: something that a call needs is gone, or has changed.
        RecomputeMismatchError: a call gave another shape or dtype than at first.
        SpillError, MemoryError: as for `Residency.fetch`.
    """
    blocks: dict[Storage, ByteArray] = {}
    pinned, passed = residency.pinned, set()
    try:
        chain = _chain(residency, wanted)
        readers = Counter(each for recipe in chain for each in _moved(recipe))
        for recipe in chain:
            for each in _moved(recipe):
                if each not in blocks:
                    blocks[each] = residency.fetch(each, exposed=False)
            residency.pinned = pinned | blocks.keys()
            residency.make_room(recipe.peak_bytes)
            with residency.tally.recomputing():
                made = recipe.run([arrays.view(blocks[each.storage], each.layout) if isinstance(each, Moved)
                                   else each.unchanged() for each in recipe.inputs])
            residency.tally.recomputed_calls += 1
            for storage, parts in _by_storage(made):
                if residency.is_lost(storage) and (
                        storage is wanted or readers[storage] or _stays(residency, storage)):
                    blocks[storage] = _take_up(residency, storage, parts)
                    passed.add(storage)
            made.clear()
            parts = []
            for each in _moved(recipe):
                readers[each] -= 1
                if not readers[each] and each is not wanted:
                    del blocks[each]
                    if each in passed and not _stays(residency, each):
                        residency.drop(each, may_lose=False)
        return blocks[wanted]
    except LostMapError:
        residency.on_lost(wanted)
        raise
    finally:
        residency.pinned = pinned


def _stays(residency: Residency, storage: Storage) -> bool:
    return is_shared(residency.shares_chains, storage.map) and storage.pending_uses > 0


def _chain(residency: Residency, wanted: Storage) -> list[Recipe]:
    """The recipes that give a map, in the order in which they have to run."""
    found: dict[int, Recipe] = {}
    waiting = [wanted]
    while waiting:
        storage = waiting.pop()
        if storage.recipe is None:
            raise LostMapError(_lost(storage))
        if storage.recipe.serial not in found:
            found[storage.recipe.serial] = storage.recipe
            waiting += [each for each in _moved(storage.recipe) if residency.is_lost(each)]
    return [found[serial] for serial in sorted(found)]


def _lost(storage: Storage) -> str:
    return (f'feature map {storage.map} ({storage.nbytes} bytes) is read after its last known backward use, and there '
            "is no copy of it; the next iteration plans for this use. To go on now use policy 'swap-all', whose maps "
            'can be read as long as their graph lives')


def _moved(recipe: Recipe) -> set[Storage]:
    return {each.storage for each in recipe.inputs if isinstance(each, Moved)}


def _by_storage(made: dict[Product, Array]) -> Iterator[tuple[Storage, list[tuple[Product, Array]]]]:
    groups: dict[Storage, list[tuple[Product, Array]]] = {}
    for product, array in made.items():
        storage = product.storage()
        if storage is not None:
            groups.setdefault(storage, []).append((product, array))
    yield from groups.items()


def _take_up(residency: Residency, storage: Storage, parts: list[tuple[Product, Array]]) -> ByteArray:
    """Makes new arrays a storage's content; they are copied if they do not lie as those of the first run did."""
    root = arrays.root_of(parts[0][1])
    block = None if root is None else arrays.flat_bytes(root)
    same = root is not None and block is not None and block.nbytes == storage.nbytes and all(
        arrays.root_of(array) is root and _lies_as(array, root, product) for product, array in parts)
    if not same or root is None or block is None:
        block = arrays.zeros_like_block(parts[0][1], storage.nbytes)
        root = arrays.root_of(block)
        for product, array in parts:
            arrays.view(block, product.layout.writable())[...] = array
    residency.restore(storage, root, block)
    return block


def _lies_as(array: Array, root: Array, product: Product) -> bool:
    layout = arrays.layout_of(array, root)
    return (layout.strides, layout.offset_bytes) == (product.layout.strides, product.layout.offset_bytes)
