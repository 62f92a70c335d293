"""What objects of a program hold, followed from a few of them: each object once, the nearest first.

    followed                                                      | by
    links, optimizers, updaters, hooks, objects of the program's  | attributes, of __dict__ and of __slots__
    list, tuple, dict, set, deque and what derives from these     | items
    functions, methods, functools.partial                         | closure, defaults, the globals that they name
    a Variable and the graph behind it                            | nodes, gradients, functions' inputs and outputs
    arrays of objects                                             | elements

Left out: modules and classes; the inside of what belongs to NumPy, CuPy or the standard library, such as threads,
locks, queues, generators, files and buffers, thread-local and context variables, caches of `functools`, `ctypes`;
iterators with processes of their own, recognized by their `__copy__`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chainer_ooc.backends.arrays import is_array

Names = Iterator[tuple[str, Any]]

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_SEQUENCES = (list, tuple, set, frozenset, deque)
#: Libraries whose objects are their own affair; some modules of the standard library have what holds a program's data.
_CLOSED = (sys.stdlib_module_names | {'numpy', 'cupy', 'cupyx', 'chainerx', 'chainer_ooc', 'mpi4py'}) - {
    'abc', 'argparse', 'builtins', 'collections', 'contextlib', 'enum', 'functools', 'types', 'typing', 'weakref'}
_RUNNING = {'threading', 'multiprocessing'}


class Reached(NamedTuple):
    """An object on the way.

    Attributes:
        value: the object.
        path: how it was come to, as a pair of the path before and a name; `written` writes it out.
        is_owned: a link, an optimizer, a leaf Variable or a root has it; else an iterator, a function or a graph.
    """

    value: Any
    path: tuple[Any, ...]
    is_owned: bool


def reached(roots: Iterable[Reached], seen: dict[int, Any], aside: list[Reached] | None = None,
            data: Container[int] = ()) -> Iterator[Reached]:
    """All that some objects reach, and these themselves, numbers and texts aside.

    Args:
        roots: where to begin.
        seen: by id, what was reached before; is filled.
        aside: gets iterators and data sets, which are not followed then; None to follow them too.
        data: ids of the data sets.
    """
    import chainer

    waiting = deque(roots)
    while waiting:
        each = waiting.popleft()
        value = each.value
        if id(value) in seen or is_plain(value) or is_worker(value):
            continue
        if aside is not None and (id(value) in data or is_iterator(value)):
            aside.append(each)
            continue
        seen[id(value)] = value
        yield each
        is_owned = isinstance(value, (chainer.Link, chainer.Optimizer)) or is_leaf(value) or (
            each.is_owned and not isinstance(value, (types.FunctionType, chainer.variable.VariableNode)))
        waiting.extend(Reached(inner, (each.path, name), is_owned) for name, inner in held_by(value)
                       if not is_plain(inner))


def links_of(program: Any) -> list[Any]:
    """The links that an object reaches."""
    import chainer

    found = reached([Reached(program, (), True)], {})
    return [each.value for each in found if isinstance(each.value, chainer.Link)]


def written(path: tuple[Any, ...]) -> str:
    """How a path is written in Python: ``updater._iterators['main'].order``."""
    names = []
    while path:
        path, name = path
        names.append(name)
    return ''.join(reversed(names))


def held_by(value: Any) -> Names:
    """What an object holds itself, each with its part of a path."""
    import chainer

    if isinstance(value, chainer.variable.VariableNode):
        yield from (('.creator_node', value.creator_node), ('.variable', value.get_variable_or_none()))
    elif isinstance(value, chainer.FunctionNode):
        yield from (('.inputs', value.inputs), ('.outputs', tuple(output() for output in value.outputs or ())))
    else:
        yield from _items(value)
        if is_open(value):
            yield from _attributes(value)


def _items(value: Any) -> Names:
    """What is in a container, or stands behind something that is called."""
    if isinstance(value, dict):
        for key, inner in items_of(value):
            yield from ((f'[{key!r}]' if is_plain(key) else '[...]', inner), ('.key', key))
    elif isinstance(value, _SEQUENCES):
        yield from ((f'[{index}]', inner) for index, inner in enumerate(value))
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        yield from (('.__self__', value.__self__), ('.__func__', getattr(value, '__func__', None)))
    elif isinstance(value, functools.partial):
        yield from (('.func', value.func), ('.args', value.args), ('.keywords', value.keywords))
    elif isinstance(value, types.CellType):
        yield from _of_cell(value)
    elif isinstance(value, memoryview):
        yield '.obj', value.obj
    elif isinstance(value, np.random.Generator):
        yield '.bit_generator', value.bit_generator
    elif isinstance(value, np.random.BitGenerator):
        yield '.seed_seq', getattr(value, 'seed_seq', None)  # since NumPy 1.25
    elif has_contents(value) and value.dtype.hasobject:
        yield from ((f'.flat[{index}]', inner) for index, inner in enumerate(value.flat))
    elif isinstance(value, np.ndarray) and not value.flags.writeable:
        yield '.base', value.base  # which may be written to


def _attributes(value: Any) -> Names:
    import chainer

    moves = isinstance(value, chainer.Variable) and not is_leaf(value)
    for name, inner in (vars_of(value) or {}).items():
        if not (moves and name == '_data'):
            yield f'.{name}', inner
    for name in slots_of(value):
        with contextlib.suppress(AttributeError):  # nothing there yet
            yield f'.{name}', object.__getattribute__(value, name)


def items_of(value: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """Keys and values, in the order that a class has which derives from these."""
    return (OrderedDict if isinstance(value, OrderedDict) else dict).items(value)


def is_plain(value: Any) -> bool:
    """Whether it can neither change nor hold what can; pairs of such are what a data set has millions of."""
    return type(value) in _PLAIN or isinstance(value, np.generic) or (
        type(value) is tuple and all(map(is_plain, value)))


def has_contents(value: Any) -> bool:
    """Whether it is an array, of NumPy, of a class that derives from NumPy's, or of CuPy."""
    return isinstance(value, np.ndarray) or is_array(value)


