"""What execution may ask of a device: two tiers of memory and the copies between them.

Execution decides *when* a feature map leaves near memory; a backend decides *how*, and only a backend knows which
device it is. Each fills in the classes below, and one suite (``tests/backends/test_contract.py``) holds all of them to
the same guarantees:

C1  **The bytes are always in a tier.** A source is only read, and a failed copy changes neither the source of a
    swap-out nor the far copy of a swap-in.
C2  **A copy fails in** ``Transfer.wait``, each time it is called. ``swap_out`` and ``swap_in`` raise at once only for
    what is the caller's mistake or a backend that is closed.
C3  **First in, first out** within a direction; the two directions run beside each other.
C4  **A swap-in waits for its own swap-out**, in the backend: the caller need not.
C5  **Done means dropped.** Before ``Transfer.done`` becomes true the backend gives up its own reference to the array,
    so that the caller's ``del`` frees the memory there and then.
C6  **A far copy may be read many times**, also after a failed swap-in, until it is released.
C7  **Release never blocks and never raises**, wherever it is called: any thread, a weakref callback, the collector.
    A far copy that is garbage collected counts as released.
C8  **Close leaves nothing**: no thread, no descriptor, no file. Pinned memory may stay for the next backend.
C9  **A forked child owns no backend.** There, every call but ``release`` and ``close`` raises, and none hangs.
C10 **A mapping is the far copy**, where a backend has mappings: what is written to it is what is read later, in either
    way. It stays valid as long as anything refers to it, also after ``release`` and ``close``; its far memory is no
    other copy's until then.

A feature map's way, on the host::

    caller      swap_out(a) ... compute ... done: del a     swap_in(copy, b) ... wait() ... read b
    swap-out       [write a, drop a] done
    swap-in                                                 [read into b, drop b] done
    bytes in    near      near + far            far            far + near                near + far

Left out: which map moves when (``schedule``), and what near memory may be used for (``execute``).

Source: the split into two tiers with a contract test follows zict's mappings; events and streams follow CUDA's.
"""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from chainer_ooc.backends.file_backed import FileBacked
from chainer_ooc.backends.metering import Meter
from chainer_ooc.errors import SpillError

#: What the arrays may have by default of what is free: interpreter, libraries and holes between arrays have the rest.
SHARE_OF_FREE = 0.9

#: How the names of all threads begin that backends have.
OWN_THREADS = 'chainer_ooc-'

#: Bytes in near memory: uint8, one-dimensional, C-contiguous.
ByteArray = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Bandwidth:
    """How fast bytes move between the tiers, as measured through the path that swaps use.

    Attributes:
        write_bytes_per_second: Near to far (swap-out).
        read_bytes_per_second: Far to near (swap-in).
        latency_seconds: What a copy of nearly nothing takes, from the call to ``done``.
        slowdown: A computation takes 1 + slowdown times as long while copies run; 0 where they leave it alone.
    """

    write_bytes_per_second: float
    read_bytes_per_second: float
    latency_seconds: float
    slowdown: float = 0.0


class FarCopy:
    """A handle of `nbytes` bytes in far memory, made by ``Backend.swap_out`` and by nothing else."""

    __slots__ = ('__weakref__', 'nbytes')

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class Transfer(abc.ABC):
    """One copy of `nbytes` bytes in flight, in either direction."""

    nbytes: int

    @property
    @abc.abstractmethod
    def done(self) -> bool:
        """Whether the copy has ended, well or not; never blocks."""

    @property
    @abc.abstractmethod
    def seconds(self) -> float:
        """Duration of the copy itself, without its time in the queue; 0.0 until ``done``."""

    @property
    def moments(self) -> tuple[Any, Any] | None:
        """When the copy itself began and ended, for `Backend.seconds_between`; None where that is not known."""
        return None

    @abc.abstractmethod
    def wait(self) -> None:
        """Blocks until the copy has ended.

        A KeyboardInterrupt may pass through; the copy goes on, and ``wait`` may be called again. The swap-out of a
        copy that was released meanwhile ends early and without an error: its bytes cannot be read any more.

        Raises:
            SpillError: The copy failed; raised at every call.

        If this fails: after a swap-out the bytes are in the source array alone, and the far copy is of no use; after a
        swap-in they are in far memory, the target's content is undefined, and another ``swap_in`` may be tried.
        """


