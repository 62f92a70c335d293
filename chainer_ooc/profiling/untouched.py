"""What an iteration of a training changes, kept before it and put back afterwards.

    changed by an iteration                       | put back
    parameters, gradients, running statistics     | the same arrays, with the contents that they had
    parameters without an array until first used  | they have none again
    attributes of links, such as an LSTM's state  | the objects that they were
    optimizers, their state and hyperparameters   | both
    the updater, and the position of its data     | both
    random numbers                                | of NumPy, Python, and of generators that a link has

Python objects are kept one level deep: which attributes there are, and what is in their lists, sets and dicts. Contents
are kept of arrays alone, in the memory of the host. Left out: what a program reaches past its links and optimizers,
such as globals and files, and CuPy's random numbers, whose state cannot be read.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from chainer_ooc.backends.arrays import is_array

_CONTAINERS = (list, set, dict, OrderedDict)


@contextlib.contextmanager
def untouched(roots: Iterable[Any]) -> Iterator[None]:
    """Puts back afterwards what these objects, and the random numbers, were.

    Args:
        roots: links, optimizers and updaters, with all that belongs to them.

    Raises:
        MemoryError: there is too little memory for copies of the arrays.
    """
    kept = _Kept()
    for each in roots:
        kept.keep(each)
    streams = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        np.random.set_state(streams[0])
        random.setstate(streams[1])
        kept.put_back()


@contextlib.contextmanager
def rewound(updater: Any) -> Iterator[None]:
    """Puts an updater's iterators back afterwards to where they stood.

    One that defines how it is copied, since it has processes of its own, is replaced by a copy for the time. What else
    an iterator draws from, such as a generator or an open file, goes on.
    """
    import chainer

    with contextlib.ExitStack() as stack:
        for where in (vars(updater), *(each for each in vars(updater).values() if isinstance(each, dict))):
            for name, each in list(where.items()):
                if isinstance(each, chainer.dataset.Iterator):
                    stack.enter_context(_replaced(where, name) if hasattr(type(each), '__copy__') else _reset(each))
        yield


@contextlib.contextmanager
def _replaced(where: dict[str, Any], name: str) -> Iterator[None]:
    iterator, where[name] = where[name], copy.copy(where[name])
    try:
        yield
    finally:
        where[name].finalize()
        where[name] = iterator


@contextlib.contextmanager
def _reset(iterator: Any) -> Iterator[None]:
    before = dict(vars(iterator))
    if hasattr(iterator, 'order_sampler'):  # it may have random numbers of its own
        iterator.order_sampler = copy.deepcopy(iterator.order_sampler)
    try:
        yield
    finally:
        if before.get('_pool', iterator) is None:  # the threads of a MultithreadIterator that nobody has asked yet
            iterator.finalize()
        vars(iterator).clear()
        vars(iterator).update(before)


def links_of(found: Any) -> list[Any]:
    """The links that an object is, has as an attribute or in a list or dict of these, or names if it is a function."""
    import chainer

    reached = [found, *_held(found)]
    reached += [inner for each in reached for inner in _named_by(each)]
    return list(dict.fromkeys(each for each in reached if isinstance(each, chainer.Link)))


class _Kept:
    """Objects and arrays as they were."""

    def __init__(self) -> None:
        self._attributes: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._arrays: dict[int, tuple[Any, Any]] = {}
        self._streams: list[Callable[[], None]] = []

    def keep(self, root: Any) -> None:
        """Keeps a link, optimizer or updater, with all that belongs to it."""
        import chainer

        if isinstance(root, chainer.Link):
            for link in root.links():
                self._keep_object(link)
            for parameter in root.params():
                self._keep_parameter(parameter)
            return
        self._keep_object(root)
        if isinstance(root, chainer.Optimizer):
            self._keep_object(getattr(root, 'hyperparam', None))

    def _keep_parameter(self, parameter: Any) -> None:
        self._keep_object(parameter)
        self._keep_object(parameter.node)
        rule = parameter.update_rule
        if rule is not None:
            self._keep_object(rule)
            self._keep_object(rule.hyperparam)
            copied = getattr(rule, '_fp32_param', None)  # of a parameter of float16
            self._keep_array(None if copied is None else copied.array)

    def _keep_object(self, each: Any) -> None:
        if each is None or id(each) in self._attributes:
            return
        self._attributes[id(each)] = each, dict(vars(each))
        for value in vars(each).values():
            self._keep_value(value)
            if type(value) in _CONTAINERS:
                self._containers[id(value)] = value, copy.copy(value)
                for inner in value.values() if isinstance(value, dict) else value:
                    self._keep_value(inner)

    def _keep_value(self, value: Any) -> None:
        if isinstance(value, np.random.RandomState):
            state = value.get_state()
            self._streams.append(lambda: value.set_state(state))
        elif isinstance(value, np.random.Generator):
            generator, bits = value.bit_generator, copy.deepcopy(value.bit_generator.state)
            self._streams.append(lambda: setattr(generator, 'state', bits))
        else:
            self._keep_array(value)

    def _keep_array(self, array: Any) -> None:
        import chainer

        if is_array(array) and id(array) not in self._arrays:
            there = chainer.get_device('@numpy').send(array)
            self._arrays[id(array)] = array, there.copy() if there is array else there

    def put_back(self) -> None:
        """Has everything as it was."""
        import chainer

        for each, attributes in self._attributes.values():
            vars(each).clear()
            vars(each).update(attributes)
        for container, content in self._containers.values():
            _refill(container, content)
        for put_back in self._streams:
            put_back()
        for array, content in self._arrays.values():
            if getattr(array.flags, 'writeable', True):  # what cannot be written to was not
                array[...] = chainer.backend.get_device_from_array(array).send(content)


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
    else:
        container.clear()
        container.update(content)


def _held(found: Any) -> list[Any]:
    held = list(getattr(found, '__dict__', {}).values())
    inner = [each.values() if isinstance(each, dict) else each for each in held if type(each) in _CONTAINERS]
    return [*held, *(each for values in inner for each in values)]


def _named_by(found: Any) -> list[Any]:
    """What a function's code names, what a method is of, and what a partial function was given."""
    if isinstance(found, functools.partial):
        return [*found.args, *found.keywords.values(), *_named_by(found.func)]
    function, owner = getattr(found, '__func__', found), getattr(found, '__self__', None)
    named: list[Any] = [] if owner is None else [owner]
    with contextlib.suppress(TypeError, ValueError):  # no function, or one that names what is not there yet
        names = inspect.getclosurevars(function)
        named += [*names.nonlocals.values(), *names.globals.values()]
    return named
