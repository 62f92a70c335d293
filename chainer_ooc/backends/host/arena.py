"""Memory of NumPy's arrays from one pool of pages, which stay with the process as long as it trains.

What NumPy frees, the C library gives back to the system if it is large, and the system has to make and clear its pages
again for the next array: a quarter of an iteration of ResNet50. Kept in the C library's heap, arrays of different sizes
leave holes between each other. Here free pages are moved together (mremap) where no gap is large enough, which clears
nothing. So all free pages serve every array, and the pool holds no more than the most that was in use at once.
`keep_at_most` gives them back. Where memory is limited all can be had by others between iterations (`rest`): in a
container the kernel takes them when it lacks some (MADV_FREE), within iterations what is free at their edges until an
array is made of it (`offer`); behind a limit of the process they go back.

    NumPy: empty(n)  ->  handler (NEP 49, in C: _arena.c)  ->  free pages, and fresh ones for what they lack

The handler is set in each thread that trains, while it does; an array frees its memory through the handler that gave
it, whenever that is. Arrays of less than 256 KiB come from the C library as before.

Where the system refuses an array of such a thread, `ask` says who makes room for it, as for an array of a GPU: training
evicts, and the array is tried again. A limit of the system counts much that no account does (holes of the heap, buffers
of libraries), so that this comes in the midst of computations.

It has to be C: an array may be freed while an exception is on its way, when no code of Python can run. Where there was
no compiler as the package was built, `available` says so, and the blocks of swap-ins are new ones (`block`).

Left out: systems without mremap, pages of over 16 KiB, Python without its lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from chainer_ooc import extension
from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.host.groups import Group
from chainer_ooc.backends.layout import GAP_BYTES
from chainer_ooc.backends.owned import RoomMakers

_SET_HANDLER, _GET_HANDLER = 304, 305  # in the table of NumPy's C API
_LARGEST_PAGE_BYTES = 16 << 10
_SLACK_BYTES = 256 << 10  # what is not worth a call of the system: blocks are whole grains, which no account knows

#: Backends that are open: while there is one, freed pages are kept.
_open: set[int] = set()

#: Of these, those that are between two iterations, where a limit is in force: for them none is, or it is offered.
_resting: set[int] = set()

#: Who makes room for a thread's arrays.
_asked: RoomMakers[Callable[[int], bool]] = RoomMakers()

#: The threads whose arrays just fail for now.
_alone: set[int] = set()

#: What was raised meanwhile, by the system's number of the thread, which no later one gets soon: no exception passes
#: through NumPy, whose array fails instead. The main thread raises it when it runs code of Python's again, others when
#: their computation ends.
PENDING: dict[int, BaseException] = {}


def available() -> str | None:
    """Returns None if there is an arena, or a sentence that says why there is none."""
    found = _library()
    return found if isinstance(found, str) else None


def library() -> ctypes.PyDLL:
    """The compiled part; there is one (`available`)."""
    found = _library()
    assert not isinstance(found, str), found
    return found


def is_asked() -> bool:
    """Whether anybody makes room for arrays of any thread."""
    return bool(_asked)


def raise_pending() -> None:
    """Raises in this thread what was raised while room was made for one of its arrays."""
    if (error := PENDING.pop(threading.get_native_id(), None)) is not None:
        raise error


class Arena:
    """The pool as one backend uses it. There is one pool in a process, for all of them.

    Attributes:
        nbytes: gives the bytes that are free and kept for the next arrays; the library's own function, as each
            computation asks several times.
    """

    def __init__(self) -> None:
        self._is_limited = self._offers = False
        self._library = library()
        self.nbytes: Callable[[], int] = self._library.arena_unused_bytes

    def begin(self) -> None:
        """Has the arrays of this thread come from the pool, unless the program has set a handler of its own."""
        _open.add(id(self))
        self._go_on()
        if _has_default_handler():
            _handlers().set(_ours())

    def close(self) -> None:
        """Undoes `begin`; gives all free pages back with the last backend."""
        self.ask(None)
        _open.discard(id(self))
        self._go_on()
        if not _open:
            self.contain(())
            if self.serves():
                _handlers().set_default(None)

    def allocate(self, nbytes: int) -> ByteArray:
        """Returns `nbytes` of near memory with any content.

        Raises:
            MemoryError: the system refuses.
        """
        before = _handlers().set(_ours())
        thread = threading.get_ident()
        was_alone = thread in _alone
        try:  # before anything changes, or an interrupt would leave the thread alone for ever
            _alone.add(thread)
            return np.empty(nbytes, np.uint8)
        finally:
            if not was_alone:
                _alone.discard(thread)
            _handlers().set(before)

    def ask(self, make_room: Callable[[int], bool] | None) -> None:
        """Sets who makes room for the arrays of the calling thread; None: this pool asks nobody.

        Args:
            make_room: called with the bytes of an array that the system refuses, within the computation that makes it,
                and again for it as long as it returns True. What it allocates itself fails at once. What it raises,
                `raise_pending` raises.
        """
        _asked.set(self, make_room)

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Has the calling thread be served for a while as the one that has called `begin` and `ask`."""
        before = _handlers().set(_ours()) if _has_default_handler() else None
        try:
            with _asked.lent(self):
                yield
        finally:
            if before is not None:
                _handlers().set(before)

    def set_limited(self, yes: bool, offers: bool) -> None:
        """Sets whether a limit of the system is in force, which counts what the C library holds free.

        Then that serves arrays before fresh pages do, arrays leave something for what is no array, and free pages give
        way to objects of Python's that are refused. With `offers` the limit is that of pages, which the kernel takes.
        """
        self._is_limited, self._offers = yes, offers
        self._library.arena_set_limited(yes)
        self._go_on()
        self._library.arena_drop_taken()
        self.offer()
        if yes:
            self._library.contained_watch_objects()

    def offer(self) -> None:
        """Has others have the pages that are free now, until arrays are made of them, where a container is in force."""
        if self._is_limited and self._offers:
            self._library.arena_offer()

    def rest(self) -> None:
        """Has others have the freed pages until the next iteration (`set_limited`), where a limit is in force.

        They go back at once, or stay where the kernel can take them.
        """
        if self._is_limited:
            _resting.add(id(self))
            self._set_keeping()

    def _go_on(self) -> None:
        _resting.discard(id(self))
        self._set_keeping()

    def _set_keeping(self) -> None:
        offers = self._offers and bool(_open) and _open <= _resting
        if not (keeps := offers or bool(_open - _resting)):
            self._library.arena_keep(False)
        if offers:
            self._library.arena_offer()
        self._library.arena_set_offering(offers)
        self._library.arena_keep(keeps)

    def contain(self, groups: Sequence[Group], ranks: int = 1, aside_bytes: int = 0) -> None:
        """Has the pool ask these before it takes fresh pages, for all arrays; and give way to Python's large objects.

        Args:
            groups: all of them have to leave what is asked for.
            ranks: that share what is left.
            aside_bytes: of a rank's part, what is not for arrays.
        """
        self._library.contained_by_none(ranks, aside_bytes)
        if groups:
            self._library.contained_watch_objects()
        for each in groups:
            fields = (ctypes.c_char_p * 6)(*(name.encode() for name in (
                *each.version.clean_and_dirty, *each.version.dirty, each.version.cache, each.version.fixed)))
            self._library.contained_by(ctypes.c_longlong(each.limit_bytes), os.fsencode(each.used_path),
                                       os.fsencode(each.stat_path), fields)

    def serves(self) -> bool:
        """Whether the arrays of the calling thread come from the pool, and ask as `contain` says."""
        return _handlers().get() is _ours()

    def keep_at_most(self, nbytes: int) -> None:
        """Gives the rest back to the system, or leaves less than the smallest block of it."""
        if self.nbytes() > nbytes + (_SLACK_BYTES if nbytes else 0):
            self._library.arena_keep_at_most(nbytes)


