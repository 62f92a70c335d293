"""What it takes to run a forward call once more, without a trace of it anywhere else (P7).

A recipe is written around the first run of a call. Before it, a copy of the function is made: its attributes as they
were, arrays among them copied, so that a second update of running statistics hits the copy only. After it, the inputs
are noted: feature maps by storage and layout, everything else by reference with a checksum, or as a copy where it is
small. The state of NumPy's random stream and Chainer's configuration are set back for the second run.

What may run again is decided by `is_repeatable`: Chainer's own functions whose attributes are plain values, and those
of users who say so with the class attribute ``ooc_recompute = True``. False there, on any function, forbids it.

Source: Chen et al. (recomputation); torch.utils.checkpoint (random states); what differs: single calls, not segments
that the user marks.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import ByteArray
from chainer_ooc.classify.verdict import COPIED_BYTES
from chainer_ooc.errors import LostMapError, RecomputeMismatchError
from chainer_ooc.execute.account import find
from chainer_ooc.execute.places import Array, array_of, hidden_places
from chainer_ooc.execute.storage import Storage
from chainer_ooc.trace import Call

_PLAIN = (type(None), bool, int, float, complex, str, bytes, slice, range, type, type(Ellipsis), np.generic, np.dtype,
          np.random.RandomState, np.random.Generator)
_SERIAL = itertools.count()
#: What a run leaves on a function, beside what it hides.
_LEFT = frozenset({'inputs', 'outputs', '_retained_output_data', '_input_indexes_to_retain',
                   '_output_indexes_to_retain', '_ooc'})
#: Modules of Chainer's functions that draw random numbers where their inputs are; held to its sources by a test.
_DRAWING_MODULES = frozenset(f'chainer.functions.{name}' for name in (
    'activation.rrelu', 'loss.negative_sampling', 'noise.dropout', 'noise.gaussian', 'noise.simplified_dropconnect',
    'noise.zoneout'))
#: Modules of Chainer's functions that write, in backward, to arrays that they hide.
_WRITING_MODULES = frozenset({'chainer.functions.loss.ctc'})
#: NumPy's own random functions. One that is replaced, as tests do, draws from where no state of ours leads back to.
_DRAWING = {name: value for name, value in vars(np.random).items() if callable(value)}


class UnrepeatableError(Exception):
    """A function has something on itself that cannot be copied, or must not run twice."""


@dataclass(frozen=True)
class Moved:
    """An input that is a feature map, or part of one; with a checksum where the program could write to it unnoticed."""

    storage: Storage
    layout: arrays.Layout
    checksum: int | None

    def unchanged(self, block: ByteArray) -> Any:
        """Returns the array.

        Raises:
            LostMapError: its content is not what it was at the first run.
        """
        return _unchanged(arrays.view(block, self.layout), self.checksum)


@dataclass(frozen=True)
class Fixed:
    """An input that is no feature map, such as a parameter, and what tells that it has not changed."""

    array: Any
    checksum: int | None

    def unchanged(self) -> Any:
        """Returns the array.

        Raises:
            LostMapError: its content is not what it was at the first run.
        """
        return _unchanged(self.array, self.checksum)


@dataclass(frozen=True, eq=False)
class Product:
    """An output or a hidden array: which storage it lies on, and how."""

    name: int | str
    owner: int  # 0 for the function, 1 for the old-style function that it adapts
    storage: weakref.ref[Storage]
    layout: arrays.Layout


@dataclass
class Prototype:
    """A function as it was before its first run, and what surrounded it.

    Attributes:
        function: the copy's attributes, by owner: the function, and the old-style function that it adapts.
        random: state of NumPy's random stream before the first run, or None if that drew nothing.
        random_after: its state after that run.
        configuration: chainer.config's entries in this thread.
    """

    kinds: tuple[type, ...]
    attributes: tuple[dict[str, Any], ...]
    random: dict[str, Any] | None
    configuration: dict[str, Any]
    random_after: dict[str, Any] | None = None


@dataclass(eq=False)
class Recipe:
    """How a call is run again.

    Attributes:
        label: the function's.
        inputs: in order.
        products: what it made, as far as storages know it.
        peak_bytes: what the call allocates at its highest.
        serial: recipes that are needed by others have smaller ones.
        spoilt: an input may not be as it was any more.
    """

    label: str
    prototype: Prototype
    inputs: tuple[Moved | Fixed, ...]
    products: tuple[Product, ...]
    peak_bytes: int
    serial: int = field(default_factory=lambda: next(_SERIAL))
    spoilt: bool = False

    def is_whole(self) -> bool:
        """Whether every input can still be had as it was."""
        return not self.spoilt and all(each.storage.can_return() for each in self.moved())

    def moved(self) -> list[Moved]:
        """The inputs that are feature maps."""
        return [each for each in self.inputs if isinstance(each, Moved)]

    def spoil(self) -> None:
        """An input may not be as it was any more."""
        self.spoilt = True

    def trusts(self, storage: Storage) -> bool:
        """Whether it would not see that a storage's bytes are others."""
        return any(each.storage is storage and each.checksum is None for each in self.moved())

    def makes(self) -> list[Storage]:
        """The storages that have it as their recipe."""
        found = (each.storage() for each in self.products)
        return [each for each in found if each is not None and each.recipe is self]

    def retarget(self, before: Storage, after: Storage) -> None:
        """Has another storage stand where one stood, among what it reads and what it makes."""
        self.inputs = tuple(replace(each, storage=after) if isinstance(each, Moved) and each.storage is before else each
                            for each in self.inputs)
        self.products = tuple(replace(each, storage=weakref.ref(after)) if each.storage() is before else each
                              for each in self.products)

    def run(self, inputs: Sequence[Array]) -> dict[Product, Array]:
        """Runs the call on a fresh copy of the function.

        Raises:
            RecomputeMismatchError: a result has another shape or dtype than at the first run.
        """
        owners = _revive(self.prototype)
        with _surroundings(self.prototype):
            outputs = owners[0].forward(tuple(inputs))
            if self.prototype.random is not None and not _same_random(
                    np.random.get_state(legacy=False), self.prototype.random_after):
                raise LostMapError(
                    f'{self.label} drew other random numbers when it ran again, as another thread draws from '
                    "numpy.random too. To go on use policy 'swap-all', which keeps a copy of every map")
        made = {}
        for product in self.products:
            array = outputs[product.name] if isinstance(product.name, int) else owners[product.owner].__dict__.get(
                product.name)
            form = (getattr(array, 'shape', None), getattr(array, 'dtype', None))
            if form != (product.layout.shape, product.layout.dtype):
                raise RecomputeMismatchError(self.label, (product.layout.shape, product.layout.dtype), form)
            made[product] = array
        return made


