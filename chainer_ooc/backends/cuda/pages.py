"""Host memory that a device copies to and from by itself: pages of our own, which CUDA is told of afterwards.

`hostAlloc` has one thread of the driver make small pages, and takes 0.5 to 0.7 s for each gigabyte. What it does can be
done apart, and then most of the time goes: huge pages, which several threads touch, and which `hostRegister` pins::

    map 1 GB at a huge page's start    keep it from forked children    touch it: 1 to 8 threads    hostRegister
    hostUnregister                     unmap

CUDA knows registered memory by its address. An address that was unmapped while it was registered may be given to other
memory, and copies to that would go to the pages that were there before. So a mapping is an address here and no object
that a garbage collector could unmap: nothing is unmapped before CUDA has let go of it, or where that is not known.

For the same reason a forked child must not have the mapping: it would share the pages until somebody writes, and a
parent that then gets a new page computes with another one than the device copies to. Recent kernels copy pinned pages
for the child at once; `MADV_DONTFORK` helps in all of them, and saves the copies.

`hostAlloc` remains for what is smaller than a huge page, for devices and systems that register no memory or know it by
another address (which `Driver.show` could not use), and for what the host or the container says it has not: touched
pages that are not there have the system end processes, where `hostAlloc` may fail, which is a refusal like others.

Source: PyTorch's `pinned_use_cuda_host_register` and `pinned_num_register_threads`, with small pages of the heap. Left
out: which NUMA node pages are on.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import functools
import mmap
import os
import time
from collections import deque
from typing import Any

from chainer_ooc.backends.host import limits
from chainer_ooc.backends.libc import last_error, libc, map_pages
from chainer_ooc.quantities import rounded_up
from chainer_ooc.ranks.node import share
from chainer_ooc.ranks.threads import own_cores

#: A huge page of x86 and of ARM with small pages of 4 kB; less is left to `hostAlloc`.
HUGE_PAGE_BYTES = 2 << 20

#: Of twelve threads the last four save a tenth of the time.
MOST_THREADS = 8
#: A thread touches at least so much: 10 ms. Less is not worth waiting for Python's lock once more.
LEAST_PART_BYTES = 32 << 20

_POLL_SECONDS = 0.0002
_OUT_OF_MEMORY, _NOT_REGISTERED = 2, 713  # cudaErrorMemoryAllocation, cudaErrorHostMemoryNotRegistered
_PORTABLE = 1  # cudaHostRegisterPortable, for which CuPy has no name

#: What is mapped here, by its address. Of the process: an address is unique in it, whichever driver it was pinned by.
_MAPPED: dict[int, Pages] = {}


class HostPages:
    """Pins host memory through CuPy's runtime.

    Attributes:
        registers: memory of ours can be registered, as far as is known.
    """

    def __init__(self, runtime: Any) -> None:
        self.registers = True
        self._runtime = runtime

    def pin(self, nbytes: int) -> int:
        """Returns the address of new memory that a device reads and writes by itself.

        Raises:
            RuntimeError: CUDA gives no more of it.

        If this fails: nothing is mapped or registered, unless a second interrupt came before all threads had ended.
        """
        refused = False
        if nbytes >= HUGE_PAGE_BYTES and self._can_register() and nbytes <= limits.free_bytes():
            try:
                return self._register(nbytes)
            except OSError:  # mappings may be limited (ulimit) where CUDA's own are not
                pass
            except _NotRegisteredError:
                refused = True
        address = int(self._runtime.hostAlloc(nbytes, self._runtime.hostAllocPortable))
        self.registers = self.registers and not refused  # had this failed too, it would say nothing of registering
        return address

    def unpin(self, address: int) -> None:
        """Gives back what `pin` gave; no copy may be using it.

        Raises:
            RuntimeError: CUDA does not let go of it. It stays mapped.
        """
        if address not in _MAPPED:
            self._runtime.freeHost(address)
            return
        self._runtime.hostUnregister(address)
        _unmap(address)

    def _can_register(self) -> bool:
        runtime = self._runtime
        # Without it kernels would need another address, under policy `unified`.
        return self.registers and bool(runtime.deviceGetAttribute(
            runtime.cudaDevAttrCanUseHostPointerForRegisteredMem, runtime.getDevice()))

    def _register(self, nbytes: int) -> int:
        """Raises OSError or _NotRegisteredError where `hostAlloc` may still do it, or RuntimeError."""
        pages = Pages(nbytes)
        _MAPPED[pages.address] = pages
        try:
            pages.touch(threads())
            self._runtime.hostRegister(pages.address, pages.nbytes, _PORTABLE)
        except self._runtime.CUDARuntimeError as error:
            _unmap(pages.address)
            if error.status == _OUT_OF_MEMORY:
                raise
            raise _NotRegisteredError from error
        except BaseException:  # an interrupt, perhaps just after it was registered
            if not pages.touching and self._is_let_go_of(pages.address):
                _unmap(pages.address)
            raise
        return pages.address

    def _is_let_go_of(self, address: int) -> bool:
        try:
            self._runtime.hostUnregister(address)
        except self._runtime.CUDARuntimeError as error:
            return bool(error.status == _NOT_REGISTERED)
        return True


class Pages:
    """A mapping of private memory that begins with a huge page and that no forked child has.

    Attributes:
        address: where it begins.
        nbytes: its size: that which was asked for, in whole small pages.
        touching: tokens of the threads that write to it just now.

    Raises:
        OSError: the system refuses. Nothing is mapped.
    """

    __slots__ = ('address', 'nbytes', 'touching')

    def __init__(self, nbytes: int) -> None:
        self.nbytes = rounded_up(nbytes, mmap.PAGESIZE)
        self.touching: set[object] = set()
        # A huge page more, as the system chooses where it begins; what lies before and after goes back at once.
        mapped_bytes = self.nbytes + HUGE_PAGE_BYTES
        start = map_pages(mapped_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = rounded_up(start, HUGE_PAGE_BYTES)
        if self.address > start:
            libc().munmap(start, self.address - start)
        libc().munmap(self.address + self.nbytes, start + HUGE_PAGE_BYTES - self.address)
        if libc().madvise(self.address, self.nbytes, mmap.MADV_DONTFORK):
            error = last_error()
            self.unmap()
            raise error
        libc().madvise(self.address, self.nbytes, mmap.MADV_HUGEPAGE)  # mere advice: a refusal costs time only

    def touch(self, threads: int) -> None:
        """Has the system give all pages, by so many threads at most, of which the caller is one.

        If this fails: after an interrupt no thread writes any more, unless `touching` names it.
        """
        part_bytes = max(LEAST_PART_BYTES, rounded_up(-(-self.nbytes // threads), HUGE_PAGE_BYTES))
        end = self.address + self.nbytes
        parts = deque(range(self.address, end, part_bytes))

        def touch_next() -> bool:
            try:
                start = parts.popleft()
            except IndexError:
                return False
            fill(start, 0, min(part_bytes, end - start))
            return True

        def help_out() -> None:
            token = object()
            try:
                self.touching.add(token)  # first: once there are no parts left, who is not in there has none
                while touch_next():
                    pass
            finally:
                self.touching.discard(token)

        try:
            with contextlib.suppress(MemoryError, RuntimeError):  # there can be no further thread: others do more
                for _ in range(len(parts) - 1):
                    _thread.start_new_thread(help_out, ())  # a single call: `Thread.start` may be interrupted half-way
            while touch_next():
                pass
        finally:
            parts.clear()
            while self.touching:
                time.sleep(_POLL_SECONDS)

    def unmap(self) -> None:
        """Gives it back to the system; CUDA does not know it any more, and no thread touches it."""
        libc().munmap(self.address, self.nbytes)


class _NotRegisteredError(Exception):
    """CUDA does not register pages of ours, and not for want of memory."""


def threads() -> int:
    """How many threads touch pages: half of the cores that are this process's, as a training runs on the others."""
    return max(1, min(MOST_THREADS, share(own_cores()) // 2))


@functools.cache
def of(runtime: Any) -> HostPages:
    """What pins for all drivers of a runtime."""
    return HostPages(runtime)


#: `ctypes` lets go of Python's lock meanwhile.
fill = ctypes.memset


def _unmap(address: int) -> None:
    pages = _MAPPED.pop(address, None)
    if pages is not None:  # only one gets it
        pages.unmap()


os.register_at_fork(after_in_child=_MAPPED.clear)  # they are the parent's: others may be there in the child