class _Handlers:
    """NumPy's functions that say which handler new arrays of this thread use."""

    def __init__(self) -> None:
        self.pointer_of = pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_void_p)
        table = (ctypes.c_void_p * (_GET_HANDLER + 1)).from_address(pointer_of(_multiarray()._ARRAY_API, None))
        self.get: Callable[[], Any] = ctypes.PYFUNCTYPE(ctypes.py_object)(table[_GET_HANDLER] or 0)
        self.set: Callable[[Any], Any] = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER] or 0)
        self.set_default: Callable[[None], Any] = ctypes.PYFUNCTYPE(
            ctypes.py_object, ctypes.c_void_p)(table[_SET_HANDLER] or 0)


@functools.cache
def _handlers() -> _Handlers:
    return _Handlers()


def watch_numpys_own() -> None:
    """Has NumPy's own handler tell the library what it frees before it does, from now on, if it is of this version."""
    handlers = _handlers()
    before = handlers.set_default(None)
    try:
        address = handlers.pointer_of(handlers.get(), _capsule_name())
    finally:
        handlers.set(before)
    library().arena_watch.argtypes = (ctypes.c_void_p,)
    library().arena_watch(address)


def _has_default_handler() -> bool:
    return bool(_multiarray().get_handler_name() == 'default_allocator')