def run_copy(prototype: Prototype, inputs: Sequence[Array]) -> tuple[list[Any], tuple[Array, ...]]:
    """Runs a fresh copy of a function; gives it, with the old-style function that it adapts, and its outputs."""
    owners = _revive(prototype)
    with _surroundings(prototype):
        return owners, owners[0].forward(tuple(inputs))


def is_repeatable(function: Any, repeats_random: bool = True) -> bool:
    """Whether a function that has not run yet may be run twice, on a device that may or may not draw the same twice."""
    try:
        _check_random(function, repeats_random)
        _attributes_of(function)
    except UnrepeatableError:
        return False
    return True


def may_write_inputs(function: Any) -> bool:
    """Whether nothing is known about what a function does to its inputs: a user's, which does not say it is pure."""
    old_style = function.__dict__.get('_function')
    return not (_is_trusted(function) and (old_style is None or _is_trusted(old_style)))


def may_change_maps(function: Any) -> bool:
    """Whether a function of Chainer's writes to what it hides, or a hook of the program's may write to maps."""
    import chainer

    if not _WRITING_MODULES.isdisjoint([type(each).__module__ for each in owners_of(function)]):
        return True
    common, own = chainer.get_function_hooks(), function._local_function_hooks
    return bool(common or own) and may_write([*common.values(), *(own or {}).values()])


def may_write(hooks: Iterable[Any]) -> bool:
    """Whether any hook is the program's own, which may write to what it is shown."""
    return not all(type(each).__module__.startswith('chainer.') for each in hooks)


