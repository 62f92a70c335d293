r"""The CUDA backend: arrays on the GPU, swapped to pinned host memory by two streams, and to a spill file behind it.

    caller --- pinned memory has room? --- yes --> streams "out" and "in" <---> pinned memory          (far, transfer)
                                      \--- no ---> two threads <---> staging blocks <---> spill file   (disk)
       release (any thread) -> deques, emptied by the caller's next swap-out and by the swap-out thread
       arrays ---> Budget ---> allocator ---> the device                                               (budget)

What orders the copies with the computations stands in ``transfer``. The limit of near memory is the budget's, which is
CuPy's allocator for as long as the backend is open: it covers every array of the process, the program's too.

Left out: the order and the time of swaps (``schedule``); mappings of the spill file; a second GPU.
"""

from __future__ import annotations

import contextlib
import errno
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from chainer_ooc.backends.base import Bandwidth, ByteArray, FarCopy, Transfer
from chainer_ooc.backends.cuda import preparations
from chainer_ooc.backends.cuda.driver import Driver, Event
from chainer_ooc.backends.cuda.far import CudaCopy, FarMemory
from chainer_ooc.backends.cuda.transfer import ELSEWHERE
from chainer_ooc.backends.cuda.waits import Waits
from chainer_ooc.backends.host import headroom, measure
from chainer_ooc.backends.metering import Meter
from chainer_ooc.backends.owned import OwnedBackend, check_array, check_target, close_in_children
from chainer_ooc.backends.spill import filesystem
from chainer_ooc.errors import SpillError
from chainer_ooc.quantities import format_bytes

#: What copies are timed with: the first one that the device has room for twice.
SAMPLES_BYTES = (64 << 20, 16 << 20, 4 << 20, 1 << 20)

#: They pin the blocks, and a link that was idle takes a moment to reach its speed.
_WARM_UP_PASSES = 2


