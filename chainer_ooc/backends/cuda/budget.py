"""The hard limit: what CuPy calls for memory while a budget is in force (P3).

Each request goes to an allocator whose limit is what the budget leaves. If it has no room, not even after what it has
cached went back to the driver, `on_out_of_memory` is asked to make some, and the request is tried again each time::

    request -> allocator: cached, or new from the driver within the limit, or after giving its cache back
      no room -> what CuPy's default pool has cached goes back too
        no room -> on_out_of_memory(missing bytes): waits for a swap-out, or evicts      <- again while it returns True
          no room -> the garbage collector, once                                (plain CuPy's last resort as well)
            no room -> MemoryError with the figures and the next step

Every block is given to CuPy as memory that an object of ours owns, so that its end is noticed wherever the last view
dies, for all allocators alike (CuPy's memory hooks exist for one of them); see `allocators.ledger`.

What was allocated before the budget was installed, parameters above all, lies in CuPy's default pool. It counts: the
allocator may hold what the limit leaves beside that. Each allocator's budget is made once in a process and
lives as long as it does, since arrays may outlive every session; installed is at most one.

Left out: memory that CuPy does not allocate (the context, libraries' own workspaces, other programs).
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from chainer_ooc.backends.cuda.allocators import ALLOCATORS
from chainer_ooc.backends.cuda.allocators.allocator import Allocator, UnavailableError
from chainer_ooc.backends.cuda.allocators.calls import CupyAllocator, CupyCalls
from chainer_ooc.backends.cuda.allocators.ledger import DeviceMeter, Owner
from chainer_ooc.backends.cuda.allocators.pool import PAGE_BYTES
from chainer_ooc.backends.owned import RoomMakers
from chainer_ooc.errors import DeviceMemoryError
from chainer_ooc.quantities import format_bytes

_LOG = logging.getLogger('chainer_ooc')

#: Makes room for so many bytes: waits for swap-outs or evicts, and returns whether it freed something.
OnOutOfMemory = Callable[[int], bool]

#: Goes around what has the program wait for memory in the midst of a computation.
Waiting = Callable[[], contextlib.AbstractContextManager[None]]


class _Outliving:
    """Stands for a block's memory once the budget is closed."""

    __slots__ = ('_budget', '_memory')

    def __init__(self, memory: Any, budget: AllocatorBudget) -> None:
        self._memory, self._budget = memory, budget

    def __del__(self) -> None:
        self._memory = None  # first, so that it is free when the allocator gives back
        if self._budget.closed:
            self._budget.close_if_empty()


