"""What is known about functions: which may run twice, draw or write; and copies of them, which leave no trace (P7).

Before a function's first run a copy of it is made: its attributes as they were, arrays among them copied, so that a
second update of running statistics hits the copy only. The state of NumPy's random stream and Chainer's configuration
are set back for the second run.

`prepare` decides what may run again: Chainer's own functions whose attributes are plain values, and those of the
program whose class attribute ``ooc_recompute`` is True. False there, on any function, forbids it. A class that declares
True is checked, and runs again no more once one of its functions was found to write, or to give other values.

Source: torch.utils.checkpoint (random states).
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainer_ooc import config
from chainer_ooc.backends import arrays
from chainer_ooc.errors import LostMapError
from chainer_ooc.execute.other_threads import other_threads
from chainer_ooc.execute.storage.reentry import runs_functions
from chainer_ooc.execute.storage.slots import Array, array_of, owners_of
from chainer_ooc.problem import COPIED_BYTES

_PLAIN = (type(None), bool, int, float, complex, str, bytes, slice, range, type, type(Ellipsis), np.generic, np.dtype,
          np.random.RandomState, np.random.Generator)
#: Attributes that tie a function to a graph and to hooks.
_TIES = frozenset({'_function', '_node', '_owned_node', '_weak_function', '_local_function_hooks', 'stack'})
#: What a run leaves on a function, beside what it hides.
_LEFT = frozenset({'inputs', 'outputs', '_retained_output_data', '_input_indexes_to_retain',
                   '_output_indexes_to_retain', '_ooc', '_ooc_within'})
#: Modules of Chainer's functions that draw random numbers where their inputs are; held to its sources by a test.
_DRAWING_MODULES = frozenset(f'chainer.functions.{name}' for name in (
    'activation.rrelu', 'loss.negative_sampling', 'noise.dropout', 'noise.gaussian', 'noise.simplified_dropconnect',
    'noise.zoneout'))
#: Modules of Chainer's functions that write, in backward, to arrays that they hide; held to its sources by a test.
_WRITING_MODULES = frozenset({'chainer.functions.loss.ctc', 'chainer.functions.loss.hinge'})
#: Modules of Chainer's functions that read the memory around their inputs, which another run may not find there.
_STRAYING_MODULES = frozenset({'chainer.functions.array.as_strided'})
#: What functions have that communicate with other processes: communicators, and what uses them.
_COMMUNICATING_PACKAGES = frozenset({'chainermn', 'mpi4py'})
#: NumPy's own random functions. What replaces one, as in tests, draws from a state that cannot be set back.
_DRAWING = {name: value for name, value in vars(np.random).items() if callable(value)}
#: Types of the program's that declare that they may run again and were checked, with whether that was found to be true.
believed: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


class _UncopiedError(Exception):
    """A function has an attribute that cannot be copied."""


@dataclass
class Prototype:
    """A function as it was before its first run, and what surrounded it.

    Attributes:
        owners: type and attributes of the function, and of the old-style function that it adapts, if it does.
        configuration: chainer.config's entries in this thread.
        random: state of NumPy's random stream before the first run, or None if that drew nothing.
        random_after: its state after that run.
    """

    owners: tuple[tuple[type, dict[str, Any]], ...]
    configuration: dict[str, Any]
    random: dict[str, Any] | None = None
    random_after: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """The class of the function, see `registration.name_of`."""
        return self.owners[-1][0].__name__

    @property
    def declared(self) -> list[type]:
        """See `declared_types`."""
        return [kind for kind, _ in self.owners if _is_own(kind)]

    def complete(self, function: Any) -> None:
        """Adds what is only known after the first run."""
        self.owners[0][1]['_input_layouts'] = function._input_layouts
        if self.random is not None:
            self.random_after = np.random.get_state(legacy=False)
            if _same_random(self.random, self.random_after):
                self.random = None

    @runs_functions
    def run(self, inputs: Sequence[Array]) -> tuple[tuple[Array, ...], dict[str, Any]]:
        """Runs a fresh copy of the function; gives its outputs, and its attributes after the run.

        Raises:
            LostMapError: it drew other random numbers than at its first run.
        """
        owners = self._revived()
        with self._surroundings():
            outputs = owners[0].forward(tuple(inputs))
            if self.random is not None and not _same_random(np.random.get_state(legacy=False), self.random_after):
                raise LostMapError(
                    f'{self.name} drew other random numbers when it ran again, as another thread draws from '
                    "numpy.random too. To go on use policy 'swap-all', which keeps a copy of every map")
        return outputs, {name: value for owner in owners for name, value in owner.__dict__.items()}

    def _revived(self) -> list[Any]:
        owners = []
        for kind, attributes in self.owners:
            owner: Any = object.__new__(kind)
            owner.__dict__.update({name: _copied(value) for name, value in attributes.items()})
            owners.append(owner)
        if len(owners) == 2:
            owners[0]._function = owners[1]
            owners[1]._node = weakref.ref(owners[0])
        return owners

    @contextlib.contextmanager
    def _surroundings(self) -> Iterator[None]:
        import chainer

        entries, random = vars(chainer.config._local), None
        saved = entries.copy()
        if self.random is not None:
            random = np.random.get_state(legacy=False)
            np.random.set_state(self.random)
        try:
            entries.clear()
            entries.update(self.configuration)
            # The first run has given NumPy's warnings. Filters of `warnings` are those of all threads, and stay.
            with np.errstate(all='ignore'):
                yield
        finally:
            entries.clear()
            entries.update(saved)
            if random is not None:
                np.random.set_state(random)


def prepare(function: Any, inputs: Sequence[Any] = (), repeats_random: bool = True) -> Prototype | None:
    """Copies a function that is about to run; None if it must not run twice, or cannot be copied.

    `repeats_random`: whether the device may draw the same twice, see `Backend.repeats_random`.
    """
    if _runs_once(function) or not _draws_alike(function, repeats_random) or _shares_blocks(function, inputs):
        return None
    try:
        prototype = _copy_of(function, has_run=False)
    except _UncopiedError:
        return None
    prototype.random = np.random.get_state(legacy=False) if _may_draw(function) else None
    return prototype


def prepare_afterwards(function: Any) -> Prototype:
    """Copies a function that has run, without what the run has left on it.

    What cannot be copied is left out. Whether attributes changed in the run is not known: the result has to be checked.

    Raises:
        LostMapError: it must not run twice.
    """
    if _may_draw(function) or _runs_once(function):
        raise LostMapError(f'{type(function).__name__} {_why_once(function)}')
    return _copy_of(function, has_run=True)


def _why_once(function: Any) -> str:
    """Says why a function must not run twice."""
    if _is_of(function, _DRAWING_MODULES):
        return 'draws random numbers'
    if _communicates(function):
        return 'communicates with other processes'
    if _is_of(function, _STRAYING_MODULES):
        return 'reads the memory around its input'
    if declared_types(function):
        return 'may draw random numbers, and nobody has noted from which state'
    return 'is a function of the program, which may draw random numbers or have effects'


def is_managed(function: Any, inputs: Sequence[Any]) -> bool:
    """Whether a call belongs to a managed graph. All arrays of a static graph are held by its schedule."""
    import chainer

    for each in inputs:  # a comprehension would be a call more for each function
        if not isinstance(each, chainer.Variable) and not arrays.is_array(each):
            return False
    enable_backprop, schedule_func = config.entries('enable_backprop', 'schedule_func')
    return (enable_backprop and schedule_func is None
            and not (type(function).__name__ == 'GetItem' and _is_past_the_end(function.slices, inputs[0])))


def _is_past_the_end(slices: Sequence[Any], given: Any) -> bool:
    """Whether this is how Python finds the end of a Variable that a program iterates over: by an IndexError."""
    return len(slices) == 1 and type(slices[0]) is int and given.ndim > 0 and slices[0] == len(given)


def may_write_inputs(function: Any) -> bool:
    """Whether a function may write to its inputs: one of the program's that does not declare that it may run again."""
    kind = type(function)  # each call comes here, most of them with a function of Chainer's that adapts none
    if kind.__module__.startswith('chainer.') and '_function' not in function.__dict__:
        declared = getattr(kind, 'ooc_recompute', None)
        return declared is not None and not declared
    return not all(map(_is_trusted, owners_of(function)))


