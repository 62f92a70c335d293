"""What all devices do alike: a backend, its transfers and its far copies belong to the process that made them.

A forked child is refused (C9): the threads that copy, the streams and the file's contents are its parent's. Its copies
of the backends are closed as it begins, or its copy of a spill file's descriptor would hold the file's space until it
ends. Any thread may release, at any instruction (C7), as the garbage collector does.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from chainer_ooc.backends.base import Backend, ByteArray, FarCopy, Transfer
from chainer_ooc.backends.collector import untrack
from chainer_ooc.errors import SpillError

RoomMaker = TypeVar('RoomMaker')


class Place:
    """Where a far copy lies; `unwanted` once the copy is released, and never again False."""

    __slots__ = ('unwanted',)

    def __init__(self) -> None:
        self.unwanted = False


class OwnedCopy(FarCopy):
    """A far copy that is released when nothing refers to it any more, if not before.

    Its place is appended to the backend's deque `unwanted`, which is atomic; the backend takes places back from there.
    """

    __slots__ = ('place', 'unwanted')

    def __init__(self, nbytes: int, place: Place, unwanted: collections.deque[Any]) -> None:
        super().__init__(nbytes)
        self.place = place
        untrack(self)  # a finalizer may read the map as the graph is collected
        self.unwanted = unwanted  # the last, see __del__

    def release(self) -> None:
        """Queues the place to be taken back, then marks it.

        In this order: interrupted in between, the place is queued once more later, which does no harm.
        """
        if not self.place.unwanted:
            self.unwanted.append(self.place)
            self.place.unwanted = True

    def __del__(self) -> None:
        if hasattr(self, 'unwanted'):  # else an interrupt came while it was made
            self.release()


class OwnedTransfer(Transfer):
    """A transfer that the process that began it can wait for, and no other.

    Subclasses end it: they set `_failure` first, and `_done` as the last field of all.
    """

    __slots__ = ('_done', '_failure', '_owner', 'nbytes')

    #: Why no other process can wait for it, and what to do.
    elsewhere: str

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._owner = os.getpid()
        self._failure: SpillError | None = None
        self._done = False

    @property
    def ended(self) -> bool:
        """Whether it is known to be done; looks at nothing."""
        return self._done

    @property
    def failure(self) -> SpillError | None:
        """How it failed, once it has ended."""
        return self._failure

    def wait(self) -> None:
        while not self._done:
            check_process(self._owner, 'wait for a copy', self.elsewhere)
            self._wait()
        if self._failure is not None:
            raise SpillError(*self._failure.args)  # a new one: a traceback would grow, and keep frames alive

    def _wait(self) -> None:
        """Blocks until the copy has ended, or for a while."""
        raise NotImplementedError

    def _is_here(self) -> bool:
        """Whether this is the process that began it."""
        return os.getpid() == self._owner


class OwnedBackend(Backend):
    """A backend that the process that made it can use until it is closed."""

    #: Why no other process can use it, and what to do.
    elsewhere: str

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._closed = False

    def release(self, copy: FarCopy) -> None:
        if isinstance(copy, OwnedCopy):
            copy.release()

    def _is_here(self) -> bool:
        """Whether this is the process that made it."""
        return os.getpid() == self._owner

    def _check_usable(self, act: str) -> None:
        """Raises SpillError if it is another process's, or closed."""
        check_process(self._owner, act, self.elsewhere)
        if self._closed:
            raise SpillError(f'cannot {act}: the {self.name} backend is closed; chainer_ooc.reset() makes a new one')


def check_process(owner: int, act: str, elsewhere: str) -> None:
    """Raises SpillError in any process but the owner; `elsewhere` says why, and what to do."""
    if os.getpid() != owner:
        raise SpillError(f'cannot {act} in process {os.getpid()}: {elsewhere}')


def check_array(array: ByteArray, what: str) -> None:
    """Refuses what no backend copies.

    Raises:
        ValueError: it is not uint8, 1-D and C-contiguous.
    """
    if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f'{what} must be uint8, 1-D and C-contiguous (is {array.dtype}, {array.ndim}-D)')


def check_target(into: ByteArray, nbytes: int) -> None:
    """Refuses an array that cannot take a far copy's bytes.

    Raises:
        ValueError: it is of another kind or size, or read-only.
    """
    check_array(into, 'into')
    # A device's arrays have no such flag: all of them can be written to.
    if into.nbytes != nbytes or not getattr(into.flags, 'writeable', True):
        raise ValueError(f'cannot swap in {nbytes} bytes: the target must be writable and of that size (it has '
                         f'{into.nbytes} bytes)')


class RoomMakers(Generic[RoomMaker]):
    """Who makes room for the arrays of which thread.

    Several may for one, as a profile in the midst of a training. The one that was set last is asked.
    """

    def __init__(self) -> None:
        self._by_owner: dict[int, tuple[frozenset[int], RoomMaker]] = {}  # with the threads

    def set(self, owner: object, make_room: RoomMaker | None) -> None:
        """Sets what makes room for the calling thread's arrays; None: `owner` is asked no more.

        It does so for no other thread then, but for those of `lent`, if the calling one is among them.
        """
        own = threading.get_ident()
        threads, _ = self._by_owner.pop(id(owner), (frozenset[int](), None))
        if make_room is not None:
            self._by_owner[id(owner)] = threads if own in threads else frozenset([own]), make_room

    @contextlib.contextmanager
    def lent(self, owner: object) -> Iterator[None]:
        """Has what is set for `owner` make room for the calling thread's arrays too, for a while."""
        own = {threading.get_ident()}
        threads, make_room = self._by_owner.get(id(owner), (frozenset[int](), None))
        if make_room is not None and not own <= threads:
            self._by_owner[id(owner)] = threads | own, make_room
        try:
            yield
        finally:
            now, make_room = self._by_owner.get(id(owner), (frozenset[int](), None))
            if make_room is not None and not own <= threads:
                self._by_owner[id(owner)] = now - own, make_room

    def of_this_thread(self) -> RoomMaker | None:
        """What makes room for the calling thread, or None."""
        own = threading.get_ident()
        return next((make_room for threads, make_room in reversed([*self._by_owner.values()]) if own in threads), None)

    def clear(self) -> None:
        """Forgets all."""
        self._by_owner.clear()

    def __bool__(self) -> bool:
        """Whether anybody is asked."""
        return bool(self._by_owner)


_backends: weakref.WeakSet[Backend] = weakref.WeakSet()
_watching = threading.Event()


def close_in_children(backend: Backend) -> None:
    """Has every process that is forked from now on close its copy of `backend`."""
    _backends.add(backend)
    if not _watching.is_set():
        _watching.set()
        os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for backend in list(_backends):
        backend.close()
