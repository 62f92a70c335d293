"""The C library, for what Python has no functions for."""

from __future__ import annotations

import ctypes
import functools
import os


@functools.cache
def libc() -> ctypes.CDLL:
    """The library, whose `mmap`, `munmap` and `madvise` take addresses; `last_error` has why a call failed."""
    library = ctypes.CDLL(None, use_errno=True)  # each is a cycle, which only Python's collector would find
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library


#: What `mmap` gives where it fails.
MAP_FAILED = ctypes.c_void_p(-1).value


def last_error() -> OSError:
    """Why this thread's last call of the library failed."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
