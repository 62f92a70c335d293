"""Which tier the bytes really went to, and how fast copies are over all tiers together.

A plan that takes the link's speed for what goes by way of a disk is wrong by ten times and more. The backend measures
pinned memory by itself. Copies by way of the spill file are timed as they are made, since a sample of the disk would
measure the page cache; until there was one, nothing is known of it and nothing is assumed::

    swapped out     [ 30 GB to pinned memory at 50 GB/s ][ 10 GB to the file at 2 GB/s ]
    together        40 GB in 5.6 s: 7.1 GB/s

Left out: which map goes where. The first copies of an iteration find room in pinned memory, whatever the plan.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterable
from dataclasses import replace

from chainer_ooc.backends.base import Bandwidth
from chainer_ooc.backends.spill.transfer import HostTransfer
from chainer_ooc.quantities import format_bytes

PINNED, FILE = 'pinned', 'file'

#: Copies by way of the file whose times are kept, in each direction.
LATEST = 64

_LOG = logging.getLogger('chainer_ooc')


class Tiers:
    """Counts what is swapped out, by tier (`out_bytes`). One thread at a time uses it.

    With `warns` the first copy to the spill file is logged.
    """

    def __init__(self, warns: bool = True) -> None:
        self._warns = warns
        self.out_bytes = {PINNED: 0, FILE: 0}
        self._logged = False
        self._planned_bytes = {PINNED: 0, FILE: 0}  # of those, what `together` was told of
        self._written: collections.deque[HostTransfer] = collections.deque(maxlen=LATEST)
        self._read: collections.deque[HostTransfer] = collections.deque(maxlen=LATEST)

    def to_pinned(self, nbytes: int) -> None:
        """Counts a copy to pinned memory."""
        self.out_bytes[PINNED] += nbytes

    def to_file(self, transfer: HostTransfer, folder: str, pinned_bytes: int) -> None:
        """Counts a copy to the spill file in `folder`, for which pinned memory of `pinned_bytes` has no room.

        The first one is logged, unless nothing was to be pinned.
        """
        if self._warns and pinned_bytes and not self.out_bytes[FILE]:
            _LOG.warning('pinned memory has no room within its %s: what does not fit goes to the spill file in %s, '
                         'which is slower; see chainer.config.ooc_host_limit', format_bytes(pinned_bytes), folder)
        self.out_bytes[FILE] += transfer.nbytes
        self._written.append(transfer)

    def from_file(self, transfer: HostTransfer) -> None:
        """Takes note of a copy back."""
        self._read.append(transfer)

    def together(self, pinned: Bandwidth) -> Bandwidth:
        """The speed of all copies, by what each tier took since the last call and the speed of pinned memory."""
        parts = {tier: nbytes - self._planned_bytes[tier] for tier, nbytes in self.out_bytes.items()}
        if not any(parts.values()):
            return pinned
        self._planned_bytes = dict(self.out_bytes)
        share = parts[FILE] / sum(parts.values())
        write, read = _speed(self._written), _speed(self._read)
        if not share or write is None:
            return pinned
        return replace(
            pinned,
            write_bytes_per_second=_blend(pinned.write_bytes_per_second, write, share),
            read_bytes_per_second=_blend(pinned.read_bytes_per_second, write if read is None else read, share))

    def log(self) -> None:
        """Says at the end where the bytes went, once."""
        if any(self.out_bytes.values()) and not self._logged:
            self._logged = True
            _LOG.info('swapped out in all: %s to pinned memory, %s to the spill file',
                      *(format_bytes(self.out_bytes[tier]) for tier in (PINNED, FILE)))


def _speed(transfers: Iterable[HostTransfer]) -> float | None:
    """Bytes per second of those that are over; None if none is."""
    known = [(each.nbytes, each.seconds) for each in transfers if each.done and each.seconds > 0]
    seconds = sum(each for _, each in known)
    return sum(nbytes for nbytes, _ in known) / seconds if seconds else None


def _blend(pinned: float, file: float, share: float) -> float:
    return 1 / ((1 - share) / pinned + share / file)