def _multiarray() -> Any:
    """NumPy's module that has these functions; its name changed with version 2."""
    core = 'numpy.core' if np.__version__.startswith('1.') else 'numpy._core'
    return importlib.import_module(f'{core}.multiarray')


@functools.cache
def _ours() -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return make(ctypes.addressof(ctypes.c_char.in_dll(library(), 'arena_handler')), _capsule_name(), None)


def _capsule_name() -> int:
    """Where it stands: a capsule keeps the address alone, and lives longer than this module."""
    return ctypes.addressof(ctypes.c_char.in_dll(library(), 'arena_capsule_name'))


def _make_room(nbytes: int) -> bool:
    """Called by the handler, by which an array may be made anywhere; whether there is more room.

    What this raises, or a handler of signals as it begins, goes to `PENDING`.
    """
    thread, make_room = threading.get_ident(), _asked.of_this_thread()
    if make_room is None or thread in _alone:
        return False
    try:
        _alone.add(thread)
        return bool(make_room(nbytes))
    finally:
        _alone.discard(thread)


@functools.cache
def _library() -> ctypes.PyDLL | str:
    """The library, or a sentence that says why there is none."""
    if os.sysconf('SC_PAGE_SIZE') > _LARGEST_PAGE_BYTES:
        return 'pages of the system are larger than 16 KiB'
    try:
        found = extension.load(ctypes.PyDLL, 'backends', 'host', '_arena')  # Python's lock keeps the pool whole
    except OSError as error:
        return str(error)
    for name in ('arena_unused_bytes', 'arena_used_bytes', 'arena_fresh_bytes'):
        getattr(found, name).restype = ctypes.c_size_t
    found.arena_keep_at_most.argtypes = found.arena_set_gap.argtypes = (ctypes.c_size_t,)
    found.contained_by_none.argtypes = (ctypes.c_long, ctypes.c_size_t)
    found.arena_set_gap(GAP_BYTES)
    found.arena_ask(*map(ctypes.py_object, (_make_room, PENDING, raise_pending)))
    os.register_at_fork(after_in_child=functools.partial(_begin_anew, found))
    return found


def _begin_anew(found: ctypes.PyDLL) -> None:
    """In a forked child: training is the parent's."""
    _asked.clear()
    _alone.clear()
    _open.clear()
    _resting.clear()
    PENDING.clear()
    found.contained_by_none(1, 0)
    found.arena_keep(0)
    found.arena_set_offering(0)
