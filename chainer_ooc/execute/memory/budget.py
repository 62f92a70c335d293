"""What near memory may hold, and how room is made in it (P3).

    budget | beside the maps | maps | what a computation allocates |  spare maps, and what the device keeps for later

Spare maps and what the device keeps have what the rest leaves, so they yield first, those that have been spare for the
longest before others. Then swap-outs that have ended free what they held; then they are waited for, the oldest first;
then the map is evicted whose next use is farthest.

Source: zict's and distributed's two-tier mappings (evict until below target; the value is always in a tier).
"""

from __future__ import annotations

import abc
import weakref
from collections import deque

from chainer_ooc.backends.base import Backend
from chainer_ooc.execute.memory.eviction import Candidates
from chainer_ooc.execute.storage.account import Account
from chainer_ooc.execute.storage.reentry import LOCK
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage
from chainer_ooc.execute.tally import Tally
from chainer_ooc.simulate.timeline import Cause

#: What is asked for beyond the need of a computation, where it is at hand: the next ones, as long as they need no more,
#: have it without asking.
AHEAD_BYTES = 1 << 18

#: So many computations apart the device is asked all the same: the program itself may have taken what it had.
LOOK_EVERY = 16

#: Collections of Python's: so many requests are left out at most between two of them.
MOST_LEFT_OUT = 1023


