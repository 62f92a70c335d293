"""How a forward call is run once more, without any other effect (P7).

A recipe is written around the first run of a call: before it, a copy of the function is made (`prototype`); after it,
the inputs are noted: feature maps by storage and layout, everything else by reference with a mark of its content, or as
a copy where it is small. Marks are compared when the call runs again.

Source: Chen et al. (recomputation); what differs: single calls, not segments that you mark.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.layout import Layout
from chainer_ooc.errors import LostMapError, RecomputeMismatchError
from chainer_ooc.execute.functions.prototype import Prototype, believe
from chainer_ooc.execute.storage.account import find
from chainer_ooc.execute.storage.slots import Array, array_of, hidden_slots
from chainer_ooc.execute.storage.storage import Storage
from chainer_ooc.problem import COPIED_BYTES
from chainer_ooc.quantities import format_bytes

_SERIAL = itertools.count()


@dataclass(frozen=True)
class Moved:
    """An input that is a feature map, or part of one; with a mark where the program could write to it unnoticed."""

    storage: Storage
    layout: Layout
    mark: Any

    def get(self, here: Here) -> Any:
        """The array, on the storage's block."""
        return arrays.view(here[self.storage], self.layout)


@dataclass(frozen=True)
class Fixed:
    """An input that is no feature map, such as a parameter; with a mark, unless it is a copy."""

    array: Any
    mark: Any

    def get(self, here: Here) -> Any:
        """The array."""
        return self.array


@dataclass(frozen=True)
class Between:
    """An input that nothing holds any more: what another call of a chain has just given for a node."""

    node: Any
    mark: ClassVar[None] = None

    def get(self, here: Here) -> Any:
        """The array as it came from that call, since how it lies may decide in which order the next one sums."""
        return here[self.node]


#: What is in near memory for a chain: blocks by storage, and arrays by the node that nothing holds them for.
Here = Mapping[Any, Any]
#: What a call has made of storages: arrays, each with how it lies there.
Made = dict[Storage, list[tuple[Layout, Array]]]
#: Whether something is not what it was at the first run, see `arrays.mark`, and the error that is raised then.
Change = tuple[Any, Callable[[], LostMapError]]


@dataclass(frozen=True, eq=False)
class Product:
    """An output or a hidden array: its storage and layout; a mark if the program declares that it can be repeated."""

    name: int | str
    storage: weakref.ref[Storage]
    layout: Layout
    mark: Any = None


@dataclass(eq=False)
class Recipe:
    """How a call is run again.

    Attributes:
        inputs: in order.
        products: what it made that has storages.
        peak_bytes: what the call allocates at its highest.
        serial: recipes that are needed by others have smaller ones.
        spoilt: an input may not be as it was any more.
        nodes: of its outputs, where other calls read these without a storage.
    """

    prototype: Prototype
    inputs: tuple[Moved | Fixed | Between, ...]
    products: tuple[Product, ...]
    peak_bytes: int
    serial: int = field(default_factory=lambda: next(_SERIAL))
    spoilt: bool = False
    nodes: tuple[Any, ...] = ()

    def is_whole(self) -> bool:
        """Whether every input can still be had as it was."""
        return not self.spoilt and all(each.can_return() for each in self.reads())

    def moved(self) -> list[Moved]:
        """The inputs that are feature maps."""
        return [each for each in self.inputs if isinstance(each, Moved)]

    def reads(self) -> list[Storage]:
        """Their storages."""
        return [each.storage for each in self.moved()]

    def needs(self) -> list[Any]:
        """The storages and nodes whose bytes have to be here when it runs, each once."""
        return list(dict.fromkeys(each.storage if isinstance(each, Moved) else each.node
                                  for each in self.inputs if not isinstance(each, Fixed)))

    def spoil(self) -> None:
        """An input may not be as it was any more."""
        self.spoilt = True

    def trusts(self, storage: Storage) -> bool:
        """Whether it has no mark to tell that a storage's bytes have changed."""
        return any(each.storage is storage and each.mark is None for each in self.moved())

    def distrust(self, storage: Storage, block: ByteArray) -> None:
        """Marks the storage's bytes as they are now."""
        self.inputs = tuple(
            replace(each, mark=arrays.mark(arrays.view(block, each.layout)))
            if isinstance(each, Moved) and each.storage is storage and each.mark is None else each
            for each in self.inputs)

    def brings(self, storage: Storage) -> bool:
        """Whether a storage that its call made is to come back by it."""
        return storage.recipe is self

    def makes(self) -> list[Storage]:
        """The storages that come back by it."""
        found = (each.storage() for each in self.products)
        return [each for each in found if each is not None and self.brings(each)]

    def run(self, here: Here) -> tuple[tuple[Array, ...], Made, list[Change]]:
        """Runs the call on a fresh copy of the function; gives its outputs, what it has made of storages, and changes.

        Raises:
            LostMapError: the call drew other random numbers.
            RecomputeMismatchError: a result has another shape or dtype than at the first run.
        """
        given = [each.get(here) for each in self.inputs]
        changes: list[Change] = [
            (arrays.mark(array) != each.mark,
             functools.partial(_input_changed, self.prototype.name, array.nbytes, array.shape))
            for array, each in zip(given, self.inputs, strict=True) if each.mark is not None]
        outputs, hidden = self.prototype.run(given)
        made: Made = {}
        for product in self.products:
            array: Any = outputs[product.name] if isinstance(product.name, int) else hidden.get(product.name)
            first = (product.layout.shape, product.layout.dtype)
            form = (getattr(array, 'shape', None), getattr(array, 'dtype', None))
            if form != first:
                raise RecomputeMismatchError(self.prototype.name, first, form)
            storage = product.storage()
            if storage is not None:
                if product.mark is not None and self.brings(storage):
                    again = arrays.mark(_laid_out(array, product.layout, storage.nbytes))
                    changes.append((again != product.mark, functools.partial(_other_values, self.prototype)))
                made.setdefault(storage, []).append((product.layout, array))
        return outputs, made, changes