def owners_of(function: Any) -> list[Any]:
    """A function, and the old-style function that it adapts, if it does."""
    old_style = function.__dict__.get('_function')
    return [function] if old_style is None else [function, old_style]


def prepare(function: Any, repeats_random: bool = True) -> Prototype:
    """Copies a function that is about to run.

    Args:
        function: the function.
        repeats_random: see `Backend.repeats_random`.

    Raises:
        UnrepeatableError: it must not run twice, or cannot be copied.
    """
    import chainer

    _check_random(function, repeats_random)
    attributes = _attributes_of(function)
    kinds = tuple(type(each) for each in owners_of(function))
    configuration = {**vars(chainer.global_config), **vars(chainer.config._local), 'ooc': None, 'in_recomputing': True}
    random = np.random.get_state(legacy=False) if _may_draw(function) else None
    return Prototype(kinds, attributes, random, configuration)


def prepare_afterwards(function: Any) -> Prototype:
    """Copies a function that has run, without what that has left on it.

    What cannot be copied is missing. Nobody knows what it was before, so that only the result tells whether it did.

    Raises:
        UnrepeatableError: it must not run twice.
    """
    import chainer

    if _may_draw(function) or not all(map(_is_trusted, owners_of(function))):
        raise UnrepeatableError(f'{type(function).__name__} may draw random numbers, or may have effects')
    attributes: list[dict[str, Any]] = []
    for owner in owners_of(function):
        attributes.append({})
        for name, value in owner.__dict__.items():
            if name not in _LEFT:
                with contextlib.suppress(UnrepeatableError):
                    attributes[-1].update(_copied_attributes(types.SimpleNamespace(**{name: value})))
    configuration = {**vars(chainer.global_config), **vars(chainer.config._local), 'ooc': None, 'in_recomputing': True}
    return Prototype(tuple(map(type, owners_of(function))), tuple(attributes), None, configuration)


def write_recipe(prototype: Prototype, function: Any, inputs: Sequence[Any], outputs: Sequence[Any], call: Call,
                 will_stay: Callable[[Storage], bool]) -> Recipe:
    """Writes down how a call that has just run is run again. The program's reads of its inputs are noticed from now on.

    Args:
        prototype: made before the call ran.
        function: the function itself.
        inputs: Variables or arrays.
        outputs: Variables.
        call: its record.
        will_stay: whether a storage can be had in backward.
    """
    prototype.attributes[0]['_input_layouts'] = function._input_layouts
    if prototype.random is not None:
        prototype.random_after = np.random.get_state(legacy=False)
        if _same_random(prototype.random, prototype.random_after):
            prototype.random = None
    products = []
    found: list[tuple[int | str, int, Any]] = [(index, 0, array_of(each)) for index, each in enumerate(outputs)]
    owners = owners_of(function)
    for place in hidden_places(function):
        owner, name = place.source()
        found.append((name, owners.index(owner), place.get()))
    for name_or_index, owner_index, array in found:
        storage, root = find(array), arrays.root_of(array)
        if storage is not None and root is not None:
            products.append(Product(name_or_index, owner_index, weakref.ref(storage), arrays.layout_of(array, root)))
    given = tuple(_given(each, will_stay) for each in inputs)
    recipe = Recipe(call.label, prototype, given, tuple(products), call.peak_bytes)
    for each in recipe.moved():
        each.storage.read_by(recipe)
        each.storage.watch()
    return recipe


def _given(variable: Any, will_stay: Callable[[Storage], bool]) -> Moved | Fixed:
    storage = find(array_of(variable))
    if storage is not None and will_stay(storage):
        is_open = storage.is_held_elsewhere()
        if not is_open:
            storage.enclose()
        array = array_of(variable)
        if is_open and array.nbytes <= COPIED_BYTES:
            return Fixed(array.copy(order='K'), None)
        checksum = arrays.checksum(array) if is_open else None
        return Moved(storage, arrays.layout_of(array, arrays.root_of(array)), checksum)
    array = array_of(variable)
    if array.nbytes <= COPIED_BYTES:
        return Fixed(array.copy(order='K'), None)
    return Fixed(array, arrays.checksum(array))


