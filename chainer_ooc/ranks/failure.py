"""An error that one rank does not catch ends all of them.

Without this the rank that fails waits in MPI_Finalize, as Python ends, for the others, and these wait for its part of
the next exchange: for ever, with no word from any of them. So it prints its traceback, a line that says which rank it
was, and aborts. A rank that is killed needs nothing: the launcher notices and ends the others.

Left out: errors in threads of the program's own, `sys.exit` of one rank, and a rank that waits for what never comes.
"""

from __future__ import annotations

import platform
import sys
import time
from types import TracebackType
from typing import Any

_STATUS = 1

#: The launcher drops what it has not forwarded yet of what ranks wrote when it ends them (MPICH 5.0: one in five).
_FORWARDING_SECONDS = 0.3


def end_all_on_errors() -> None:
    """Has uncaught errors end all ranks from now on, where there are several; idempotent."""
    if _several() is not None and not isinstance(sys.excepthook, _Abort):
        sys.excepthook = _Abort(sys.excepthook)


class _Abort:
    """Does what the hook before did, and ends all ranks."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            self._before(kind, error, trace)
        finally:
            world = _several()
            if world is not None:
                told = ' '.join(f'{kind.__name__}: {error}'.split())
                print(f'rank {world.rank} of {world.size} on {platform.node()} has failed, which ends all ranks: '
                      f'{told}', file=sys.stderr, flush=True)
                time.sleep(_FORWARDING_SECONDS)
                world.Abort(_STATUS)


def _several() -> Any:
    """MPI's communicator of all ranks where the program has begun MPI and there are several; else None."""
    mpi = sys.modules.get('mpi4py.MPI')
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    world: Any = mpi.COMM_WORLD
    return world if world.size > 1 else None
