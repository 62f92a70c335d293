r"""The chaos backend: copies that happen as late, and in as unlucky an order, as CUDA allows; for tests.

On a GPU a copy is asked for and made later, by somebody else. Whoever forgets to wait reads old bytes, or has the copy
read new ones, and mostly gets away with it: the order that hurts comes once in a thousand iterations. Here it comes as
a seed has it, each time the same, and what nobody may rely on is NaN:

    what the caller did                             what he gets
    read a target before its transfer was done      NaN: it is poisoned when the swap-in is asked for
    wrote to a source too early                     the new bytes in the far copy: they are read when the copy is made
    freed a source too early                        NaN in the far copy, and a line in `misuses`
    freed a target too early                        a line in `misuses` (on a GPU it would hit the memory's next owner)
    read memory that `allocate` gave                NaN

So a caller who passes the tests on it has waited wherever he had to, and the CUDA backend has only itself to blame.

Far memory is a table of byte arrays; near memory is NumPy's. There are no threads: a copy is made within the call that
waits for it or polls it.

Left out: near memory that was not allocated here is not counted against `near_bytes`, and nothing computes on a stream
of its own, since NumPy does not.

Source: seeded adversaries as in trio's and FoundationDB's deterministic tests; the rules are those of CUDA's streams.
"""

from __future__ import annotations

import errno
import itertools
import weakref
from typing import Any

from chainer_ooc.backends.base import Bandwidth, ByteArray, FarCopy, Transfer
from chainer_ooc.backends.host.meter import HostMeter
from chainer_ooc.backends.owned import OwnedBackend, check_array, check_target
from chainer_ooc.errors import SpillError
from support.chaos.far import ChaosCopy, FarMemory
from support.chaos.memory import POISON, Borrowed, poisoned
from support.chaos.streams import BYTES_PER_SECOND, ELSEWHERE, LATENCY_SECONDS, ChaosTransfer, Direction, Streams

_BANDWIDTH = Bandwidth(BYTES_PER_SECOND, BYTES_PER_SECOND, LATENCY_SECONDS)


