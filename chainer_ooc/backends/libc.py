"""The C library, for what Python has no functions for."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os

_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def libc() -> ctypes.CDLL:
    """The library, whose `mmap`, `munmap` and `madvise` take addresses; `last_error` has why a call failed."""
    library = ctypes.CDLL(None, use_errno=True)  # each is a cycle, which only Python's collector would find
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library


def map_pages(nbytes: int, flags: int, descriptor: int = -1, start: int = 0, address: int | None = None) -> int:
    """Maps pages that can be read and written; gives their address. See mmap(2).

    Raises:
        OSError: the system refuses.
    """
    found: int = libc().mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, start)
    if found == _FAILED:
        raise last_error()
    return found


def last_error() -> OSError:
    """Why this thread's last call of the library failed."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
