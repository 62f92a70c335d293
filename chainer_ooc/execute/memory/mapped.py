"""Maps that are read where they are: through a mapping of far memory, which the system pages.

    RESIDENT --swap_out--> LEAVING --reap--> AWAY --read or prefetched--> RESIDENT, on the mapping --drop--> AWAY
                              '--read or prefetched: exchanged as soon as it can

The mapping is the far copy, so it never has to be written back, whatever the program writes to it, and to free it loses
nothing. It is none of the budget: the system decides what of it is in memory. That is why a map that is wanted while it
is still leaving, or has yet to leave, does not stay, as elsewhere: its plan has counted no memory for it.

What cannot be mapped is copied in, as elsewhere, where there is room: a GPU reaches no file, and a system has only so
many mappings. Plans do not know of it.

Source: OOC-Paleo 4.3 (UM-Chainer), see the policy `unified`.
"""

from __future__ import annotations

import contextlib

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.errors import SpillError
from chainer_ooc.execute.memory.transit import COPY_IN, Transit
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage


class Mapped:
    """Lays storages over mappings of their far copies."""

    takes_memory = False

    def begin(self, memory: Transit, storage: Storage) -> bool:
        try:
            self._map(memory, storage)
        except SpillError:
            return memory.has_room(storage.nbytes) and COPY_IN.begin(memory, storage)
        except MemoryError:
            return False
        return True

    def bring(self, memory: Transit, storage: Storage) -> ByteArray:
        """See `Source.bring`.

        Raises:
            SpillError, MemoryError: as `CopyIn.bring`, or the second as `Backend.map`; the storage is still away.
        """
        with contextlib.suppress(SpillError):
            return self._map(memory, storage)
        return COPY_IN.bring(memory, storage)  # says so if it is the copy that has failed

    def want(self, memory: Transit, storage: Storage) -> None:
        """Waits until it is away; if its copy fails it stays, and `reap` reports that."""
        assert storage.transfer is not None
        try:
            storage.transfer.wait()
        except OSError:
            return
        memory.finish_swap_out(storage)
        if storage.state is State.RESIDENT and not storage.exposed and not storage.mapped:  # it is pinned
            storage.free()

    def left(self, memory: Transit, storage: Storage) -> None:
        """Exchanges the block of one that was wanted meanwhile. What can be read no more has no copy.

        What the program holds it keeps; that is then taken up again when it is read.
        """
        storage.stay()
        if storage.exposed or storage.copy is None or (memory.is_pinned(storage) and not storage.recalled):
            return
        wanted = storage.recalled
        storage.free()
        if wanted and storage.root() is None:
            with contextlib.suppress(SpillError):  # the read itself tries again
                self.begin(memory, storage)

    def _map(self, memory: Transit, storage: Storage) -> ByteArray:
        assert storage.copy is not None and storage.state is State.AWAY
        block = memory.backend.map(storage.copy)
        memory.restore(storage, block, mapped=True)
        return block


MAPPED = Mapped()