class AllocatorBudget:
    """Stands before an allocator; `cupy.cuda.set_allocator` takes it.

    Args:
        allocator: gives the memory, and keeps its own `held_bytes` within what is left for it.
        calls: of CuPy.
        others: the budgets before other allocators, whose memory counts too.

    Attributes:
        closed: nothing is allocated here any more.
        live: the blocks that were given here and live, in sizes as the allocator rounds them.
    """

    def __init__(self, allocator: Allocator, calls: CupyCalls,
                 others: Callable[[], list[AllocatorBudget]] = list) -> None:
        self.closed = False
        self.live = allocator.live
        self._allocator, self._calls, self._others = allocator, calls, others
        allocator.waiting = self.waiting
        self._limit_bytes: int | None = None
        self._room_makers: RoomMakers[tuple[OnOutOfMemory, Waiting]] = RoomMakers()
        self._thread = _Thread()
        self._before: CupyAllocator | None = None  # what CuPy asked, as far as that was another
        self._is_installed = False
        _all.add(self)

    @property
    def name(self) -> str:
        """That of the allocator."""
        return self._allocator.name

    def __call__(self, nbytes: int) -> Any:
        """Gives memory for an array.

        Returns:
            A `cupy.cuda.MemoryPointer`; the memory lives as long as anything refers to its `mem`.

        Raises:
            DeviceMemoryError: there is no room, and nothing more can be evicted. The message has the figures.
            InfeasibleBudgetError: from `on_out_of_memory`.

        If this fails: live memory is as it was, but for what was evicted.
        """
        if not nbytes:
            return self._calls.pointer(0, 0, None)
        if not self._calls.is_current() and self._before is not None:
            return self._before(nbytes)  # of another device, which this has no memory of
        block = self._try(nbytes)
        if block is None:
            with self.waiting():
                block = self._make_room_for(nbytes)
        if self.closed:
            self._outlive(block)
        return self._calls.pointer(block.pointer, nbytes, block)

    @property
    def limit_bytes(self) -> int | None:
        """What all arrays of the device may hold, cached memory included; None: what the device has."""
        return self._limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, nbytes: int | None) -> None:
        self._limit_bytes = nbytes
        self._share_limit()
        share_bytes = self._allocator.limit_bytes
        if share_bytes is not None and self.held_bytes() > share_bytes:
            self.trim(max(0, share_bytes - self.used_bytes()))

    def ask(self, owner: object, on_out_of_memory: OnOutOfMemory | None,
            waiting: Waiting = contextlib.nullcontext) -> None:
        """Sets who makes room for the calling thread: each that trains evicts its own maps. None: not `owner`."""
        self._room_makers.set(owner, None if on_out_of_memory is None else (on_out_of_memory, waiting))

    def lent(self, owner: object) -> contextlib.AbstractContextManager[None]:
        """What goes around has `owner` make room for the calling thread."""
        return self._room_makers.lent(owner)

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """What goes around waits for memory in the calling thread."""
        asked = self._room_makers.of_this_thread()
        return contextlib.nullcontext() if asked is None else asked[1]()

    @contextlib.contextmanager
    def no_relief(self) -> Iterator[None]:
        """In this thread, what does not fit fails at once: nothing is evicted for it."""
        before = self._thread.alone
        self._thread.alone = True
        try:
            yield
        finally:
            self._thread.alone = before

    def used_bytes(self) -> int:
        """What lives of the memory that was given here, rounded as the allocator rounds."""
        return self.live.total()

    def held_bytes(self) -> int:
        """What the allocator has taken from the driver."""
        return self._allocator.held_bytes()

    def outside_bytes(self) -> int:
        """What counts against the limit and was not given here: CuPy's default pool, and other budgets' memory."""
        return self._calls.outside_bytes() + sum(other.held_bytes() for other in self._others() if other is not self)

    def counted_bytes(self) -> int:
        """What counts against the limit and cannot be given back: live memory from here, and all that is outside."""
        self._calls.trim_outside()
        return self.outside_bytes() + self.used_bytes()

    def free_bytes(self) -> int:
        """What can still be had, in pieces: of the driver and of what is cached, within the limit."""
        limit_bytes = self._limit_bytes  # another thread may lift it
        if limit_bytes is None:
            return self.unlimited_bytes()
        return max(0, min(self.unlimited_bytes(), limit_bytes - self.outside_bytes() - self.used_bytes()))

    def unlimited_bytes(self) -> int:
        """As `free_bytes`, if there were no limit."""
        return self._calls.free_bytes() + max(0, self.held_bytes() - self.used_bytes())

    def lost_bytes(self, limit_bytes: int) -> int:
        """See `Allocator.lost_bytes`."""
        return self._allocator.lost_bytes(limit_bytes)

    def trim(self, keep_bytes: int = 0) -> None:
        """Gives cached memory back to the driver if more than `keep_bytes` is cached; may wait for the device."""
        self._allocator.trim(keep_bytes)
        if self.closed:
            self.close_if_empty()

    def meter(self) -> DeviceMeter:
        """A new meter of what is given here."""
        return DeviceMeter(self.live)

    def install(self) -> None:
        """Has CuPy ask here for memory; nothing if it does already.

        `cupy.cuda.using_allocator` still puts another before it, in its thread.

        Raises:
            RuntimeError: called within `cupy.cuda.using_allocator`. Nothing has changed.
        """
        if self._is_installed:
            return
        before = self._calls.current_allocator()
        if before is not self:  # else an interrupt came here, or in `uninstall`
            self._before = before
        self._set_allocator(self)
        self._is_installed = True
        self.closed = False
        self._allocator.open()
        self._calls.trim_outside()
        self._share_limit()

    def uninstall(self) -> None:
        """Puts back CuPy's allocator; does nothing if not installed, or if the program has set another meanwhile.

        Raises:
            RuntimeError: called within `cupy.cuda.using_allocator`. Nothing has changed.
        """
        self._is_installed = False  # first: whatever comes in between, `install` sees to it
        if self._before is not None and self._calls.current_allocator() is self:
            self._set_allocator(self._before)

    def close(self) -> None:
        """Uninstalls it, forgets limit, relief and meters, and gives back what is cached.

        Live memory stays; when the last of it is freed, it goes back too. `install` opens it again.
        """
        self.uninstall()
        self._limit_bytes = self._allocator.limit_bytes = None
        self._room_makers.clear()
        self.live.stop_all()
        self.closed = True
        self._outlive(*self.live.living())
        self._allocator.close()
        self.close_if_empty()  # the last block may have died meanwhile

    def close_if_empty(self) -> None:
        """Gives all back if nothing lives. Finalizers call it: it raises nothing.

        In the midst of a change it does nothing: who makes that looks again afterwards. Nor does it as the process
        ends, which gives back too: a thread that is no more may have the lock.
        """
        while (not self.live.lock._is_owned() and not sys.is_finalizing()  # type: ignore[attr-defined]
               and not self.live.total() and (held_bytes := self._allocator.held_bytes())):
            with contextlib.suppress(Exception):  # the driver may be gone already
                self._allocator.close()
            if self._allocator.held_bytes() == held_bytes:
                return

    def _outlive(self, *blocks: Owner) -> None:
        """Has blocks that live while this is closed give all back at their end, the last of them."""
        for block in blocks:
            if not isinstance(block.memory, _Outliving):
                block.memory = _Outliving(block.memory, self)

    def _make_room_for(self, nbytes: int) -> Owner:
        self._calls.trim_outside()
        self._share_limit()
        block = self._try(nbytes)
        while block is None and self._has_made_room(nbytes):
            block = self._try(nbytes)
        if block is None and not self._thread.alone:
            gc.collect()
            block = self._try(nbytes)
        if block is None:
            raise self._no_room(nbytes)
        return block

    def _try(self, nbytes: int) -> Owner | None:
        try:
            return self._allocator.malloc(nbytes)
        except MemoryError as error:
            self._thread.missing_bytes = getattr(error, 'missing_bytes', 0)
            return None

    def _has_made_room(self, nbytes: int) -> bool:
        asked = self._room_makers.of_this_thread()
        if asked is None or self._thread.alone:
            return False
        with self.no_relief():
            return asked[0](self._missing_bytes(nbytes))

    def _missing_bytes(self, nbytes: int) -> int:
        """By how much the limit would be passed if nothing that is cached served; all where the device refuses.

        Less may be missing. But memory is in pieces by then, and where as much leaves as is asked for, and as plans
        leave alone next time, the next request need not wait for pieces to be moved.
        """
        share_bytes = self._allocator.limit_bytes
        over_bytes = 0 if share_bytes is None else self.held_bytes() + nbytes - share_bytes
        return over_bytes if over_bytes > 0 else nbytes

    def _share_limit(self) -> None:
        outside_bytes = self.outside_bytes()
        # In one stretch: a limit that a handler or another thread sets meanwhile comes before or after it.
        limit_bytes = self._limit_bytes
        if limit_bytes is not None:
            limit_bytes = limit_bytes - outside_bytes if limit_bytes > outside_bytes else 0
        self._allocator.limit_bytes = limit_bytes

    def _set_allocator(self, allocator: CupyAllocator) -> None:
        try:
            self._calls.set_allocator(allocator)
        except ValueError as error:
            raise RuntimeError('the allocator of CuPy cannot be changed within cupy.cuda.using_allocator; leave that '
                               'block first') from error

    def _no_room(self, nbytes: int) -> DeviceMemoryError:
        limit_bytes = self._limit_bytes  # another thread may lift it
        limit = 'none' if limit_bytes is None else format_bytes(limit_bytes)
        # The limit at which it would have gone through: what is in pieces counts as held.
        missing_bytes = self._thread.missing_bytes
        floor_bytes = self.outside_bytes() + self.held_bytes() + nbytes
        if limit_bytes is not None and missing_bytes:
            floor_bytes = max(limit_bytes, self.outside_bytes()) + missing_bytes
        elif limit_bytes is not None and self._calls.free_bytes() >= nbytes:
            floor_bytes = max(floor_bytes, limit_bytes + PAGE_BYTES)  # it was in the way, by a rounded size at least
        return DeviceMemoryError(
            f'no room on the device for {format_bytes(nbytes)} (live {format_bytes(self.used_bytes())}, held '
            f'{format_bytes(self.held_bytes())}, allocated elsewhere {format_bytes(self.outside_bytes())}, limit '
            f'{limit}, allocator {self._allocator.name!r}); raise chainer.config.ooc_budget or lower the batch size',
            floor_bytes)