def write_recipe(prototype: Prototype, function: Any, inputs: Sequence[Any], outputs: Sequence[Any], peak_bytes: int,
                 will_stay: Callable[[Storage], bool]) -> Recipe:
    """Writes down how a call that has just run is run again. The program's reads of its inputs are noticed from now on.

    `inputs` are Variables or arrays, `outputs` Variables; `will_stay` tells whether a storage can be had in backward.
    """
    prototype.complete(function)
    found: list[tuple[int | str, Any]] = [(index, array_of(each)) for index, each in enumerate(outputs)]
    found += [(slot.key[1], slot.get()) for slot in hidden_slots(function)]
    products = tuple(Product(name, weakref.ref(storage), arrays.layout_of(array, arrays.root_of(array)),
                             arrays.mark(array) if prototype.declared else None)
                     for name, array in found if (storage := find(array)) is not None)
    copies = _Copies(inputs)
    given = tuple(_given(each, will_stay, copies) for each in inputs)
    recipe = Recipe(prototype, given, products, peak_bytes)
    for each in recipe.moved():
        each.storage.read_by(recipe)
        each.storage.watch()
    return recipe


class _Copies:
    """Copies of what a call is given, small and as it lies.

    Inputs that lie on one block lie on one copy of it: NumPy has a matrix multiplied by itself, transposed, in another
    order than by one that is equal.
    """

    def __init__(self, inputs: Iterable[Any]) -> None:
        self._inputs_on = Counter(id(arrays.root_of(array_of(each))) for each in inputs)
        self._blocks: dict[int, ByteArray] = {}

    def of(self, array: Array) -> Array | None:
        """A copy; None if there is none that lies as the array does."""
        root = arrays.root_of(array)
        if self._inputs_on[id(root)] == 1:
            copy = array.copy(order='K') if array.nbytes <= COPIED_BYTES else None
            # Else a function could return a view of it where it made an array before.
            return copy if copy is not None and copy.strides == array.strides else None
        block = None if root is None or root.nbytes > COPIED_BYTES else arrays.flat_bytes(root)
        if block is None:
            return None
        if id(root) not in self._blocks:
            self._blocks[id(root)] = block.copy()
        return arrays.view(self._blocks[id(root)], arrays.layout_of(array, root))  # type: ignore[no-any-return]


def _given(variable: Any, will_stay: Callable[[Storage], bool], copies: _Copies) -> Moved | Fixed:
    storage, is_open = find(array_of(variable)), True
    if storage is not None and not will_stay(storage):
        storage = None
    if storage is not None:
        is_open = storage.is_held_elsewhere()
        if not is_open:
            storage.enclose()
    array = array_of(variable)  # not before, or it would be held here
    if is_open and (copy := copies.of(array)) is not None:
        return Fixed(copy, None)
    mark = arrays.mark(array) if is_open else None
    return Fixed(array, mark) if storage is None else Moved(
        storage, arrays.layout_of(array, arrays.root_of(array)), mark)


def _laid_out(array: Array, layout: Layout, nbytes: int) -> Array:
    """An array as it lay at the first run, on a block of so many bytes: another layout is no other result."""
    if array.strides == layout.strides:
        return array
    laid_out = arrays.view(arrays.zeros_like_block(array, nbytes), layout.writable())
    laid_out[...] = array
    return laid_out  # type: ignore[no-any-return]


def _input_changed(name: str, nbytes: int, shape: tuple[int, ...]) -> LostMapError:
    return LostMapError(
        f'{name} has to run again for a feature map, and an array of {format_bytes(nbytes)}, shape {shape}, that it is '
        'given has changed since, such as a parameter after an update or a batch that was written to; the next '
        "iteration plans for this use. To go on now use policy 'swap-all', which keeps a copy of every map")


def _other_values(prototype: Prototype) -> LostMapError:
    believe(prototype.declared, is_true=False)
    return LostMapError(
        f'{prototype.name} has ooc_recompute = True and gave other values when it ran again: its forward reads '
        'something that has changed since, such as a global, an attribute of its class or an array of the program. It '
        'will not run again; leave ooc_recompute out of the class')