def is_iterator(value: Any) -> bool:
    """Whether it gives batches: an iterator of Chainer's or of the program's own."""
    import chainer

    return isinstance(value, chainer.dataset.Iterator) or (hasattr(type(value), '__next__') and is_open(value))


def is_worker(value: Any) -> bool:
    """Whether it is an iterator that defines how it is copied, since it has processes of its own."""
    import chainer

    return isinstance(value, chainer.dataset.Iterator) and hasattr(type(value), '__copy__')


def is_leaf(value: Any) -> bool:
    """Whether it is a Variable that no function has made, a parameter among these, and no feature map that moves."""
    import chainer

    return isinstance(value, chainer.Variable) and value.creator_node is None and type(vars(value)['_data']) is list


def is_open(value: Any) -> bool:
    """Whether its attributes are those of a program, or of a library that programs are written with."""
    kind = type(value)
    return not isinstance(value, (type, types.ModuleType, BaseException)) and _is_open_class(
        str(kind.__module__), kind.__mro__)


@functools.cache
def _is_open_class(module: str, bases: tuple[Any, ...]) -> bool:
    return _root(module) not in _CLOSED and _RUNNING.isdisjoint(_root(str(base.__module__)) for base in bases)


def _root(module: str) -> str:
    return module.partition('.')[0]


def vars_of(value: Any) -> dict[str, Any] | None:
    """The attributes themselves; None for what has none."""
    found = getattr(value, '__dict__', None)
    return found if isinstance(found, dict) else None


def slots_of(value: Any) -> list[str]:
    """The names that `__slots__` of its class has."""
    return [member.__name__ for kind in type(value).__mro__ if '__slots__' in vars(kind)
            for member in vars(kind).values() if isinstance(member, types.MemberDescriptorType)]


def _of_function(function: types.FunctionType) -> Names:
    """Its closure and defaults; the globals that the code of the program's own names."""
    yield from ((f'.{name}', inner) for name, inner in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True))
    yield from (('.__defaults__', function.__defaults__), ('.__kwdefaults__', function.__kwdefaults__))
    root, installed = _root(str(function.__module__)), {'site-packages', 'dist-packages'}
    if root not in _CLOSED and root != 'chainer' and installed.isdisjoint(Path(function.__code__.co_filename).parts):
        for name in dict.fromkeys(_names(function.__code__)):
            if name in function.__globals__:
                yield f'.{name}', function.__globals__[name]


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _of_cell(cell: types.CellType) -> Names:
    try:
        yield '', cell.cell_contents
    except ValueError:  # empty yet
        return
