"""What is on its way between near and far memory, and what an iteration wants of it.

    leave --> leaving --reap--> freed, or stays              swap-outs, the oldest first
    begin_arrival --> arriving --arrive--> resident          swap-ins, the oldest first

A swap-out that is done frees nothing by itself: `reap` looks at finished ones between calls, so that near memory does
not change while a call runs. What an iteration wants is one value (`Context`). How bytes come back from far memory is a
`Source`: copied in, or mapped (`mapped`); what is lost is made again (`recomputation`).
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import Backend, ByteArray, Transfer
from chainer_ooc.errors import DeviceMemoryError, LostMapError
from chainer_ooc.execute import log
from chainer_ooc.execute.functions.recipe import Change
from chainer_ooc.execute.memory.budget import Budget
from chainer_ooc.execute.storage.account import Listener
from chainer_ooc.execute.storage.slots import Array
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage
from chainer_ooc.execute.tally import Tally
from chainer_ooc.problem import Shared
from chainer_ooc.quantities import format_bytes
from chainer_ooc.simulate.timeline import Cause, Stream


class Source(Protocol):
    """A way in which bytes come back from far memory.

    Attributes:
        takes_memory: what comes back takes near memory, which plans count: what is wanted before it has left stays.
    """

    @property
    def takes_memory(self) -> bool: ...

    def begin(self, memory: Transit, storage: Storage) -> bool:
        """Starts early, where that can be done beside computations; False if there is no room now."""

    def bring(self, memory: Transit, storage: Storage) -> ByteArray:
        """Makes it resident now, and gives its block."""

    def want(self, memory: Transit, storage: Storage) -> None:
        """Called when it is read while it is leaving."""

    def left(self, memory: Transit, storage: Storage) -> None:
        """Its swap-out has ended: frees it, unless it is wanted and stays."""


class CopyIn:
    """Copies from far memory into new near memory."""

    takes_memory = True

    def begin(self, memory: Transit, storage: Storage) -> bool:
        try:
            block = memory.backend.allocate(storage.nbytes)
        except MemoryError:
            return False
        memory.begin_arrival(storage, block)
        return True

    def bring(self, memory: Transit, storage: Storage) -> ByteArray:
        memory.need(storage.nbytes)
        while not self.begin(memory, storage):
            if not memory.free_something() and not memory.on_out_of_memory(storage.nbytes):
                memory.begin_arrival(storage, self._last(memory, storage))
                break
        return memory.arrive(storage)

    def _last(self, memory: Transit, storage: Storage) -> ByteArray:
        """A block for it, when nothing more can leave.

        Raises:
            DeviceMemoryError: the device has a limit, and says what is in the way.
            MemoryError: it has less than the budget allows.
        """
        try:
            return memory.backend.allocate(storage.nbytes)
        except DeviceMemoryError:
            raise
        except MemoryError:
            raise MemoryError(f'no near memory for feature map {storage.map} ({format_bytes(storage.nbytes)}); lower '
                              'chainer.config.ooc_budget, so that more of it stays free') from None

    def want(self, memory: Transit, storage: Storage) -> None:
        """It stays, see `Storage.notice`."""

    def left(self, memory: Transit, storage: Storage) -> None:
        if storage.has_true_copy() and not storage.recalled and not memory.is_pinned(storage):
            storage.go()
        else:
            storage.stay()


COPY_IN = CopyIn()


@dataclass(frozen=True)
class Context:
    """What an iteration wants of the memory that it runs in.

    Attributes:
        tally: counts what it costs.
        budget_bytes: what near memory may hold; None if that is not limited.
        min_bytes: smaller blocks are never evicted.
        next_use: position of a storage's next use; the farthest is evicted first.
        far: how what is in far memory comes back.
        shares_chains: which maps, made again on the way to another, stay if functions still wait for them.
        on_exposed: called with a storage that the program reads, and may write to.
        listener: is told of blocks that go while the iteration is recorded, else None.
        is_metered: whether a block from outside of the graph was allocated while it was recorded.
        collect: makes room by what Python's collector finds, where that is worth looking; whether it did.
    """

    tally: Tally
    budget_bytes: int | None = None
    min_bytes: int = 0
    next_use: Callable[[Storage], float] = lambda storage: -storage.touched
    far: Source = COPY_IN
    shares_chains: Shared = True
    on_exposed: Callable[[Storage], None] = lambda storage: None
    listener: Listener | None = None
    is_metered: Callable[[Array], bool] = lambda root: False
    collect: Callable[[int], bool] = lambda nbytes: False


class Transit(Budget):
    """The copies of one memory that are under way.

    Attributes:
        context: of the iteration in hand.
        pinned: storages that the current call needs.
        leaving: what is being copied out, the oldest first.
        deferred: changes that a device has yet to check for maps made again in the backward pass in hand, else None.
    """

    _open: ClassVar[list[weakref.ref[Transit]]] = []

    def __init__(self, backend: Backend):
        super().__init__(backend)
        self.context = Context(self.tally)
        self.pinned: frozenset[Storage] = frozenset()
        self.leaving: deque[Storage] = deque()
        self.deferred: list[tuple[Storage, Change]] | None = None
        self._targets: deque[tuple[ByteArray, Transfer | None]] = deque()  # of swap-ins, the oldest first
        self._open.append(weakref.ref(self, self._open.remove))

    def enter(self, context: Context) -> None:
        """Begins an iteration, or goes on with it in another context."""
        if context.listener != self.context.listener:
            self.meter(context.listener)
        self.context = context
        self.begin(context.tally, context.budget_bytes)
        for storage in self.storages():
            self.touch(storage)

    def pin(self, storages: Iterable[Storage] = ()) -> None:
        """Sets what the current computation needs, which is not evicted."""
        self.pinned = frozenset(storages)

    def is_pinned(self, storage: Storage) -> bool:
        """Whether a computation needs it, in whatever thread."""
        return any(storage in memory.pinned for ref in self._open[:] if (memory := ref()) is not None)

    def touch(self, storage: Storage) -> None:
        """Notes that a storage was used, or has come: its next use is another one now."""
        if storage.nbytes >= self.context.min_bytes:
            self.candidates.add(storage)

    def check_or_defer(self, storage: Storage, changes: Iterable[Change]) -> None:
        """Checks whether what a storage was made from again has changed; on a device at the end of a backward pass.

        Raises:
            LostMapError: it has.
        """
        for change in changes:
            if self.deferred is None or isinstance(change[0], bool):
                _refuse_if(*change)
            else:
                self.deferred.append((storage, change))

    def check_deferred(self) -> None:
        """At the end of a backward pass, waits for the device to check what was made again in it.

        Raises:
            LostMapError: something had changed.
        """
        deferred, self.deferred = self.deferred or [], None
        for storage, change in deferred:
            try:
                _refuse_if(*change)
            except LostMapError:
                note_lost(storage)
                raise

    # --- out -------------------------------------------------------------------------------------------------------

    def reap(self, wait: bool = False) -> None:
        """See `Budget.reap`.

        Raises:
            SpillError: a swap-out failed; that storage is resident.
        """
        if self._targets:
            self._forget_targets()
        while self.leaving:
            storage = self.leaving[0]
            if storage.state is State.LEAVING and storage.transfer is not None:
                if not storage.transfer.done and not wait:
                    return
                wait = False
                self.finish_swap_out(storage)  # what stays, since this fails, is taken out the next time
            self.leaving.popleft()

    def finish_swap_out(self, storage: Storage) -> None:
        """Waits for a swap-out, and frees what is not wanted.

        Raises:
            SpillError: it failed; the storage is resident and has no copy.
        """
        assert storage.transfer is not None
        try:
            self._wait(storage, Cause.SWAP_OUT)
        except OSError:
            storage.drop_copy()  # before anything else, or an interrupt leaves one that seems whole
            storage.stay()
            raise
        self.tally.copies.append((Stream.COPY_OUT, self.tally.map_of(storage), storage.transfer))
        self.context.far.left(self, storage)

    def _wait(self, storage: Storage, cause: Cause) -> None:
        """Waits for a storage's copy, which is a stall if it is still under way."""
        transfer = storage.transfer
        assert transfer is not None
        if transfer.done:
            transfer.wait()  # says whether it failed
        else:
            with self.tally.stalled(cause, storage):
                transfer.wait()

    def abandon_dead(self) -> None:
        """Ends the copies of maps that can be read no more, such as those of a graph that is gone."""
        for storage in self.leaving:
            if storage.copy is not None and not storage.is_wanted():
                storage.drop_copy()  # and stays, then
        for storage in self.storages():
            if storage.state is State.ARRIVING and not storage.is_wanted():
                self.turn_back(storage)  # else it has its own block, and the account has it

    def settle(self) -> None:
        """Waits for all swap-outs.

        Raises:
            SpillError: one failed.
        """
        while self.leaving:
            self.reap(wait=True)

    def finish_swap_outs(self) -> None:
        """Waits for all swap-outs when the iteration is over; what could not leave stays, and is no error.

        After an exception what is deferred is not checked either.
        """
        self.deferred = None
        while self.leaving:
            try:
                self.settle()
            except OSError as error:
                log.logger.info('a swap-out failed after its iteration had ended: %s', str(error))

    def need(self, nbytes: int) -> None:
        """Makes room, as far as there is any, for what brings a map back."""
        if not self.make_room(nbytes):
            self.context.collect(nbytes)

    # --- in --------------------------------------------------------------------------------------------------------

    def restore(self, storage: Storage, block: ByteArray, mapped: bool = False) -> None:
        """Takes a block that has the bytes of what is away or lost: a mapping of the far copy, or made again."""
        storage.come_back(mapped)
        self._count(arrays.root_of(block), storage, not mapped)
        storage.refill(block)

    def turn_back(self, storage: Storage) -> None:
        """Ends a swap-in that is not needed: the far copy is still whole."""
        storage.notice()
        with contextlib.suppress(OSError):
            if storage.state is State.ARRIVING:
                self.arrive(storage)
                storage.free()

    def begin_arrival(self, storage: Storage, block: ByteArray) -> None:
        """Starts a swap-in into `block`.

        Raises:
            SpillError: as `Backend.swap_in`; the storage is away.
        """
        assert storage.copy is not None
        try:
            storage.come(block)
            self._count(arrays.root_of(block), storage, block.base is None)
            self.limit_kept(0)
            self.note_peak()
            self._targets.append((block, None))  # first: an interrupt may hide from us that the copy has begun
            transfer = self.backend.swap_in(storage.copy, block)
            self._targets.append((block, transfer))
            storage.coming(transfer)
        except BaseException:
            if storage.state is State.ARRIVING:
                storage.turn_back()
            raise
        self.tally.swapped_in_bytes += storage.nbytes

    def arrive(self, storage: Storage) -> ByteArray:
        """Waits for a swap-in and returns the block, which only the slots own from then on.

        Raises:
            SpillError: it failed; the far copy is whole.
        """
        transfer = storage.transfer
        assert transfer is not None
        try:
            self._wait(storage, Cause.SWAP_IN)
        except BaseException:
            if transfer.done:
                storage.turn_back()
            raise
        self.tally.copies.append((Stream.COPY_IN, self.tally.map_of(storage), transfer))
        block = storage.arrive()
        self._forget_targets()
        return block

    def arrive_all(self) -> None:
        """Waits for all swap-ins that are under way.

        Raises:
            SpillError: one failed.
        """
        for storage in self.storages():
            if storage.state is State.ARRIVING:
                storage.memory.fetch(storage, exposed=False)

    def synchronise(self) -> None:
        """Waits for copies at the end of a call or step, for policies that synchronise there.

            compute    [ call l ]            [ call l+1 ]        [step l+1]..[step l ]
            copy-out             [ map of l ]                                                . waits for the swap-in
            copy-in                                              [ map of l ]

        What leaves after a call is away before the next call begins. A swap-in that begins with a step is waited for
        when that step has ended, whichever later step reads the map.

        Source: OOC-Paleo 2.1 and 3.4 (vDNN). What differs: there a layer's swap-out runs beside the layer itself, which
        only reads the map; here no copy begins before the map's last use in forward has ended.
        """
        self.settle()
        self.arrive_all()

    def _forget_targets(self) -> None:
        """Forgets the blocks that copies have written to. They live until then, though their storages may not.

        Copies end in order, so that one that an interrupt hid from us has ended when a later one has.
        """
        over = 0
        for number, (_, transfer) in enumerate(self._targets, 1):
            if transfer is None:
                continue
            if not transfer.done:
                break
            over = number
        for _ in range(over):
            self._targets.popleft()

    def _count(self, root: Any, storage: Storage, metered: bool) -> None:
        self.count(root, storage, metered and self.context.listener is not None)
        self.touch(storage)


def _refuse_if(changed: Any, error: Callable[[], LostMapError]) -> None:
    """Raises the error if it has changed; where a device checks that, waits for it."""
    if changed:
        raise error()


def note_lost(storage: Storage) -> None:
    """A lost map was read: its graph's plans lose no map any more, since the others may be read next."""
    graph = None if storage.token is None else storage.token.graph
    if graph is not None:
        graph.lose_none()