class Budget(Account, abc.ABC):
    """Near memory that holds no more than it may.

    Attributes:
        backend: the device.
        tally: of the iteration in hand.
        budget_bytes: what near memory may hold; None if that is not limited.
        candidates: what may be evicted.
        garbage: whether it is worth looking for what the program has no more.
    """

    def __init__(self, backend: Backend):
        super().__init__()
        self.backend = backend
        self.candidates = Candidates()
        self.garbage = Garbage()
        self._spare: deque[weakref.ref[Storage]] = deque()
        self.begin(Tally(backend), None)

    def begin(self, tally: Tally, budget_bytes: int | None) -> None:
        """Begins another iteration: forgets which maps were used last, and will be used next."""
        self.tally, self.budget_bytes = tally, budget_bytes
        self._granted_bytes = self._unasked = 0
        self.candidates.clear()
        self._spare = deque(ref for ref in self._spare if (spare := ref()) is not None and spare.state is State.SPARE)

    @abc.abstractmethod
    def reap(self, wait: bool = False) -> None:
        """Frees what has been copied out; with `wait`, waits for the oldest swap-out first."""

    @abc.abstractmethod
    def free_something(self) -> bool:
        """Waits for the oldest swap-out, or else evicts; False if there is nothing left to try."""

    def fits(self, nbytes: int) -> bool:
        """Whether so many more bytes keep within the budget."""
        return self.budget_bytes is None or self.near_bytes() + nbytes <= self.budget_bytes

    def has_room(self, nbytes: int) -> bool:
        """Whether so many more bytes keep within the budget, and the device has them too. Spare maps yield to them.

        A device may lack what the budget allows: free memory is fragmented, or others have taken it.
        """
        if self.budget_bytes is None:
            return True
        if self.near_bytes() + nbytes > self.budget_bytes:
            return False
        while self._spare and self._bytes['spare'] > (
                self.budget_bytes - self._bytes['maps'] - self.beside_bytes - nbytes):
            self._oldest_spare_yields()
            if not self.fits(nbytes):  # the program holds it, and it counts
                return False
        if self.backend.has_room(nbytes):
            return True
        if self.spare_at_most(0) <= 0:
            return False
        self.backend.trim()
        return self.backend.has_room(nbytes)

    def make_room(self, nbytes: int, thorough: bool = False) -> bool:
        """Waits for swap-outs, then evicts what is used last, until there is room; False if the budget has none.

        With `thorough`, tries once more everything that could not be evicted before.
        """
        if nbytes <= AHEAD_BYTES:
            held_bytes = self.near_bytes() + self._bytes['spare'] + nbytes
            if held_bytes <= self._granted_bytes and self._unasked < LOOK_EVERY:
                self._unasked += 1
                return True
            if self._has_ahead(held_bytes, nbytes):
                return True
        if not (has_room := self.has_room(nbytes)):
            with self.tally.stalled(Cause.MEMORY):
                self.reap()
                if self.fits(nbytes):
                    self.backend.trim()
                    self.note_missing(self.backend.lacking_bytes(nbytes))
                self.candidates.take_again(thorough)
                while not (has_room := self.has_room(nbytes)) and self.free_something():
                    pass
        self.limit_kept(nbytes)
        return has_room or self.fits(nbytes)

    def _has_ahead(self, held_bytes: int, nbytes: int) -> bool:
        """Whether more than so much is at hand without anything else yielding; grants it to those that come next.

        With `nbytes` of it near memory holds `held_bytes`, spare maps included.
        """
        granted_bytes = held_bytes + AHEAD_BYTES
        if self.budget_bytes is None or granted_bytes > self.budget_bytes or not (
                self.backend.has_room(nbytes + AHEAD_BYTES)):
            return False
        self._granted_bytes, self._unasked = granted_bytes, 0
        self.limit_kept(nbytes + AHEAD_BYTES)
        return True

    def on_out_of_memory(self, nbytes: int) -> bool:
        """Makes room when an allocation does not fit the device, see `Backend.limit`."""
        with LOCK, self.tally.stalled(Cause.MEMORY):
            if self.spare_at_most(self.bytes_of('spare') - nbytes) >= nbytes:
                return True
            before_bytes = self.near_bytes()
            self.note_missing(nbytes)
            self.candidates.take_again(True)
            while self.near_bytes() > before_bytes - nbytes and self.free_something():
                pass
            return self.near_bytes() < before_bytes

    def leave_outside(self, nbytes: int) -> None:
        """Has the device leave so much to code that asks neither the account nor what is kept, such as MPI."""
        if self.backend.leaves_outside(nbytes):
            return
        with LOCK, self.tally.stalled(Cause.MEMORY):
            self.spare_at_most(self.bytes_of('spare') - nbytes)
            self.candidates.take_again(True)
            while not self.backend.leaves_outside(nbytes) and self.free_something():
                pass

    def note_peak(self, more_bytes: int = 0) -> int:
        """Notes that near memory holds so much more than what is in the account; gives what it holds then."""
        near_bytes = self.near_bytes() + more_bytes
        self.tally.peak_bytes = max(self.tally.peak_bytes, near_bytes)
        return near_bytes

    def note_missing(self, nbytes: int) -> None:
        """Notes that the device lacked so much where the account had room: plans have to leave more alone."""
        self.tally.missing_bytes = max(self.tally.missing_bytes, nbytes)

    # --- spare maps ------------------------------------------------------------------------------------------------

    def keep_spare(self, storage: Storage) -> None:
        """Keeps a storage without a known use as long as nothing else needs the room."""
        self._spare.append(weakref.ref(storage))  # first, or after an interrupt it would never yield
        storage.spare()
        self.book(storage, 'spare')

    def spare_at_most(self, nbytes: int) -> int:
        """Has spare maps yield, those that have been spare for the longest first; gives the bytes that became free.

        What the program holds is not free then: it counts.
        """
        before_bytes = self.held_bytes()
        while self._spare and self._bytes['spare'] > max(0, nbytes):
            self._oldest_spare_yields()
        return before_bytes - self.held_bytes()

    def _oldest_spare_yields(self) -> None:
        storage = self._spare.popleft()()
        if storage is not None and storage.state is State.SPARE:
            is_held = storage.is_held_on()
            self.book(storage, 'maps')
            storage.yield_room(is_sealed=not is_held and not self.backend.counts_all)

    def leave_room(self) -> None:
        """Has spare maps leave room for what the program allocates by itself, as an optimizer or an evaluation does.

        How much that is, is not known: the most that near memory has held has to be enough.
        """
        if self._bytes['spare']:
            more_bytes = max(0, self.tally.peak_bytes - self.near_bytes())
            if not self.has_room(more_bytes):
                self.spare_at_most(0)

    def limit_kept(self, nbytes: int) -> None:
        """Limits what the device keeps for later, and spare maps, to what near memory and so many bytes more leave."""
        if self.budget_bytes is None:
            return
        while self._spare and self._bytes['spare'] > max(0, self.budget_bytes - self.near_bytes() - nbytes):
            self._oldest_spare_yields()  # what the program holds of it leaves less
        # So many bytes will come from there, and it has what spare maps leave.
        self.backend.keep_at_most(max(0, self.budget_bytes - self.near_bytes() - self._bytes['spare']))


class Garbage:
    """How often it is worth having Python's collector look for memory that the program has no more.

    A collection takes a tenth of a second in a process that has much in it. A plan that is short of memory by a little
    asks for one in every iteration, and ordinary programs have nothing to be found. So each collection in vain has
    twice as many requests left out after it; one that found something, none.
    """

    def __init__(self) -> None:
        self._left_out = self._to_leave_out = 0

    def ask(self) -> bool:
        """Asks for a collection; whether it is due."""
        if not self._to_leave_out:
            return True
        self._to_leave_out -= 1
        return False

    def note(self, found: bool) -> None:
        """Says what a collection came to."""
        self._left_out = 0 if found else min(2 * self._left_out + 1, MOST_LEFT_OUT)
        self._to_leave_out = self._left_out