class CudaBackend(OwnedBackend):
    """Near memory is the GPU's, far memory pinned memory of the host, then an unnamed file in a folder.

    Args:
        spill_dir: Folder of the spill file; None for the folder of temporary files, or ``/var/tmp`` where that is a
            RAM disk.
        host_limit_bytes: What may be pinned for far copies; None for a share of the host's memory, see ``pinned``. A
            few blocks of 8 MiB that copies to and from the file pass through come on top.
        allocator: ``'pool'``, ``'virtual'``, ``'async'`` or ``'unified'``.
        driver: The device; None for the one that is CuPy's current one.

    Raises:
        SpillError: No spill file can be made in the folder that is named.
        RuntimeError: CUDA has no device or no driver.
    """

    name = 'cuda'
    elsewhere = ELSEWHERE

    #: The state of a cuRAND generator can neither be read nor set.
    repeats_random = False

    counts_all = True
    prepares_far_memory = True

    def __init__(self, spill_dir: str | None = None, *, host_limit_bytes: int | None = None, allocator: str = 'virtual',
                 driver: Driver | None = None) -> None:
        super().__init__()
        self._driver = Driver() if driver is None else driver
        self._bandwidth: Bandwidth | None = None
        self._facts = self._driver.facts()
        self._budget = self._driver.budget(allocator)
        self._room_bytes = 0
        self._waits = Waits(self._driver)
        self._budget.install()
        try:
            self._look_at_room()
            self._far = FarMemory(self._driver, spill_dir, host_limit_bytes)
            close_in_children(self)
            _shares.setdefault(self._budget, {})[id(self)] = None
        except BaseException:
            if hasattr(self, '_far'):  # it has taken over what others have pinned
                self._far.close()
            self._leave_budget()
            raise

    def manages(self, root: Any) -> bool:
        return self._driver.manages(root)

    def meter(self) -> Meter:
        return self._budget.meter()

    def timestamp(self) -> Event:
        return self._driver.record(self._driver.compute(), timed=True)

    def seconds_between(self, start: Event, end: Event) -> float:
        self._driver.synchronize(end)
        return self._driver.seconds_between(start, end)

    def computing_seconds(self, spans: Iterable[tuple[Event, Event]]) -> list[float]:
        return self._waits.without([*spans])

    def computing(self) -> contextlib.AbstractContextManager[None]:
        """Has each computation come after the one before, whichever streams the program puts them on."""
        return _OnCurrentStream(self._driver)

    def preparations(self) -> int:
        return preparations.total()

    def limit(self, nbytes: int | None, on_out_of_memory: Callable[[int], bool]) -> None:
        self._share_budget(nbytes)
        self._budget.ask(self, None if nbytes is None else on_out_of_memory, self._waits.within)
        self._look_at_room()

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        with self._driver.on_this_device(), self._budget.lent(self):
            yield

    def allocate(self, nbytes: int) -> ByteArray:
        with self._budget.no_relief():
            return self._driver.empty(nbytes)

    def free_bytes(self) -> int:
        self._look_at_room()
        return max(0, self._room_bytes - self._budget.used_bytes())

    def default_budget_bytes(self, held_bytes: int, latest_bytes: int | None) -> int:
        """In steps, see `headroom`; as the limit, it covers what was allocated before this backend was made, too."""
        counted_bytes = self._budget.counted_bytes()  # first: what is cached elsewhere is free then
        free_bytes = self._budget.unlimited_bytes()
        return headroom.budget(latest_bytes, counted_bytes + free_bytes, round(headroom.SHARE_SET_ASIDE * free_bytes))

    def most_budget_bytes(self, held_bytes: int) -> int:
        return self._budget.counted_bytes() + self._budget.unlimited_bytes()

    def has_room(self, nbytes: int) -> bool:
        """By what the device had when it was last asked: asking it takes too long for every computation."""
        return nbytes <= self._room_bytes - self._budget.used_bytes()

    def trim(self) -> None:
        """Under a limit nothing goes back: what is kept counts as free, and is given back where it is in the way.

        Giving it all back would have the host wait for the device, and the driver map it anew. Only the device is asked
        again how much of it other programs leave.
        """
        if self._budget.limit_bytes is None:
            self._budget.trim()
        self._look_at_room()

    def counted_bytes(self) -> int:
        return self._budget.counted_bytes()

    def lacking_bytes(self, nbytes: int) -> int:
        return max(0, nbytes - self._room_bytes + self._budget.used_bytes())

    def lost_bytes(self, budget_bytes: int) -> int:
        return self._budget.lost_bytes(budget_bytes)

    def reserve(self, nbytes: int) -> None:
        self._check_usable('reserve far memory')
        free_bytes = self._far.free_bytes()
        if nbytes > free_bytes:
            raise SpillError(
                errno.ENOSPC, f'pinned memory and the spill folder {self._far.disk.folder!r} are too small together '
                f'(needed {format_bytes(nbytes)}, free {format_bytes(free_bytes)}); raise '
                'chainer.config.ooc_host_limit, free space there or set chainer.config.ooc_spill_dir to another folder')

    def prepare(self, sizes: Iterable[int]) -> None:
        """Has a thread pin blocks for them."""
        self._check_usable('prepare far memory')
        self._far.pinned.prepare(sizes)

    def is_prepared(self, nbytes: int) -> bool:
        return self._far.pinned.is_prepared(nbytes)

    def swap_out(self, source: ByteArray) -> tuple[FarCopy, Transfer]:
        self._check_usable('swap out')
        check_array(source, 'source')
        copy = self._far.swap_out(source)
        return copy, copy.swap_out

    def swap_in(self, copy: FarCopy, into: ByteArray) -> Transfer:
        own = self._own(copy, 'swap in')
        check_target(into, copy.nbytes)
        return self._far.swap_in(own, into)

    def map(self, copy: FarCopy) -> ByteArray:
        """Shows pinned memory, which computations read and write over the link; nothing is fetched before."""
        return self._far.map(self._own(copy, 'map'))

    def bandwidth(self, anew: bool = False) -> Bandwidth:
        """See `Backend.bandwidth`; where copies have gone by way of the spill file since, as fast as all together.

        The spill file is not timed here: a plan that counts on pinned memory is wrong about what goes to the disk, and
        the times that are measured while it runs correct it. Computations run as fast beside copies, which have engines
        of their own; kernels that are bound by memory lose what the copies take of its bandwidth, a few per cent.
        """
        self._check_usable('measure the bandwidth')
        if self._bandwidth is None or anew:
            with self._far.uncounted():
                self._bandwidth = measure.copies(self, *self._sample_and_target(), _WARM_UP_PASSES)
        return self._far.tiers.together(self._bandwidth)

    def tier_bytes(self) -> dict[str, int]:
        return dict(self._far.tiers.out_bytes)

    def machine(self) -> str:
        return f'{self._facts.name}, {format_bytes(self._facts.total_bytes)}'

    def describe(self) -> dict[str, Any]:
        self._check_usable('describe')
        limits = {'device': self._driver.free_bytes()}
        if self._budget.limit_bytes is not None:
            limits['budget'] = self._budget.limit_bytes
        return {
            'device': self.name,
            **{f'device_{name}': value for name, value in asdict(self._facts).items()},
            'allocator': self._budget.name,
            'near_free_bytes': self.free_bytes(),
            'near_limits_bytes': limits,
            'pinned_bytes': self._far.pinned.held_bytes(),
            'pinned_limit_bytes': self._far.pinned.limit_bytes,
            'pinned_refusals': self._far.pinned.refusals,
            'swapped_out_bytes': self.tier_bytes(),
            'spill_folder': self._far.disk.folder,
            'spill_filesystem': filesystem.filesystem_type(self._far.disk.folder),
            'spill_free_bytes': max(0, self._far.disk.free_bytes()),
            'spill_file_bytes': self._far.disk.held_bytes(),
            'warnings': self._warnings(),
        }

    def close(self) -> None:
        """See `Backend.close`.

        Raises:
            SpillError: the device failed; all is given back that could be.
        """
        self._closed = True
        if not self._is_here():
            self._far.disk.part()
            return
        try:
            self._far.close()
        except RuntimeError as error:
            raise SpillError(f'the GPU failed while its backend was closed: {error}') from error
        finally:
            self._leave_budget()

    def _leave_budget(self) -> None:
        self._budget.ask(self, None)
        _shares.get(self._budget, {}).pop(id(self), None)
        if _shares.get(self._budget):  # another thread trains
            self._share_budget()
        else:
            self._budget.close()

    def _share_budget(self, nbytes: int | None = None) -> None:
        """The device may hold what all threads that train on it may; `nbytes` is this one's."""
        shares = _shares[self._budget]
        if id(self) in shares:
            shares[id(self)] = nbytes
        limits = [each for each in shares.values() if each is not None]
        self._budget.limit_bytes = sum(limits) if limits else None

    def _own(self, copy: FarCopy, act: str) -> CudaCopy:
        self._check_usable(act)
        if not isinstance(copy, CudaCopy) or copy.place.unwanted or not self._far.owns(copy):
            raise ValueError(f'cannot {act} a copy that is released or of another backend')
        return copy

    def _sample_and_target(self) -> tuple[ByteArray, ByteArray]:
        """Raises MemoryError where there is no room for the smallest."""
        for nbytes in SAMPLES_BYTES[:-1]:
            try:
                return self.allocate(nbytes), self.allocate(nbytes)
            except MemoryError:
                continue
        return self.allocate(SAMPLES_BYTES[-1]), self.allocate(SAMPLES_BYTES[-1])

    def _look_at_room(self) -> None:
        """Asks the device how much our arrays together may hold."""
        self._room_bytes = self._budget.free_bytes() + self._budget.used_bytes()

    def _warnings(self) -> list[str]:
        warnings = []
        if self._far.pinned.refused:
            warnings.append(f'the system refused to pin more than {format_bytes(self._far.pinned.limit_bytes)} when it '
                            'was asked last: the rest goes to the spill file, and it is asked again in a while; see '
                            'ulimit -l and the memory that is free')
        ram_disk = filesystem.ram_disk_warning(self._far.disk.folder)
        return [*warnings, ram_disk] if ram_disk else warnings


class _OnCurrentStream(contextlib.AbstractContextManager[None]):
    """Goes around a computation; see `StreamOrder`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __enter__(self) -> None:
        self._driver.compute()

    def __exit__(self, *_: object) -> None:
        pass


#: Of each budget, what the backends that are open let the device hold; None for one that has no limit yet.
_shares: weakref.WeakKeyDictionary[Any, dict[int, int | None]] = weakref.WeakKeyDictionary()
