"""A forked child closes the backends that it has inherited (C9): what they hold is its parent's.

Without that the child's copy of a spill file's descriptor would hold the file's space for as long as it runs.
"""

from __future__ import annotations

import os
import threading
import weakref

from chainer_ooc.backends.base import Backend

_backends: weakref.WeakSet[Backend] = weakref.WeakSet()
_watching = threading.Event()


def close_in_children(backend: Backend) -> None:
    """Has every process that is forked from now on close its copy of `backend`."""
    _backends.add(backend)
    if not _watching.is_set() and hasattr(os, 'register_at_fork'):
        _watching.set()
        os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for backend in list(_backends):
        backend.close()
