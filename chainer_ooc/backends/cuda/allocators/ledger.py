"""Which blocks live, what owns them, and how many bytes they have together.

CuPy's memory objects take no weak references, and its views need not know the array that they are a view of. So each
block that our allocators give out is an owner of its own, which every array on it keeps alive::

    array --> MemoryPointer --> UnownedMemory --> Owner --> memory of CuPy's, where there is any below
    view  --> MemoryPointer -----^

It ends when the last of them does, also where they are garbage in a cycle; see ``collector``.

A block of device memory ends where its last view does: anywhere, in any thread, in the midst of this package's own
code, since the garbage collector may run at any line. So its end runs no line of Python. It is a weak reference whose
callback is `deque.append`: that takes no lock, an exception cannot come in between, and the next request books what
lies there::

    main thread     add(a: 4)          add(b: 2)      total() -> 2
    collector                 a ends
    ended                     [a]      []
    living          a                  b
    sum             4         4        2

The order of events is kept: an end is booked before whatever is allocated after it, and peaks of the sum, which only
rises in `add`, are exact.

What lives is one dictionary, which one assignment changes. Where a KeyboardInterrupt came between it and the sums these
are counted anew from it; until then, and for a handler in the midst of a change, each sum that is asked for is.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from chainer_ooc.backends.collector import untrack
from chainer_ooc.backends.metering import Meter
from chainer_ooc.locks import make_lock


class Owner:
    """A block, for as long as anything refers to it; what becomes of it then is its allocator's to say.

    Attributes:
        pointer: its address.
        nbytes: its size, as it was asked for.
        size_bytes: its size, as the allocator rounds it.
        device_id: the device that it is on.
        memory: what it lies in and keeps alive, if anything.
    """

    __slots__ = ('__weakref__', 'device_id', 'memory', 'nbytes', 'pointer', 'size_bytes')

    def __init__(self, pointer: int, nbytes: int, device_id: int, size_bytes: int, memory: Any = None) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.device_id = device_id
        self.size_bytes = size_bytes
        self.memory = memory
        untrack(self)


class Guest(Owner):
    """Stands for memory that another object owns.

    `gone` is called when nothing refers to the memory through this any more, from any thread, also within the garbage
    collector.
    """

    __slots__ = ('_gone',)

    def __init__(self, pointer: int, nbytes: int, device_id: int, gone: Callable[[], None]) -> None:
        super().__init__(pointer, nbytes, device_id, nbytes)
        self._gone = gone  # the last, see __del__

    def __del__(self) -> None:
        if hasattr(self, '_gone'):  # else an interrupt came while it was made
            self._gone()


class End(weakref.ref[Any]):
    """The end of a block of `size_bytes`; see the module."""

    __slots__ = ('size_bytes',)

    size_bytes: int


class Count:
    """Bytes of the blocks that were given while it counted, for as long as they live.

    Attributes:
        sum_bytes: they.
        peak_bytes: the highest sum of the whole ledger since `Ledger.mark`.
    """

    def __init__(self) -> None:
        self.sum_bytes = self.peak_bytes = 0
        self._living: dict[int, End] = {}  # by their ids, which no other has

    def add(self, end: End) -> None:
        """Takes in a new block."""
        self._living[id(end)] = end
        self.sum_bytes += end.size_bytes

    def has(self, end: End) -> bool:
        """Whether a block is one of those that live."""
        return id(end) in self._living

    def drop(self, end: End) -> None:
        """Books an end; of a block that is not counted, or not any more, it is none."""
        if self._living.pop(id(end), None) is not None:
            self.sum_bytes -= end.size_bytes

    def living(self) -> list[Any]:
        """The blocks."""
        return [block for end in [*self._living.values()] if (block := end()) is not None]

    def counted_bytes(self) -> int:
        """The sum, counted anew."""
        return sum(end.size_bytes for end in [*self._living.values()] if end() is not None)

    def recount(self) -> None:
        """Counts anew, without what has ended."""
        self._living = {id(end): end for end in [*self._living.values()] if end() is not None}
        self.sum_bytes = sum(end.size_bytes for end in self._living.values())


class Ledger(Count):
    """What lives of all that was given.

    Args:
        lock: another ledger's, whose books change with these.

    Attributes:
        lock: of all changes, those of the allocator included; whoever calls `add`, `settle` or `recount` has it.
        is_amid: the books are being changed, or whoever did so was interrupted.
        note_end: the callback of every `End`.
        settled: what has ended, for who wants to know; None if nobody does.
    """

    def __init__(self, lock: threading.RLock | None = None) -> None:
        super().__init__()
        self.lock = lock or make_lock()
        self.is_amid = False
        self.settled: deque[End] | None = None
        self.ended: deque[End] = deque()
        self.note_end = self.ended.append
        self._counts: tuple[Count, ...] = ()

    def add(self, end: End) -> None:
        """Takes in a new block; those that ended are settled."""
        self._living[id(end)] = end
        self.sum_bytes += end.size_bytes
        for count in self._counts:
            count.add(end)
            if self.sum_bytes > count.peak_bytes:
                count.peak_bytes = self.sum_bytes

    def begin(self, owner: Owner) -> None:
        """Takes in a new block, after what has ended."""
        end = End(owner, self.note_end)
        end.size_bytes = owner.size_bytes
        if self.ended:
            self.settle()
        self.add(end)

    def settle(self) -> None:
        """Books what has ended since the last call."""
        ended, living, settled = self.ended, self._living, self.settled
        while ended:
            end = ended.popleft()
            if living.pop(id(end), None) is not None:  # as `drop`: once for each array
                self.sum_bytes -= end.size_bytes
            for count in self._counts:
                count.drop(end)
            if settled is not None:
                settled.append(end)

    def total(self) -> int:
        """The bytes of all that lives."""
        return self.total_of(self)

    def total_of(self, count: Count) -> int:
        """Those of a count. A finalizer, or a handler, may ask in the midst of a change."""
        with self.lock:
            if self.is_amid:
                return count.counted_bytes()
            if self.ended:
                self.is_amid = True
                self.settle()
                self.is_amid = False
            return count.sum_bytes

    def mark(self, count: Count) -> int:
        """Begins a stretch whose highest sum `peak_bytes` of a count gives; returns the sum now."""
        with self.lock:
            count.peak_bytes = self.total()
            return count.peak_bytes

    def count_in(self, count: Count) -> None:
        """Has `count` take in what is given from now on."""
        with self.lock:
            self._counts = (*self._counts, count)

    def stop_counting(self, count: Count) -> None:
        """Ends that; nothing more is booked there."""
        with self.lock:
            self._counts = tuple(each for each in self._counts if each is not count)

    def stop_all(self) -> None:
        """Ends it for all counts."""
        with self.lock:
            self._counts = ()

    def recount(self) -> None:
        """Counts all anew after an interrupt."""
        super().recount()
        for count in self._counts:
            count.recount()
        if self.settled is not None:
            self.settled.clear()


class DeviceMeter(Meter):
    """How much each call allocates at its highest, counted where memory is given: an addition for each allocation.

    It counts device memory alone, in the sizes that the allocator rounds to; what other threads allocate counts as
    well. Blocks that were given before `start` are none of its own, even if they die while it runs::

        lives before start   [####    ]     freed while it runs
        since start               [##   ]  [####
        current_bytes()      0    2     0  4
        above_mark_bytes()   the highest of all that lives, older blocks too, above what lived at the mark
    """

    def __init__(self, live: Ledger) -> None:
        self.running = False
        self._live = live
        self._ours = Count()
        self._mark_bytes = 0

    def start(self) -> bool:
        if not self.running:
            self._ours = Count()
            self._live.count_in(self._ours)
            self._mark_bytes = self._live.mark(self._ours)
            self.running = True
        return True

    def stop(self) -> None:
        self._live.stop_counting(self._ours)
        self.running = False

    def current_bytes(self) -> int:
        return self._live.total_of(self._ours) if self.running else 0

    def has_counted(self, root: Any) -> bool:
        return self.running and any(map(self._ours.has, weakref.getweakrefs(root)))

    def mark(self) -> None:
        if self.running:
            self._mark_bytes = self._live.mark(self._ours)

    def above_mark_bytes(self) -> int:
        return self._ours.peak_bytes - self._mark_bytes if self.running else 0
