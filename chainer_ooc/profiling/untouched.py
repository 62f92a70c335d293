"""What an iteration of a training changes, kept before it and put back afterwards.

    changed by an iteration                       | put back
    parameters, gradients, running statistics     | the same arrays, with the contents that they had
    attributes, items of containers               | the objects that they were
    a graph that `unchain` has cut                | creators of nodes, inputs and outputs of functions
    random numbers                                | of NumPy, Python, and of all generators that are reached
    iterators of data                             | all of this, after each iteration: the next has the same batch

This is so of whatever a training reaches (`reach`). Arrays are copied in the memory of the host. Of those that only
iterators, functions and graphs hold, data sets among them, 16 MiB are copied; of the others a checksum tells whether
they have changed, which is then an error. Left out: CuPy's random numbers, whose state cannot be read; the contents of
feature maps that are in far memory.
"""

from __future__ import annotations

import array
import contextlib
import copy
import functools
import random
import types
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from chainer_ooc.backends.arrays import flat_bytes
from chainer_ooc.errors import ProfileError
from chainer_ooc.profiling.reach import (
    Reached,
    has_contents,
    is_leaf,
    is_open,
    is_worker,
    items_of,
    reached,
    slots_of,
    vars_of,
    written,
)

#: So much is copied of arrays that are not a training's own, those of a data set for one.
LENT_BYTES = 1 << 24
#: So many of those that have changed are named.
_NAMED = 3
_MISSING = object()
_STREAMS = np.random.RandomState, np.random.BitGenerator, np.random.SeedSequence, random.Random