class ChaosBackend(OwnedBackend):
    """A device of which nothing can be relied on but the contract.

    Args:
        seed: decides the order of copies and what a poll finds; the same calls with the same seed give the same events.
        near_bytes: what `allocate` can give in all.
        far_bytes: what far memory can hold.

    Attributes:
        events: what happened, a line each, the oldest first.
        misuses: what the caller did that a GPU would not forgive, a line each.
    """

    name = 'chaos'
    elsewhere = ELSEWHERE

    def __init__(self, seed: int = 0, *, near_bytes: int = 1 << 36, far_bytes: int = 1 << 40) -> None:
        super().__init__()
        self.seed = seed
        self.events: list[str] = []
        self.misuses: list[str] = []
        self._near_bytes = near_bytes
        self._near: list[tuple[weakref.ref[Any], int]] = []
        self._far = FarMemory(far_bytes)
        self._numbers = itertools.count()
        self._doomed = dict.fromkeys(Direction, 0)
        self._streams = Streams(seed, self._carry_out)

    def fail_next(self, act: str, count: int = 1) -> None:
        """Has the next copies that are asked for fail.

        Args:
            act: ``'swap_out'`` or ``'swap_in'``.
            count: how many of them.
        """
        self._doomed[{'swap_out': Direction.OUT, 'swap_in': Direction.IN}[act]] += count

    def meter(self) -> HostMeter:
        return HostMeter()

    def allocate(self, nbytes: int) -> ByteArray:
        if nbytes > self.free_bytes():
            raise MemoryError(f'no {nbytes} bytes of near memory (free {self.free_bytes()}); raise near_bytes')
        array = poisoned(nbytes)
        self._near.append((weakref.ref(array), nbytes))
        return array

    def free_bytes(self) -> int:
        self._near = [each for each in self._near if each[0]() is not None]
        return self._near_bytes - sum(nbytes for _, nbytes in self._near)

    def reserve(self, nbytes: int) -> None:
        self._check_usable('reserve far memory')
        self._take_back()
        queued = [each for each in self._streams.pending(Direction.OUT) if not self._is_useless(each.number)]
        self._far.check_room(nbytes, set_aside_bytes=sum(each.nbytes for each in queued))

    def swap_out(self, source: ByteArray) -> tuple[FarCopy, Transfer]:
        self._check_usable('swap out')
        check_array(source, 'source')
        transfer = self._ask(Direction.OUT, next(self._numbers), source, None)
        copy = ChaosCopy(transfer, self._far.unwanted)
        self._streams.put(transfer)
        return copy, transfer

    def swap_in(self, copy: FarCopy, into: ByteArray) -> Transfer:
        copy = self._own(copy, 'swap in')
        check_target(into, copy.nbytes)
        into[:] = POISON
        transfer = self._ask(Direction.IN, copy.swap_out.number, into, copy.swap_out)
        self._streams.put(transfer)
        return transfer

    def map(self, copy: FarCopy) -> ByteArray:
        copy = self._own(copy, 'map')
        copy.swap_out.wait()
        return self._far.map(copy.swap_out.number)

    def bandwidth(self, anew: bool = False) -> Bandwidth:
        """A constant: what is measured would differ from run to run, and plans with it."""
        self._check_usable('measure the bandwidth')
        return _BANDWIDTH

    def machine(self) -> str:
        return 'chaos'

    def describe(self) -> dict[str, Any]:
        self._check_usable('describe')
        return {
            'device': self.name,
            'seed': self.seed,
            'near_free_bytes': self.free_bytes(),
            'near_limits_bytes': {'near_bytes': self._near_bytes},
            'far_free_bytes': self._far.free_bytes(),
            'warnings': ['chaos is for tests: it copies as late as it may'],
        }

    def close(self) -> None:
        self._closed = True
        if self._is_here():
            self._streams.drain()
        self._far.clear()
        self._near.clear()

    def _own(self, copy: FarCopy, act: str) -> ChaosCopy:
        self._check_usable(act)
        if not isinstance(copy, ChaosCopy) or copy.place.unwanted or copy.unwanted is not self._far.unwanted:
            raise ValueError(f'cannot {act} a copy that is released or of another backend')
        return copy

    def _ask(self, direction: Direction, number: int, near: ByteArray, after: ChaosTransfer | None) -> ChaosTransfer:
        """Makes a transfer; `_streams.put` is left to the caller, once nothing else can fail."""
        doomed = self._doomed[direction] > 0
        self._doomed[direction] -= doomed
        transfer = ChaosTransfer(direction, number, Borrowed(near), after, doomed, self._streams)
        self._note(transfer, 'is asked for')
        return transfer

    # What follows runs when the streams have a copy made.

    def _carry_out(self, transfer: ChaosTransfer) -> None:
        self._take_back()
        failure = None
        try:
            self._copy(transfer)
        except SpillError as error:
            failure = SpillError(*error.args)  # without the frames of this one
            self._note(transfer, 'fails')
        transfer.end(failure)

    def _copy(self, transfer: ChaosTransfer) -> None:
        near, number, outward = transfer.near, transfer.number, transfer.direction is Direction.OUT
        assert near is not None, 'a copy is made once'
        if transfer.after is not None and transfer.after.failure is not None:
            raise transfer.after.failure
        if outward and self._is_useless(number):
            self._note(transfer, 'is not made: nobody wants it any more')
            return
        if transfer.doomed:
            whole = 'source' if outward else 'far copy'
            raise SpillError(errno.EIO, f'the {transfer} failed, as the test wanted; the {whole} is still whole')
        alive = self._far.store(number, near) if outward else self._far.load(number, near)
        self._note(transfer, 'is made')
        if not alive:
            self._note(transfer, f'had its {"source" if outward else "target"} freed before it was done')
            self.misuses.append(self.events[-1])

    def _is_useless(self, number: int) -> bool:
        """Whether nobody will read the bytes of a copy any more."""
        return self._far.is_unwanted(number) and not self._is_read(number)

    def _is_read(self, number: int) -> bool:
        return any(each.number == number for each in self._streams.pending(Direction.IN))

    def _is_needed(self, number: int) -> bool:
        return any(each.number == number for direction in Direction for each in self._streams.pending(direction))

    def _take_back(self) -> None:
        self.events += [f'copy {number} is given back' for number in self._far.take_back(self._is_needed)]

    def _note(self, transfer: ChaosTransfer, what: str) -> None:
        self.events.append(f'{transfer} {what}')
