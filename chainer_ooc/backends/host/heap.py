"""Makes arrays that are freed go back to the system, as far as the C library lets us.

glibc keeps freed memory for itself: a freed array's pages stay resident, and the peak of a program that frees in
time is no lower than that of one that does not. An array that ``malloc`` has mapped on its own goes back at once, and
``M_MMAP_THRESHOLD`` says from which size on it does so.
"""

from __future__ import annotations

import ctypes
import os

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

MMAP_THRESHOLD_BYTES = 1 << 20


def return_freed_memory() -> str | None:
    """Sets the C library up; returns None, or a sentence that says why this C library cannot be."""
    if not is_glibc():
        return 'the C library is not glibc: freed arrays may stay resident until the process ends'
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_ARENA_MAX, 1)
    libc.mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    return None


def is_glibc() -> bool:
    """Whether the C library is glibc."""
    try:
        return (os.confstr('CS_GNU_LIBC_VERSION') or '').startswith('glibc')
    except (AttributeError, ValueError, OSError):
        return False
