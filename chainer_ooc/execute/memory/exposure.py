"""What the program reads, it may write to: what is made from it is made before.

    map --recipe--> map that backward waits for          made now, from the bytes as they are
     '--recipe--> map that backward waits for no more    its recipe goes on with a checksum of what it reads

The same is done when a session ends, whose storages others read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.errors import LostMapError, SpillError
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage


def expose(storage: Storage, block: ByteArray) -> None:
    """Has the program write to the block from now on: makes before what is waited for and made from it.

    Raises:
        SpillError, MemoryError: as `fetch`; nothing has changed.
    """
    if not storage.exposed:
        make_last(made_from(storage))
        for recipe in list(storage.readers):
            recipe.distrust(storage, block)
    if storage.state is State.RESIDENT:  # until the slots have it, or an interrupt leaves a copy that is worthless
        storage.keep(block)
    storage.expose()


def make_last(storages: Iterable[Storage]) -> None:
    """Makes what functions wait for, or a Variable shows, for the last time: what it is made from changes, or goes.

    A forked child, where far copies are the parent's, makes what it can.
    """
    waiting, seen = list(storages), set()
    while waiting:
        storage = waiting.pop()
        if storage in seen:
            continue
        seen.add(storage)
        if storage.pending_uses <= 0:  # it is only on the way to others, and may die with its Variable
            waiting += made_from(storage)
            if not storage.is_shown():
                continue
        block = storage.notice()
        with contextlib.suppress(LostMapError, *((SpillError,) if storage.memory.closed else ())):
            if block is None and storage.state is State.LOST and storage.recipe is not None:
                block = storage.memory.fetch(storage, exposed=False)
        if block is not None:
            storage.remember(None)
            storage.refill(block)


def made_from(storage: Storage) -> list[Storage]:
    """What recipes make from a storage."""
    return [made for recipe in list(storage.readers) for made in recipe.makes()]
