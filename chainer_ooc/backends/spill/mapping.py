"""Far copies read where they lie: an extent of the spill file, mapped into the process.

A page of such a mapping *is* the page of the page cache that the swap-out has written. Nothing is copied to read it,
what is written to it is the content of the far copy, and the system decides which of the pages are in memory: it reads
those that are touched, and under pressure writes back and drops the others. As shared pages of a file they count
neither for RLIMIT_DATA nor as private memory; RLIMIT_AS counts their addresses, and vm.max_map_count each mapping.

A copy still gets there by ``pwritev``: a disk that fails or is full is an error then. What remains is a page that was
dropped and cannot be read again, or, on file systems that write to a new place each time, cannot be written again: the
system ends the process by SIGBUS.

Python's own ``mmap`` would hold a descriptor for each mapping, hence ctypes. The address becomes an array through
``__array_interface__``, so that the mapping lives as long as the last view of it, also after the file was closed.

A forked child inherits the mappings. There they become private, so that what the child writes never reaches the
parent; what the parent writes later, the child may see.

Left out: populating page tables ahead, which would take the caller's time.
"""

from __future__ import annotations

import errno
import mmap
from typing import Any

from chainer_ooc.backends.layout import GAP_BYTES
from chainer_ooc.backends.libc import libc, map_pages

_MAP_FIXED = 0x10  # everywhere that we run; the mmap module has no name for it
_OUT_OF_ADDRESSES = (errno.ENOMEM, errno.EAGAIN)


class Mapping:
    """A mapped extent of at least a byte; ``arrays.root_of`` knows it by its type.

    `start` is a multiple of the page size; `mapped` has the mapping's token for as long as the mapping lives.

    Raises:
        MemoryError: The system gives no addresses.
        OSError: The file cannot be mapped.
    """

    __slots__ = ('__weakref__', '_address', '_mapped', '_nbytes', '_start', '_token', '_unmap')

    def __init__(self, descriptor: int, start: int, nbytes: int, mapped: set[object]) -> None:
        self._start, self._nbytes = start, nbytes
        self._mapped, self._token = mapped, object()
        self._unmap = libc().munmap
        mapped.add(self._token)
        try:
            self._address = _map(None, nbytes, mmap.MAP_SHARED, descriptor, start)
        except BaseException:
            mapped.discard(self._token)
            raise
        libc().madvise(self._address, nbytes, mmap.MADV_WILLNEED)  # mere advice: a refusal costs time only

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {'version': 3, 'shape': (self._nbytes,), 'typestr': '|u1', 'data': (self._address, False)}

    def make_private(self, descriptor: int) -> None:
        """Has what is written from now on stay in this process.

        Raises:
            OSError: The system refuses.
        """
        _map(self._address, self._nbytes, mmap.MAP_PRIVATE | _MAP_FIXED, descriptor, self._start)

    def __del__(self) -> None:
        if hasattr(self, '_address'):
            self._mapped.discard(self._token)  # nothing can read it any more
            self._unmap(self._address, self._nbytes + GAP_BYTES)


def _map(address: int | None, nbytes: int, flags: int, descriptor: int, start: int) -> int:
    try:
        return map_pages(nbytes + GAP_BYTES, flags, descriptor, start, address)
    except OSError as error:
        if error.errno not in _OUT_OF_ADDRESSES:
            raise
        raise MemoryError(f'no {nbytes} bytes of addresses for a mapping of the spill file: {error.strerror}; '
                          'raise ulimit -v or vm.max_map_count') from None
