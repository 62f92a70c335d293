"""How glibc keeps freed memory, set so that resident memory falls at no cost in time.

Arrays of the thread that trains come from `arena` where that could be compiled; what follows is for others.

Two ways to have freed arrays leave the process, measured on ResNet50, batch 16, with the maps swapped out and in (19 GB
of arrays of 1 MB and more are allocated and freed in an iteration; replayed with each page touched; 675 MB are live at
the peak; transparent huge pages on request, as NumPy does for arrays of 4 MB and more):

    M_MMAP_THRESHOLD      page faults    seconds in the kernel    peak resident
    128 kB or 1 MB             840000                      2.5           677 MB
    4 MB                       560000                      1.7           690 MB
    32 MB                      120000                      0.7           711 MB
    glibc's own choice         170000                      0.8           712 MB

A mapping of its own for every array gives back all at once, but the kernel has to make and clear its pages each time:
a quarter of the whole iteration. So arrays below 32 MB, the largest threshold there is, live in the heap, where one
array's place is the next one's, and the heap's end goes back to the system whenever ``KEPT_BYTES`` of it are free.
These are the values that glibc's adaptive choice ends at by itself; fixed, they hold from the first iteration on. What
fragmentation keeps, 5 % here, ``trim`` gives back on demand.

Before training begins it is the other way round: a model's parameters and their first gradients are made once, and what
is freed of them would stay as holes that a limit such as RLIMIT_DATA counts and no later array fits. So from
`chainer.config.ooc` on, until there is a backend, arrays of 256 kB and more are mapped on their own.

What is set stays set until the process ends: glibc offers no way back to its adaptive choice.

Left out: other C libraries. musl returns large arrays at once by design.
"""

from __future__ import annotations

import ctypes
import os

from chainer_ooc.backends.libc import libc

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

#: Arrays from this size on are mapped on their own and go back as soon as they are freed.
MAPPED_BYTES = 32 << 20

#: The same before training begins.
EARLY_MAPPED_BYTES = 256 << 10

#: As much free memory may stay at the heap's end.
KEPT_BYTES = 64 << 20


_in_use = False


def leave_no_holes() -> None:
    """Has glibc map arrays from `EARLY_MAPPED_BYTES` on, until `return_freed_memory` is called."""
    if not _in_use and is_glibc():
        libc().mallopt(_M_MMAP_THRESHOLD, EARLY_MAPPED_BYTES)


def return_freed_memory() -> str | None:
    """Has glibc map arrays from `MAPPED_BYTES` on on their own.

    Returns None, or a sentence that says why it does not.
    """
    global _in_use
    _in_use = True
    if not is_glibc():
        return 'the C library is not glibc: how it keeps freed memory is left as it is'
    # One arena: a second one, made for a swap thread's small objects, would reserve 64 MB of addresses (RLIMIT_AS).
    settings = {_M_ARENA_MAX: 1, _M_TRIM_THRESHOLD: KEPT_BYTES, _M_MMAP_THRESHOLD: MAPPED_BYTES}
    refused = [name for name, value in settings.items() if not libc().mallopt(name, value)]
    return f'glibc refused the settings {refused} of mallopt: freed arrays may stay resident' if refused else None


def trim() -> None:
    """Gives all free pages of the heap back to the system, those between live arrays included."""
    if is_glibc():
        libc().malloc_trim(ctypes.c_size_t(0))


def free_bytes() -> int:
    """What the heap holds for the next arrays: the process has it from the system, resident or not.

    0 where that is not known: before glibc 2.33, and with other C libraries.
    """
    call = getattr(libc(), 'mallinfo2', None) if is_glibc() else None
    if call is None:
        return 0
    call.restype = _Mallinfo
    return int(call().fordblks)


class _Mallinfo(ctypes.Structure):
    """What mallinfo2 returns (malloc.h)."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (
        'arena', 'ordblks', 'smblks', 'hblks', 'hblkhd', 'usmblks', 'fsmblks', 'uordblks', 'fordblks', 'keepcost'))


def is_glibc() -> bool:
    """Whether the C library is glibc."""
    try:
        return (os.confstr('CS_GNU_LIBC_VERSION') or '').startswith('glibc')
    except (ValueError, OSError):
        return False