def _unchanged(array: Any, checksum: int | None) -> Any:
    if checksum is not None and arrays.checksum(array) != checksum:
        raise LostMapError(
            f'a feature map has to be recomputed from an array of {array.nbytes} bytes, shape {array.shape}, that has '
            'changed since, such as a parameter after an update or a batch that was written to; the next iteration '
            "plans for this use. To go on now use policy 'swap-all', which keeps a copy of every map")
    return array


def _same_random(before: Any, after: Any) -> bool:
    return bool(before['state'].keys() == after['state'].keys() and all(
        np.array_equal(before['state'][key], after['state'][key]) for key in before['state'])
        and before.get('gauss') == after.get('gauss') and before.get('has_gauss') == after.get('has_gauss'))


def _is_trusted(owner: Any) -> bool:
    declared = getattr(type(owner), 'ooc_recompute', None)
    return bool(declared) if declared is not None else type(owner).__module__.startswith('chainer.')


def _check_random(function: Any, repeats_random: bool) -> None:
    if not _may_draw(function):
        return
    if not repeats_random and any(type(each).__module__ in _DRAWING_MODULES for each in owners_of(function)):
        raise UnrepeatableError(f'{type(function).__name__} draws from a stream that cannot be set back')
    if _has_other_threads():
        raise UnrepeatableError(f'{type(function).__name__} draws from a stream that another thread may draw from')
    present = vars(np.random)
    for name, value in _DRAWING.items():
        if present.get(name) is not value:
            raise UnrepeatableError(f'numpy.random.{name} is replaced')


def _may_draw(function: Any) -> bool:
    """Whether a function may draw random numbers: of Chainer's own, it is known which do."""
    modules = [type(each).__module__ for each in owners_of(function)]
    return any(each in _DRAWING_MODULES or not each.startswith('chainer.') for each in modules)


def _has_other_threads() -> bool:
    """Whether the program has threads, such as those that load data, which share NumPy's random stream."""
    return any(each is not threading.current_thread() and not each.name.startswith('chainer_ooc')
               for each in threading.enumerate())


def _attributes_of(function: Any) -> tuple[dict[str, Any], ...]:
    owners = owners_of(function)
    for owner in owners:
        if not _is_trusted(owner):
            raise UnrepeatableError(f'{type(owner).__name__} has not said ooc_recompute = True')
    return tuple(_copied_attributes(each) for each in owners)


def _copied_attributes(owner: Any) -> dict[str, Any]:
    taken = {}
    for name, value in owner.__dict__.items():
        if name not in ('_function', '_node', '_owned_node', '_weak_function', '_local_function_hooks', 'stack'):
            taken[name] = _copied(value)
    return taken


def _copied(value: Any) -> Any:
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return copy.deepcopy(value)
    if isinstance(value, _PLAIN):
        return value
    if arrays.is_array(value) and not value.dtype.hasobject and value.nbytes <= COPIED_BYTES:
        return value.copy(order='K')
    if type(value) in (tuple, list, set, frozenset):
        return type(value)(map(_copied, value))
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    if callable(value) and getattr(value, '__module__', '').startswith('chainer.') and hasattr(value, '__qualname__'):
        return value
    raise UnrepeatableError(f'an attribute is a {type(value).__name__}, which cannot be copied')


def _revive(prototype: Prototype) -> list[Any]:
    owners = []
    for kind, attributes in zip(prototype.kinds, prototype.attributes, strict=True):
        owner: Any = object.__new__(kind)
        owner.__dict__.update({name: _copied(value) for name, value in attributes.items()})
        owners.append(owner)
    if len(owners) == 2:
        owners[0]._function = owners[1]
        owners[1]._node = weakref.ref(owners[0])
    return owners


@contextlib.contextmanager
def _surroundings(prototype: Prototype) -> Iterator[None]:
    import chainer

    entries, random = vars(chainer.config._local), None
    saved = entries.copy()
    if prototype.random is not None:
        random = np.random.get_state(legacy=False)
        np.random.set_state(prototype.random)
    try:
        entries.clear()
        entries.update(prototype.configuration)
        with warnings.catch_warnings(), np.errstate(all='ignore'):
            warnings.simplefilter('ignore')  # the first run has given them
            yield
    finally:
        entries.clear()
        entries.update(saved)
        if random is not None:
            np.random.set_state(random)
