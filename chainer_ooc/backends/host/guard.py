"""Has a container refuse memory to a computation, where its kernel would end the process.

What a computation allocates is known once it was recorded, and before that it is guessed. A guess that falls short, or
an explicit budget beyond the container, ends in a MemoryError where RLIMIT_DATA is the limit, and with a killed process
where a container is. So in a container each computation runs under an RLIMIT_DATA that leaves it what the container
does. The limit that was there is back afterwards.

    RLIMIT_DATA   unlimited   | used + left |   unlimited   | used + left |   unlimited
                              |   compute   |   the program |   compute   |

It costs some 60 us a computation, in a container alone. Arrays fail with it as they fail in plain Chainer behind
``ulimit -d``. Pages that the heap has and that hold nothing can be used without asking the system. So they are given
back when little is left after a computation; that also is for whatever the program does next, such as an optimizer's
first update.

Left out: a heap with holes that were given back before. A computation with many small arrays can still be too much.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
from types import TracebackType

import numpy as np

from chainer_ooc.backends.host import arena, heap
from chainer_ooc.backends.host.headroom import Headroom

_PAGE_BYTES = os.sysconf('SC_PAGE_SIZE')
_DATA_FIELD = 5  # of /proc/self/statm: pages of data, the main stack included


class Guard(contextlib.AbstractContextManager[None]):
    """The limit around one computation after the other; `headroom` says what is left."""

    def __init__(self, headroom: Headroom) -> None:
        self._headroom = headroom
        self._before: tuple[int, int] | None = None

    def __enter__(self) -> None:
        left_bytes = self._headroom.left_bytes() if self._headroom.is_limited() else None
        if left_bytes is None:
            return
        have_blas_map_its_buffers()
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = data_bytes() + max(0, left_bytes)
        if soft == resource.RLIM_INFINITY or wanted < soft:
            self._before = soft, hard
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._before is not None and self.lift() and not self._headroom.has_room(0, will_write=True):
            heap.trim()
        if arena.PENDING:
            arena.raise_pending()

    def lift(self) -> bool:
        """Puts back the limit that was there, also in a child that was forked meanwhile; whether there was one."""
        before, self._before = self._before, None
        if before is not None:
            resource.setrlimit(resource.RLIMIT_DATA, before)
        return before is not None


@functools.cache
def have_blas_map_its_buffers() -> None:
    """OpenBLAS maps them at its first large product, uses little of them, and ends the process if it cannot."""
    square = np.ones((512, 512), np.float32)
    square.dot(square)


def data_bytes() -> int:
    """What counts for RLIMIT_DATA now, or a little more."""
    with open('/proc/self/statm', 'rb', buffering=0) as file:
        return int(file.read(200).split()[_DATA_FIELD]) * _PAGE_BYTES