class _Thread(threading.local):
    """What each thread has of its own: whether nothing is evicted for it, and what its last refused request lacked."""

    alone = False
    missing_bytes = 0


_all: weakref.WeakSet[AllocatorBudget] = weakref.WeakSet()
_budgets: dict[str, AllocatorBudget] = {}


#: What is used instead of an allocator that the device, or what is installed, does not allow.
INSTEAD = {'virtual': 'async', 'async': 'pool'}


def budget_of(name: str) -> AllocatorBudget:
    """Returns this process's budget before the allocator of that name, made at the first call.

    Where the device or the installation does not allow it, it is that of another, after a warning.
    """
    if name not in _budgets:
        calls = CupyCalls()
        try:
            allocator = ALLOCATORS[name](calls)
        except UnavailableError as error:
            instead = INSTEAD[name]
            _LOG.warning('%s; chainer.config.ooc_allocator %r is used', error, instead)
            _budgets[name] = budget_of(instead)
        else:
            _budgets[name] = AllocatorBudget(allocator, calls, lambda: [*{*_budgets.values()}])
    return _budgets[name]


def _renew_locks() -> None:
    """In a forked child: another thread may have had them, and arrays of the parent's end there too."""
    for each in list(_all):
        each.live.lock._at_fork_reinit()  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_renew_locks)