def declared_types(function: Any) -> list[type]:
    """Of a function's types those of the program's that declare that it may run again, and were not found wrong."""
    if type(function).__module__.startswith('chainer.') and '_function' not in function.__dict__:  # as most are
        return []
    return [type(each) for each in owners_of(function) if _is_own(type(each)) and _is_trusted(each)]


def believe(types: Iterable[type], is_true: bool) -> None:
    """Notes whether what such types declare was found to be true."""
    for kind in types:
        believed[kind] = is_true


def may_change_maps(function: Any) -> bool:
    """Whether a function of Chainer's writes to what it hides, or a hook of the program's may write to maps."""
    import chainer

    if _is_of(function, _WRITING_MODULES):
        return True
    common, own = chainer.get_function_hooks(), function._local_function_hooks
    return bool(common or own) and may_write([*common.values(), *(own or {}).values()])


def may_write(hooks: Iterable[Any]) -> bool:
    """Whether any hook is the program's own, which may write to the arrays that it is given."""
    return any(_is_own(type(each)) for each in hooks)


def _runs_once(function: Any) -> bool:
    """Whether a function must not run twice, whatever it draws."""
    return may_write_inputs(function) or _is_of(function, _STRAYING_MODULES) or _communicates(function)


def _communicates(function: Any) -> bool:
    """Whether a function has something of ChainerMN's or MPI's: in another run it would wait for other processes."""
    return any(type(each).__module__.partition('.')[0] in _COMMUNICATING_PACKAGES
               for owner in owners_of(function) for each in (owner, *owner.__dict__.values()))


