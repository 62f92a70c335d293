"""Keeps the dirty pages of the spill file few, for containers.

What is written lies in the page cache as dirty pages until the system writes it to the disk, by default for half a
minute. In a container they count against its limit, and unlike clean ones they cannot be taken back at once: with
ResNet50 and a limit of 1,300 MB up to 770 MB were dirty, and the kernel killed the training. So where there is such a
limit, the thread that writes starts the writing to disk when half of what is allowed is dirty, and waits for the
oldest piece when all of it is. The pages stay in the cache, clean, for as long as the kernel has room for them.

    written:   |   1   |   2   |   3   |   4   |   5   |   6   |         allowed: four pieces
    to disk:   |    waited for |       started |       not yet |

It costs the speed of the disk: 11.9 GB/s to the page cache, 5.0 GB/s with two or more pieces under way (600 MB in
pieces of 8 MB, the virtual disk of the machine of docs/results.md). ``fdatasync`` instead would wait for everything.

Left out: pages of extents that are released before they reach the disk; they are written in vain.
"""

from __future__ import annotations

import collections
import ctypes

from chainer_ooc.backends.libc import last_error, libc

_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4  # SYNC_FILE_RANGE_..., linux/fs.h


class WriteBack:
    """What of a file may be dirty, in the order in which it was written; for the thread that writes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: collections.deque[tuple[int, int]] = collections.deque()
        self._started: collections.deque[tuple[int, int]] = collections.deque()
        self._waiting_bytes = self._started_bytes = 0

    def wrote(self, start: int, nbytes: int, allowed_bytes: int | None) -> None:
        """Notes a piece that was written, and writes the oldest to the disk before more than `allowed_bytes` are dirty.

        Raises:
            OSError: the disk failed. Any piece that was not waited for may be lost.
        """
        if allowed_bytes is None:  # any number may be
            return
        self._waiting.append((start, nbytes))
        self._waiting_bytes += nbytes
        while self._waiting_bytes > allowed_bytes // 2:
            start, nbytes = self._waiting.popleft()
            self._waiting_bytes -= nbytes
            self._started_bytes += nbytes
            self._started.append((start, nbytes))
            sync(self._descriptor, start, nbytes, _WRITE)
        while self._waiting_bytes + self._started_bytes > allowed_bytes:
            start, nbytes = self._started.popleft()
            self._started_bytes -= nbytes
            sync(self._descriptor, start, nbytes, _WAIT_BEFORE | _WRITE | _WAIT_AFTER)


def clean(descriptor: int) -> None:
    """Waits until nothing of a file is dirty; for any thread.

    Raises:
        OSError: the disk failed.
    """
    sync(descriptor, 0, 0, _WAIT_BEFORE | _WRITE | _WAIT_AFTER)  # 0 bytes: to the end


def sync(descriptor: int, start: int, nbytes: int, flags: int) -> None:
    """Calls sync_file_range."""
    if libc().sync_file_range(
            ctypes.c_int(descriptor), ctypes.c_int64(start), ctypes.c_int64(nbytes), ctypes.c_uint(flags)):
        raise last_error()