class Backend(abc.ABC):
    """A device's near and far memory. One thread at a time uses it, of which it is told (``serving``).

    Only ``release`` may come from anywhere, and what ``computing`` and ``timestamp`` give belongs to the thread that
    asks. The caller also frees near memory: it holds its own reference to an array until the array's transfer is done.

    Attributes:
        name: How ``describe`` and error messages call the device: ``'host'``, ``'cuda'``, ...
    """

    name: str

    #: Whether the device's random streams can be set back, so that a call that draws may run again.
    repeats_random = True

    #: Whether `limit` counts all arrays of the device, the program's own too. Else the budget is execution's account.
    counts_all = False

    #: What lays blocks on far memory where they are, or None if the device, or this machine, cannot.
    file_backed: FileBacked | None = None

    def manages(self, root: Any) -> bool:
        """Whether a block of memory, as `arrays.root_of` gives it, is this device's to move."""
        return isinstance(root, np.ndarray)

    @abc.abstractmethod
    def meter(self) -> Meter:
        """Returns what counts allocations of near memory."""

    def timestamp(self) -> Any:
        """Returns a moment in the order of computations, for `seconds_between`; it does not wait for them."""
        return time.perf_counter()

    def seconds_between(self, start: Any, end: Any) -> float:
        """Returns the seconds from one moment to a later one, on the device; waits until both have passed."""
        return float(end - start)

    def computing_seconds(self, spans: Iterable[tuple[Any, Any]]) -> list[float]:
        """Returns how long computations took between two moments each, in their order, as `seconds_between` does.

        Without the time in which the device had nothing to do because the program waited for memory, where it can tell.
        """
        return [self.seconds_between(*span) for span in spans]

    def computing(self) -> contextlib.AbstractContextManager[None]:
        """What goes around each computation, the same each time; not to be nested.

        Where the system ends a process for lack of memory, the computation raises MemoryError instead, as far as the
        device can tell. Where a device computes in several orders, the computation comes after the one before.
        """
        return contextlib.nullcontext()

    def serving(self) -> contextlib.AbstractContextManager[None]:
        """Has it serve the calling thread for a while, in place of the one that has set its limit."""
        return contextlib.nullcontext()

    def preparations(self) -> int:
        """Returns how many kernels and the like were prepared so far; times of computations meanwhile say nothing."""
        return 0

    def onednn_version(self, use_ideep: str) -> str:
        """Returns the version of oneDNN that computes under this chainer.config.use_ideep, or '' for none."""
        return ''

    def begin(self) -> None:  # noqa: B027 - few have anything to start
        """Starts what has to be closed, once somebody knows the backend who will: an interrupt may come at any time."""

    def limit(self, nbytes: int | None, on_out_of_memory: Callable[[int], bool]) -> None:  # noqa: B027 - accounts do
        """Has near memory hold so many bytes at most from now on, where the device can enforce that.

        Args:
            nbytes: for all arrays; None lifts the limit, and asks for no room any more.
            on_out_of_memory: called when an allocation does not fit, with the bytes that are missing; returns whether
                it has freed any, and when it has not the allocation fails. It may raise InfeasibleBudgetError.
        """

    def offer(self) -> None:  # noqa: B027 - few keep anything that others lack
        """Is called when forward may be over: others may have what is kept for later, as far as that costs little."""

    def rest(self) -> None:  # noqa: B027 - few keep anything that others lack
        """Is called when an iteration has ended: until `limit` is, the program goes on by itself."""

    def counted_bytes(self) -> int:
        """Returns the bytes that count in `limit` now, the program's too; 0 where only execution's account does."""
        return 0

    def lacking_bytes(self, nbytes: int) -> int:
        """Returns by how many bytes ``nbytes`` more would exceed `limit`; 0 where only execution's account counts."""
        return 0

    def lost_bytes(self, budget_bytes: int) -> int:
        """Returns what a budget has to have beside what arrays take, as the device gives memory in pieces."""
        return 0

    @abc.abstractmethod
    def allocate(self, nbytes: int) -> ByteArray:
        """Returns new near memory of ``nbytes``, 0 or more: uint8, 1-D, C-contiguous; the content is undefined.

        Raises:
            MemoryError: The device has no ``nbytes`` in one piece, not even after ``trim``. Nothing has changed.
        """

    @abc.abstractmethod
    def free_bytes(self) -> int:
        """Returns the bytes of near memory that this process can get in the end, by the tightest limit in force."""

    def default_budget_bytes(self, held_bytes: int, latest_bytes: int | None) -> int:
        """Returns the budget of an iteration where the program sets none; asked when it begins.

        A plan is made for each budget that was not met before, and that takes time: it may change in coarse steps only.

        Args:
            held_bytes: of the arrays that the budget covers and that are in near memory now.
            latest_bytes: what it returned for the iteration before, or None.
        """
        if latest_bytes is not None:
            return latest_bytes
        return int(held_bytes + SHARE_OF_FREE * self.free_bytes())

    def most_budget_bytes(self, held_bytes: int) -> int:
        """Returns what may be tried where no plan keeps within `default_budget_bytes`: all that is free."""
        return held_bytes + self.free_bytes()

    def has_room(self, nbytes: int) -> bool:
        """Whether the device would give ``nbytes`` more at once; asked before each computation and each swap-in.

        So it must be quick: tens of microseconds. After True the device must not fail, nor the system end the process,
        for lack of these bytes. After False the caller waits for swap-outs, calls ``trim``, or evicts.
        """
        return nbytes <= self.free_bytes()

    def keep_at_most(self, nbytes: int) -> None:  # noqa: B027 - nothing to do is a right answer
        """Trims what is free but kept for the next arrays to ``nbytes``; called often, so it is quick.

        Nothing to do where `limit` counts what is kept, and takes it back where it is in the way.
        """

    def leaves_outside(self, nbytes: int) -> bool:
        """Whether code that allocates past this backend gets ``nbytes`` now; what is kept goes back for them first."""
        return True

    def trim(self) -> None:  # noqa: B027 - nothing to do is a right answer
        """Gives all near memory that is free but kept for the next array back to the device, however long that takes.

        What is live does not move. A device whose allocations take back what is kept need not.
        """

    @abc.abstractmethod
    def reserve(self, nbytes: int) -> None:
        """Checks that far memory can hold ``nbytes`` more than it holds now; it sets nothing aside.

        Raises:
            SpillError: It cannot. The message names where, needed and free bytes, and the next step.
        """

    #: Whether far memory takes time to be had, so that `prepare` and `is_prepared` mean something.
    prepares_far_memory = False

    def prepare(self, sizes: Iterable[int]) -> None:  # noqa: B027 - far memory may be at hand
        """Has far memory for coming swap-outs made ready, in the background.

        Args:
            sizes: of their arrays in bytes, in this order. What is there and not in use counts.

        Raises:
            SpillError: The backend is closed or belongs to the parent process.
        """

    def is_prepared(self, nbytes: int) -> bool:
        """Whether a swap-out of ``nbytes`` would begin at once, or waiting would not help; it is quick."""
        return True

    @abc.abstractmethod
    def swap_out(self, source: ByteArray) -> tuple[FarCopy, Transfer]:
        """Starts to copy ``source`` to far memory.

        Args:
            source: uint8, 1-D, C-contiguous. It must not be written to until the transfer is done; its memory
                may be freed after ``Transfer.wait`` has returned.

        Returns:
            The handle of the copy, which may be used at once (C4), and the transfer.

        Raises:
            SpillError: The backend is closed or belongs to the parent process. Nothing has started.
            ValueError: ``source`` is of another kind. Nothing has started.

        If this fails: as ``Transfer.wait`` reports, the source is untouched and its far memory is given back.
        """

    @abc.abstractmethod
    def swap_in(self, copy: FarCopy, into: ByteArray) -> Transfer:
        """Starts to copy far memory back; waits, in the backend, for the copy's own swap-out.

        Args:
            copy: A handle of this backend that is not released.
            into: uint8, 1-D, C-contiguous, writable, of ``copy.nbytes`` bytes. Undefined until the transfer is done.

        Raises:
            SpillError: The backend is closed or belongs to the parent process. Nothing has started.
            ValueError: The copy is released or another backend's, or ``into`` is of another kind or size.

        If this fails: as ``Transfer.wait`` reports, the copy stays valid and may be read again.
        """

    def map(self, copy: FarCopy) -> ByteArray:
        """Shows far memory as if it were near; waits for the copy's own swap-out (C4).

        Nothing is copied, and nothing is allocated: the system decides which of the bytes are in near memory, and has
        begun to fetch them when this returns. A backend need not have it.

        Args:
            copy: A handle of this backend that is not released.

        Returns:
            uint8, 1-D, C-contiguous, writable, of ``copy.nbytes`` bytes; see C10.

        Raises:
            SpillError: The backend has no mappings, is closed or belongs to the parent process, the copy's swap-out
                failed, or the system refuses.
            ValueError: The copy is released or another backend's.
            MemoryError: There are no addresses for it.

        If this fails: nothing has changed; the copy can be mapped or swapped in again.
        """
        raise SpillError(f'the {self.name} backend cannot map far memory; set chainer.config.ooc to another policy, '
                         "such as 'capacity'")

    def peek(self, copy: FarCopy) -> ByteArray | None:
        """Returns a new array of a whole copy's bytes, also within an interrupt; None if they cannot be read there."""
        return None

    @abc.abstractmethod
    def release(self, copy: FarCopy) -> None:
        """Gives the copy's far memory back, for reuse once the transfers that need it have ended.

        Swap-ins that have been started still complete. Idempotent; see C7.
        """

    @abc.abstractmethod
    def bandwidth(self, anew: bool = False) -> Bandwidth:
        """Measures the copies by a short real swap-out and swap-in at the first call; later calls repeat the result.

        With `anew` it measures again. Where far memory has several tiers, it is that of those which were used since
        the last call.

        Raises:
            SpillError: One of the copies failed. Nothing is kept, and the next call measures again.
        """

    def tier_bytes(self) -> dict[str, int]:
        """Returns the bytes ever swapped out by the tier of far memory that they went to; empty where there is one."""
        return {}

    @abc.abstractmethod
    def machine(self) -> str:
        """Returns what tells this machine from one with other times or another size, the same in every process."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Returns what ``doctor`` shows of this device, as JSON-ready values; ``'warnings'`` is a list of str."""

    @abc.abstractmethod
    def close(self) -> None:
        """Waits for the transfers, then gives back all that the backend holds (C8). Idempotent.

        If this fails: a KeyboardInterrupt may pass through while it waits; call it again. Far copies are gone
        afterwards, near memory is the caller's.
        """
