"""Maps that are read where they are: through a mapping of far memory, which the system pages.

    RESIDENT --swap_out--> LEAVING --reap--> AWAY --read or prefetched--> RESIDENT, on the mapping --drop--> AWAY
                              '--read or prefetched: exchanged as soon as it can

The mapping is the far copy, so that it never has to be written back, whatever the user writes to it, and letting go of
it loses nothing. It is none of the budget: the system decides what of it is in memory. That is why a map that is wanted
while it is still leaving, or has yet to leave, does not stay, as elsewhere: its plan has counted no memory for it.

Source: OOC-Paleo 4.3 (UM-Chainer), see the policy `unified`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import ByteArray
from chainer_ooc.execute.storage import State, Storage

if TYPE_CHECKING:
    from chainer_ooc.execute.residency import Residency


def show(residency: Residency, storage: Storage) -> ByteArray:
    """Lays a storage that is away over a mapping of its far copy.

    Returns:
        The block. It lives no longer than this reference and the places that took arrays on it.

    Raises:
        SpillError, MemoryError: as `Backend.map`; the storage is still away.
    """
    assert storage.copy is not None and storage.state is State.AWAY
    block = residency.backend.map(storage.copy)
    storage.mapped = True
    root = arrays.root_of(block)
    residency.count(root, storage, metered=False)
    residency.put(root, storage)
    storage.state = State.RESIDENT
    storage.fill_places(block, variables=storage.exposed)
    return block


def see_off(residency: Residency, storage: Storage) -> None:
    """Waits until a storage that is leaving is away; if its copy fails it stays, and `reap` reports that."""
    assert storage.transfer is not None
    try:
        storage.transfer.wait()
    except OSError:
        return
    residency.finish_leaving(storage)
    if storage.state is State.RESIDENT and not storage.exposed and not storage.mapped:  # it is pinned
        residency.let_go(storage)


def come_back(residency: Residency, storage: Storage) -> None:
    """Exchanges the block of a storage that was wanted while it was leaving, now that its copy is whole.

    What a user holds he keeps; it is then taken up again when it is read. What nobody can ask for has no copy.
    """
    if storage.exposed or storage.copy is None:
        return
    residency.let_go(storage)
    if storage.root() is None:
        with contextlib.suppress(MemoryError):  # the read itself tries again
            show(residency, storage)