@contextlib.contextmanager
def untouched(roots: dict[str, Any], is_kept: bool = True,
              ) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Puts back afterwards what these objects, all that they reach, and the random numbers were.

    Gives what each iteration runs within, so that the next one draws the same batch.

    Args:
        roots: links, optimizers, updaters, functions, arrays, by what messages call them.
        is_kept: put back what is the training's own too; else it stays as the iterations leave it, and no copies of
            its arrays are made.

    Raises:
        MemoryError: there is too little memory for copies of the arrays.
        ProfileError: something has changed that could not be put back; all else was.
    """
    first = [Reached(each, ((), name), True) for name, each in roots.items()]
    aside: list[Reached] = []
    for _ in reached(first, {}, aside):
        pass  # which iterators there are tells what the data sets are
    data = {id(getattr(each.value, 'dataset', None)) for each in aside} - {id(None)}
    seen: dict[int, Any] = {}
    aside.clear()
    own = _Kept(reached(first, seen, aside, data), is_kept)
    lent = _Kept(reached([each._replace(is_owned=False) for each in aside], seen))
    streams = np.random.get_state(), random.getstate()
    try:
        yield functools.partial(_rewound, own, lent)
    finally:
        lent.put_back()
        if is_kept:
            own.put_back()
        np.random.set_state(streams[0])
        random.setstate(streams[1])
        _expect_none([*own.changed(), *lent.changed()], {**own.failures, **lent.failures})


@contextlib.contextmanager
def _rewound(own: _Kept, lent: _Kept) -> Iterator[None]:
    """Puts what iterators reach back afterwards; those with processes are replaced by copies for the time."""
    copies: dict[int, Any] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(lent.put_back)
        for each in lent.idle:
            stack.callback(_end_threads, each)
        for where, key in [*own.workers, *lent.workers]:
            worker = where[key]
            if id(worker) not in copies:
                copies[id(worker)] = _copied(worker)
                stack.callback(copies[id(worker)].finalize)
            stack.callback(where.__setitem__, key, worker)
            where[key] = copies[id(worker)]
        yield


def _copied(worker: Any) -> Any:
    """A copy of an iterator with processes. What draws its orders is copied too, as both draw ahead, in threads."""
    sampler = getattr(worker, 'order_sampler', None)
    if sampler is None:
        return copy.copy(worker)
    try:
        worker.order_sampler = copy.deepcopy(sampler)
        return copy.copy(worker)
    finally:
        worker.order_sampler = sampler


def _end_threads(iterator: Any) -> None:
    if iterator._pool is not None:
        iterator.finalize()


def _expect_none(changed: list[str], failures: dict[tuple[Any, ...], Exception]) -> None:
    for path, error in failures.items():
        raise ProfileError(
            f'two iterations have changed {written(path)} in a way that cannot be undone ({error}); the rest is as it '
            'was; profile a training that was made for it, and train another one') from error
    if changed:
        more = f' and {len(changed) - _NAMED} more' if len(changed) > _NAMED else ''
        raise ProfileError(
            f'two iterations have changed what is too large to be copied: {", ".join(changed[:_NAMED])}{more}; the '
            'rest is as it was; profile a training that was made for it, and train another one')


class _Sum(NamedTuple):
    """An array that is not copied.

    Attributes:
        find: gives the array, or None.
        number: its checksum.
        path: how it is reached.
    """

    find: Callable[[], Any]
    number: int
    path: tuple[Any, ...]


class _Kept:
    """Objects and arrays as they were.

    Attributes:
        workers: where iterators are that have processes of their own: a dict or list, and the key in it.
        idle: iterators with threads that nobody has asked for a batch yet.
        failures: what could not be put back, by its path, with the reason.
    """

    def __init__(self, found: Iterable[Reached], contents: bool = True) -> None:
        self.workers: list[tuple[Any, Any]] = []
        self.idle: list[Any] = []
        self.failures: dict[tuple[Any, ...], Exception] = {}
        self._put_back: list[tuple[tuple[Any, ...], list[Callable[[], None]]]] = []
        self._sums: list[_Sum] = []
        self._contents, self._left_bytes = contents, LENT_BYTES
        for each in found:
            self._actions: list[Callable[[], None]] = []
            self._keep(each)
            self._put_back.append((each.path, self._actions))

    def put_back(self) -> None:
        """Has everything as it was, contents aside that were not copied, and what is among the `failures`."""
        for path, actions in self._put_back:
            try:
                for action in actions:
                    action()
            except Exception as error:
                self.failures[path] = error

    def changed(self) -> list[str]:
        """What has other contents than it had."""
        return [written(each.path) for each in self._sums if each.number != _sum(each.find())]

    def _keep(self, each: Reached) -> None:
        import chainer

        value = each.value
        if has_contents(value):
            self._keep_contents(lambda: value, each)
        elif isinstance(value, _STREAMS):
            self._keep_stream(value)
        elif isinstance(value, types.CellType):
            self._keep_name(value, 'cell_contents')
        elif isinstance(value, chainer.FunctionNode):
            for name in ('inputs', 'outputs'):
                self._keep_name(value, name)
        elif isinstance(value, chainer.variable.VariableNode):
            moves = value.creator_node is not None or value._ooc is not None
            self._keep_dict(vars(value), ('_data', '_ooc') if moves else ())
        elif isinstance(value, chainer.Variable) and not is_leaf(value):
            self._keep_dict(vars(value), ('_data',))
            self._keep_contents(functools.partial(_shown, value), each._replace(is_owned=False))
        else:
            self._keep_items(value)
            if is_open(value):
                self._keep_attributes(value)

    def _keep_items(self, value: Any) -> None:
        if isinstance(value, dict):
            self._keep_dict(value)
        elif isinstance(value, list):
            self._keep_sequence(value, list)
            self.workers += [(value, index) for index, inner in enumerate(value) if is_worker(inner)]
        elif isinstance(value, deque):
            self._keep_sequence(value, deque)
        elif isinstance(value, set):
            self._keep_set(value)
        elif isinstance(value, (bytearray, array.array)):
            content: Any = value[:]
            self._actions.append(lambda: value.__setitem__(slice(None), content))

    def _keep_attributes(self, value: Any) -> None:
        attributes = vars_of(value)
        if attributes is not None:
            self._keep_dict(attributes)
            if attributes.get('_pool', value) is None:
                self.idle.append(value)
        for name in slots_of(value):
            self._keep_name(value, name)

    def _keep_dict(self, where: dict[Any, Any], but: tuple[str, ...] = ()) -> None:
        before = list(items_of(where))
        self._actions.append(functools.partial(_refill_dict, where, before, but))
        self.workers += [(where, key) for key, inner in before if is_worker(inner)]

    def _keep_sequence(self, where: Any, kind: Any) -> None:
        before = list(kind.__iter__(where))

        def put_back() -> None:
            if not _are(before, list(kind.__iter__(where))):
                kind.clear(where)
                kind.extend(where, before)
        self._actions.append(put_back)

    def _keep_set(self, where: set[Any]) -> None:
        before = set(where)

        def put_back() -> None:
            if before != where:
                set.clear(where)
                set.update(where, before)
        self._actions.append(put_back)

    def _keep_name(self, owner: Any, name: str) -> None:
        before = _get(owner, name)

        def put_back() -> None:
            now = _get(owner, name)
            if now is before:
                return
            if before is _MISSING:
                object.__delattr__(owner, name)
            else:
                object.__setattr__(owner, name, before)  # whatever its class says to that
        self._actions.append(put_back)

    def _keep_stream(self, stream: Any) -> None:
        if isinstance(stream, np.random.RandomState):
            state = stream.get_state(legacy=False)
            self._actions.append(lambda: stream.set_state(state))
        elif isinstance(stream, np.random.BitGenerator):
            bits = copy.deepcopy(stream.state)
            self._actions.append(lambda: setattr(stream, 'state', bits))
        elif isinstance(stream, np.random.SeedSequence):
            put: Any = stream
            seeds = put.__reduce__()[2]  # as pickle takes it; there is no other way to set it
            self._actions.append(lambda: put.__setstate__(seeds))
        elif not isinstance(stream, random.SystemRandom):  # which has no state
            numbers = stream.getstate()
            self._actions.append(lambda: stream.setstate(numbers))

    def _keep_contents(self, find: Callable[[], Any], each: Reached) -> None:
        import chainer

        found = find()
        if found is None or not getattr(found.flags, 'writeable', True):  # what cannot be written to does not change
            return
        if each.is_owned and not self._contents:
            return
        if not each.is_owned:
            if found.nbytes > self._left_bytes:
                self._sums.append(_Sum(find, _sum(found), each.path))
                return
            self._left_bytes -= found.nbytes
        shape, there = found.shape, chainer.get_device('@numpy').send(found)
        content = there.copy() if there is found else there

        def put_back() -> None:
            now = find()
            if now is not None:
                _open(now, shape)
                now[...] = chainer.backend.get_device_from_array(now).send(content)
        self._actions.append(put_back)


def _open(found: Any, shape: tuple[int, ...]) -> None:
    """Has an array take its contents again, which may have been resized, or made read-only, in place."""
    if found.shape != shape:
        found.resize(shape, refcheck=False)
    if not getattr(found.flags, 'writeable', True):
        found.flags.writeable = True


def _get(owner: Any, name: str) -> Any:
    try:
        return object.__getattribute__(owner, name)
    except (AttributeError, ValueError):  # an attribute, or a cell, that has nothing yet
        return _MISSING


def _are(before: list[Any], now: list[Any]) -> bool:
    """Whether they are the same objects."""
    return len(before) == len(now) and all(one is other for one, other in zip(before, now, strict=True))


def _refill_dict(where: dict[Any, Any], before: list[tuple[Any, Any]], but: tuple[str, ...]) -> None:
    """Puts items back, in the order that they had; those that the manager moves stay as they are."""
    now = list(items_of(where))
    stay = [item for item in now if item[0] in but] if but else []
    back = [item for item in before if item[0] not in but] if but else before
    if _are([part for item in (*back, *stay) for part in item], [part for item in now for part in item]):
        return
    kind: Any = OrderedDict if isinstance(where, OrderedDict) else dict
    kind.clear(where)
    for key, value in (*back, *stay):
        kind.__setitem__(where, key, value)


def _shown(variable: Any) -> Any:
    """The array of a Variable, if it is in near memory; looking does not bring it."""
    return list.__getitem__(vars(variable)['_data'], 0)


def _sum(found: Any) -> int:
    """A checksum of an array's content and of its order."""
    import chainer

    if found is None:
        return 0
    if found.dtype.hasobject:
        return 0  # its elements are followed
    there = np.asarray(chainer.get_device('@numpy').send(found))
    flat = flat_bytes(there)
    return zlib.crc32(np.ascontiguousarray(there).reshape(-1).view(np.uint8).data if flat is None else flat.data)
