"""Maps that are lost and made again: how the calls that they need run once more.

    RESIDENT --discard--> LOST, with a recipe --make_again--> RESIDENT --drop--> LOST ...
    SPARE --yield--> LOST, with a seal --make_again, by recipes that are written now--> RESIDENT

A chain runs in the order of the first runs. What only the chain reads dies when its last reader has run; what functions
still wait for stays if the plan shares chains, so that a prefix of several runs once (P7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.layout import Layout
from chainer_ooc.errors import LostMapError
from chainer_ooc.execute.functions.recipe import Recipe
from chainer_ooc.execute.memory.late_recipes import write_afterwards
from chainer_ooc.execute.memory.transit import Transit, note_lost
from chainer_ooc.execute.storage.slots import Array
from chainer_ooc.execute.storage.storage import Storage
from chainer_ooc.problem import is_shared
from chainer_ooc.quantities import format_bytes

_ADVICE = ('the next iteration plans for this use. To go on now raise chainer.config.ooc_budget, or use policy '
           "'swap-all', whose maps can be read as long as their graph lives")


def make_again(memory: Transit, storage: Storage, beside: Iterable[Storage]) -> ByteArray:
    """Makes a lost storage resident, and gives its block.

    What of `beside` is lost too comes with it: plans have one chain for all that a step needs, and what several of its
    maps are made from would be made for each of them. If this fails: they are lost as before.

    Raises:
        LostMapError: something that a call needs is gone or has changed, or a call must not run again.
        RecomputeMismatchError: a call gave another shape or dtype than at first.
        SpillError, MemoryError: as for `Residency.fetch`.
    """
    pinned, is_planned = memory.pinned, storage.recipe is not None
    try:
        if not is_planned:
            return _run(memory, [storage], write_afterwards(storage), pinned)
        wanted = [storage, *(each for each in beside if each is not storage and each.memory is storage.memory
                             and each.recipe is not None and each.is_lost())]
        return _run(memory, wanted, _chain(wanted), pinned)
    except (LostMapError, RecursionError) as error:
        note_lost(storage)
        if is_planned or str(error).endswith(_ADVICE):  # it is of a map that this one needs, and has said all
            raise
        raise LostMapError(
            f'{_named(storage)} is read after its last known backward use, when its room was needed, and cannot be '
            f'made again: {error}; {_ADVICE}') from error
    finally:
        memory.pin(pinned)


def _run(memory: Transit, wanted: Sequence[Storage], chain: Sequence[Recipe], pinned: frozenset[Storage]) -> ByteArray:
    """Runs the calls of a chain. Gives the block of the first that is wanted."""
    first = wanted[0]
    here: dict[Any, Any] = {}
    made_here: set[Storage] = set()
    readers = Counter(each for recipe in chain for each in recipe.needs())
    readers.update(wanted)  # for the caller
    for recipe in chain:
        needed = recipe.needs()
        for each in needed:
            if each not in here:
                here[each] = each.memory.fetch(each, exposed=False)
        memory.pin(pinned.union(each for each in here if isinstance(each, Storage)))
        if recipe.spoilt:  # what it reads was found to be held by the program
            raise _gone(first)
        made_here.update(_call(memory, first, recipe, here, readers))
        for each in needed:
            readers[each] -= 1
            if not readers[each]:
                del here[each]
                if each in made_here and not _stays(memory, each):
                    each.memory.drop(each, may_lose=False)
    # A signal handler that has interrupted a call may have had it made, too.
    return here[first] if first in here else first.memory.fetch(first, exposed=False)


def _call(memory: Transit, wanted: Storage, recipe: Recipe, here: dict[Any, Any], readers: Counter[Any]
          ) -> list[Storage]:
    """Runs one call and puts those of its results into `here` that are read. Gives the storages that came back."""
    memory.need(recipe.peak_bytes)
    memory.note_peak(recipe.peak_bytes)
    with memory.tally.recomputing():
        outputs, made, changes = recipe.run(here)
    memory.check_or_defer(wanted, changes)
    memory.tally.recomputed_calls += 1
    here.update((node, array) for node, array in zip(recipe.nodes, outputs, strict=False) if readers[node])
    brought = [each for each in made if recipe.brings(each) and each.is_lost() and (
        readers[each] or _stays(memory, each))]
    for each in brought:
        here[each] = _take_up(each, made[each])
    return brought


def _stays(memory: Transit, storage: Storage) -> bool:
    return is_shared(memory.context.shares_chains, storage.map) and storage.pending_uses > 0


def _chain(wanted: Iterable[Storage]) -> list[Recipe]:
    """The recipes that give maps, in the order in which they have to run."""
    found: dict[int, Recipe] = {}
    waiting = [*wanted]
    while waiting:
        storage = waiting.pop()
        recipe = storage.recipe
        if not isinstance(recipe, Recipe) or recipe.spoilt:
            raise _gone(storage)
        if recipe.serial not in found:
            found[recipe.serial] = recipe
            waiting += [each.storage for each in recipe.moved() if each.storage.is_lost() and each.storage.seal is None]
    return [found[serial] for serial in sorted(found)]


def _gone(storage: Storage) -> LostMapError:
    return LostMapError(
        f'{_named(storage)} cannot be made again: what it was made from is gone, or '
        "may have been written to; the next iteration plans for this. To go on now use policy 'swap-all', which keeps "
        'a copy of every map')


def _named(storage: Storage) -> str:
    """What messages call a map: its number and size, and what makes it, where its iteration's graph is known."""
    graph = None if storage.token is None else storage.token.graph
    maker = graph.trace.maker_of(storage.map) if graph is not None and storage.map < len(graph.trace.maps) else None
    made = ', given by the program' if storage.from_outside else '' if maker is None else (
        f', made by {maker.label}, forward of call {maker.index}{maker.place}')
    return f'feature map {storage.map} ({format_bytes(storage.nbytes)}{made})'


def _take_up(storage: Storage, parts: list[tuple[Layout, Array]]) -> ByteArray:
    """Makes new arrays a storage's content; they are copied if they do not lie as those of the first run."""
    root = arrays.root_of(parts[0][1])
    block = None if root is None else arrays.flat_bytes(root)
    if block is None or block.nbytes != storage.nbytes or not all(
            arrays.root_of(array) is root and _lies_as(layout, array, root) for layout, array in parts):
        block = arrays.zeros_like_block(parts[0][1], storage.nbytes)
        for layout, array in parts:
            arrays.view(block, layout.writable())[...] = array
    if storage.seal is not None and arrays.checksum(block) != storage.seal:
        raise LostMapError('what it was made from has changed since, such as parameters after an update')
    storage.memory.restore(storage, block)
    return block


def _lies_as(layout: Layout, array: Array, root: Array) -> bool:
    found = arrays.layout_of(array, root)
    return (found.strides, found.offset_bytes) == (layout.strides, layout.offset_bytes)