def _is_of(function: Any, modules: frozenset[str]) -> bool:
    """Whether a function, or the old-style function that it adapts, is defined in one of these modules."""
    old_style = function.__dict__.get('_function')
    return type(function).__module__ in modules or (old_style is not None and type(old_style).__module__ in modules)


def _is_trusted(owner: Any) -> bool:
    declared = getattr(type(owner), 'ooc_recompute', None)
    if declared is None:
        return not _is_own(type(owner))
    return bool(declared) and believed.get(type(owner), True)


def _is_own(kind: type) -> bool:
    """Whether a type is the program's own."""
    return not kind.__module__.startswith('chainer.')


def _shares_blocks(function: Any, inputs: Sequence[Any]) -> bool:
    """Whether an array that a function has lies on one block with another, or with an input.

    Copies would lie apart: what the function writes to one would not be in the other, as a running mean that is its
    beta too, and NumPy multiplies a matrix by itself in another order than by one that is equal.
    """
    roots = [id(arrays.root_of(each)) for owner in owners_of(function) for each in _arrays_in(owner.__dict__)]
    return len({*roots}) < len(roots) or (
        bool(roots) and not {*roots}.isdisjoint(id(arrays.root_of(array_of(each))) for each in inputs))


def _arrays_in(value: Any) -> Iterator[Array]:
    if arrays.is_array(value):
        yield value
    elif type(value) in (tuple, list, set, frozenset, dict):
        for each in value.values() if type(value) is dict else value:
            yield from _arrays_in(each)


def _may_draw(function: Any) -> bool:
    """Whether a function may draw random numbers: one of the program's, or one of Chainer's that does."""
    return _is_of(function, _DRAWING_MODULES) or any(_is_own(type(each)) for each in owners_of(function))


def _draws_alike(function: Any, repeats_random: bool) -> bool:
    """Whether a function draws the same when it runs again: from a stream that can be set back.

    NumPy's is shared with all threads, such as those that load data, so no other may be there.
    """
    if not _may_draw(function):
        return True
    if not repeats_random and _is_of(function, _DRAWING_MODULES):
        return False
    return not other_threads() and all(vars(np.random).get(name) is value for name, value in _DRAWING.items())


def _same_random(before: Any, after: Any) -> bool:
    return bool(before['state'].keys() == after['state'].keys() and all(
        np.array_equal(before['state'][key], after['state'][key]) for key in before['state'])
        and before.get('gauss') == after.get('gauss') and before.get('has_gauss') == after.get('has_gauss'))


def _copy_of(function: Any, has_run: bool) -> Prototype:
    import chainer

    owners = tuple((type(each), _attributes_of(each, has_run)) for each in owners_of(function))
    configuration = {**vars(chainer.global_config), **vars(chainer.config._local), 'ooc': None, 'in_recomputing': True}
    return Prototype(owners, configuration)


def _attributes_of(owner: Any, has_run: bool) -> dict[str, Any]:
    taken = {}
    for name, value in owner.__dict__.items():
        if name not in _TIES and not (has_run and name in _LEFT):
            try:
                taken[name] = _copied(value)
            except _UncopiedError:
                if not has_run:
                    raise
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
    raise _UncopiedError(type(value).__name__)
