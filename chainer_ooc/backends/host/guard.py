"""Has a container refuse memory to a computation, where its kernel would end the process.

What a computation allocates is known once it was recorded, and before that it is guessed. A guess that falls short, or
an explicit budget beyond the container, ends in a MemoryError where RLIMIT_DATA is the limit, and with a killed process
where a container is. Arrays that come from the pool of pages ask the container before they take fresh ones
(`_contained.c`). Elsewhere, where the package was built without a compiler, or where the program has a handler of
NumPy's of its own, a computation in a container runs under an RLIMIT_DATA that leaves it what the container does. The
limit that was there is back afterwards.

    RLIMIT_DATA   unlimited   | used + left |   unlimited   | used + left |   unlimited
                              |   compute   |   the program |   compute   |

Not all of what is left is for arrays. The pool of pages leaves 4 MB to what is no array, also where hardly anything is
left: of NumPy 2.4 a refused buffer of an iterator ends the process, and so does OpenBLAS. And no limit sees memory that
is touched only now and was mapped before, such as buffers and stacks.

Such a limit is the last resort, as it is also that of other threads, whose OpenBLAS may end the process for want of a
buffer, and of children that they start meanwhile; and it counts what is mapped, where a container counts what is
touched.

The limit is the process's, and its threads compute at once, also for one backend, where one trains and another
validates: the last that begins sets it anew, and what was there comes back when none computes any more.

It costs some 60 us a computation. Arrays fail with it as they fail in plain Chainer behind ``ulimit -d``. Pages that
the heap has and that hold nothing can be used without asking the system. So they are given back when a container leaves
little after a computation.

Left out: a heap with holes that were given back before. Many small arrays can still be too much, and what C libraries
take from the heap by themselves.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import threading
from collections.abc import Callable
from types import TracebackType

import numpy as np

from chainer_ooc.backends.host import arena, heap
from chainer_ooc.backends.host.headroom import Headroom
from chainer_ooc.locks import make_lock

_PAGE_BYTES = os.sysconf('SC_PAGE_SIZE')
_DATA_FIELD = 5  # of /proc/self/statm: pages of data, the main stack included

#: What a computation gets in any case; arrays leave as much alone (LEFT_BYTES in _arena.c).
_LEFT_BYTES = 4 << 20

#: Of what is left, for memory that was mapped before and is touched now.
_UNTOUCHED_BYTES = 4 << 20

#: What arrays leave alone that ask the container.
ASIDE_BYTES = _LEFT_BYTES + _UNTOUCHED_BYTES


class Guard(contextlib.AbstractContextManager[None]):
    """The limit around one computation after the other; `headroom` says what is left.

    Args:
        asks: whether the arrays of the calling thread ask the container by themselves.
    """

    def __init__(self, headroom: Headroom, asks: Callable[[], bool] = lambda: False) -> None:
        self._headroom = headroom
        self._asks = asks

    def __enter__(self) -> None:
        left_bytes = self._headroom.left_bytes() if self._headroom.in_container() and not self._asks() else None
        if left_bytes is None:
            return
        have_blas_map_its_buffers()
        _LIMIT.tighten(self, data_bytes() + max(_LEFT_BYTES, left_bytes - _UNTOUCHED_BYTES))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if _LIMIT.computing:
            _LIMIT.lift(self, threading.get_ident())
        is_contained = self._headroom.was_in_container  # `__enter__` has looked
        if is_contained and not self._headroom.has_room(0, will_write=True):
            heap.trim()
        if arena.PENDING:
            arena.raise_pending()

    def lift(self) -> None:
        """Takes its limit away, also in a child that was forked meanwhile."""
        _LIMIT.lift(self)


class _Limit:
    """RLIMIT_DATA, and whose computations it is tightened for, in which thread.

    What an interrupt leaves undone a later computation there does.
    """

    def __init__(self) -> None:
        self.lock = make_lock()
        self.computing: set[tuple[Guard, int]] = set()
        self._before = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    def tighten(self, guard: Guard, nbytes: int) -> None:
        with self.lock:
            if not self.computing:
                self._before = resource.getrlimit(resource.RLIMIT_DATA)
            soft, hard = self._before
            if soft == resource.RLIM_INFINITY or nbytes < soft:
                self.computing.add((guard, threading.get_ident()))
                resource.setrlimit(resource.RLIMIT_DATA, (nbytes, hard))

    def lift(self, guard: Guard, thread: int | None = None) -> None:
        """Lifts it for what a thread computes there, or all threads."""
        with self.lock:
            over = {each for each in self.computing if each[0] is guard and thread in (None, each[1])}
            if over and self.computing == over:
                resource.setrlimit(resource.RLIMIT_DATA, self._before)
            self.computing -= over


_LIMIT = _Limit()
# Another thread may hold the lock at that moment.
os.register_at_fork(after_in_child=_LIMIT.lock._at_fork_reinit)  # type: ignore[attr-defined]


@functools.cache
def have_blas_map_its_buffers() -> None:
    """OpenBLAS maps them at its first large product, uses little of them, and ends the process if it cannot."""
    square = np.ones((512, 512), np.float32)
    square.dot(square)


def data_bytes() -> int:
    """What counts for RLIMIT_DATA now, or a little more."""
    with open('/proc/self/statm', 'rb', buffering=0) as file:
        return int(file.read(200).split()[_DATA_FIELD]) * _PAGE_BYTES
