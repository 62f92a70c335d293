"""The file that is far memory: nameless, private, written and read at offsets.

The file has no name from the start (``O_TMPFILE``) or from the moment after (``unlink``), so nothing is left of it
however the process ends, and it is readable for its owner alone.

Each byte moves once: ``pwritev`` and ``preadv`` copy between the array's own memory and the page cache. Measured on
ext4 with arrays of 32 MiB, on a virtual machine with 2 cores (GB/s):

    memory to memory                  27    into a fresh array                     11
    write, pages written before       13    read into an array that is resident    20
    write, fresh pages, fallocated     9    read into a fresh array                10
    write, fresh pages, not            6
    O_DIRECT write                     5    O_DIRECT read                           3
    mapped file, mapped anew           2    mapped once, written again             19

So: plain calls through the page cache, extents that are used again (see ``extents``), and ``posix_fallocate`` where the
file grows, which costs microseconds, makes the first write faster and tells of a full disk before a byte has moved. A
mapping kept for good would be a little faster still, but its pages count as resident memory of this process, and a
full disk or a failing one would end the process by SIGBUS. ``O_DIRECT`` (a third of the speed) and dropping the page
cache after each write (a quarter) keep the page cache small, and it is the first thing the kernel takes back
under pressure anyway: neither is done. Where a container's limit counts the page cache, what is dirty in it is kept
small (see ``write_back``). What the policy ``unified`` maps, it maps to read (see ``mapping``).

Calls move at most ``PIECE_BYTES`` at a time: the interpreter's lock is free meanwhile, and a copy that was released
stops soon. Calls that a signal interrupts are repeated by Python itself (PEP 475).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import resource
import secrets
from collections.abc import Callable, Iterable

from chainer_ooc.backends.spill import filesystem, write_back
from chainer_ooc.backends.spill.mapping import Mapping
from chainer_ooc.backends.spill.write_back import WriteBack
from chainer_ooc.errors import SpillError
from chainer_ooc.quantities import format_bytes
from chainer_ooc.ranks.node import share
from chainer_ooc.warning import warn

PIECE_BYTES = 8 << 20

_NEXT_STEP = 'free space there or set chainer.config.ooc_spill_dir to a folder with more'


class SpillWarning(UserWarning):
    """The spill file works, and frees no memory: it lies on a RAM disk."""


class SpillFile:
    """An open spill file.

    Args:
        folder: Where the file lies; None for ``filesystem.default_folder()``.
        dirty_bytes: Says how much of the file may be dirty in the page cache; None for any amount.

    Raises:
        SpillError: The folder is missing or cannot be written to. Nothing is left open.
    """

    def __init__(self, folder: str | None = None, dirty_bytes: Callable[[], int | None] = lambda: None) -> None:
        self.folder = os.path.abspath(filesystem.default_folder() if folder is None else folder)
        self._owner = _open_nameless(self.folder)
        self._descriptor = self._owner.fileno()
        self._first_free_bytes = filesystem.free_space(self._descriptor)
        self._write_back = WriteBack(self._descriptor)
        self._dirty_bytes = dirty_bytes
        if filesystem.is_ram_disk(self.folder):
            warn(f'the spill folder {self.folder!r} is a RAM disk: what is swapped out stays in memory; set '
                 'chainer.config.ooc_spill_dir to a folder on a disk', SpillWarning)

    def free_bytes(self, end_bytes: int) -> int:
        """Returns by how much a file of ``end_bytes`` can grow: what the file system and RLIMIT_FSIZE leave.

        Ranks on this machine may have their files on the same disk. Each has its share of what is free now, or of what
        was free when it began: another one may have taken its own share meanwhile.
        """
        free = filesystem.free_space(self._descriptor)
        return _within_limit(min(free, max(share(free), share(self._first_free_bytes) - end_bytes)), end_bytes)

    def grow(self, start: int, nbytes: int) -> None:
        """Has the file system set blocks aside for ``nbytes`` from ``start`` on.

        Raises:
            SpillError: There is no room.

        If this fails: the file keeps its content; blocks that were already set aside are filled by later copies.
        """
        try:
            os.posix_fallocate(self._descriptor, start, nbytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise self._failure(error, 'growing the spill file', nbytes) from error

    def write(self, view: memoryview, start: int, unwanted: Callable[[], bool] = bool) -> None:
        """Writes ``view`` at ``start``; stops between two pieces once ``unwanted()`` is true.

        Raises:
            SpillError: A write failed. The view is untouched.
        """
        self._move(os.pwritev, view, start, 'writing to the spill file', unwanted, self._note_written)

    def read(self, view: memoryview, start: int) -> None:
        """Fills ``view`` from ``start``.

        Raises:
            SpillError: A read failed, or the file is shorter than it should be. The view is partly filled.
        """
        self._move(os.preadv, view, start, 'reading from the spill file', bool, lambda start, nbytes: None)

    def clean(self) -> None:
        """Waits until nothing of the file is dirty, so that the page cache can be taken back; for any thread.

        If this fails: nothing is raised; what the disk does not take stays dirty.
        """
        with contextlib.suppress(OSError):
            write_back.clean(self._descriptor)

    def map(self, start: int, nbytes: int, mapped: set[object]) -> Mapping:
        """Maps an extent that was written; see ``Mapping``.

        Raises:
            SpillError: The file system has no mappings.
            MemoryError: The system gives no addresses.
        """
        try:
            return Mapping(self._descriptor, start, nbytes, mapped)
        except OSError as error:
            raise self._failure(error, 'mapping the spill file', nbytes) from error

    def fileno(self) -> int:
        """The descriptor of the file, while it is open."""
        return self._descriptor

    def part_from(self, mappings: Iterable[Mapping]) -> None:
        """In a forked child: what it writes to mappings stays its own."""
        for mapping in mappings if self._descriptor >= 0 else ():
            mapping.make_private(self._descriptor)

    def __del__(self) -> None:
        # An interrupt may come before the caller has a reference to this file.
        if hasattr(self, '_owner'):
            self.close()

    def close(self) -> None:
        """Closes the file, which frees its space. Idempotent."""
        self._descriptor = -1
        self._owner.close()

    def _move(self, call: Callable[[int, list[memoryview], int], int], view: memoryview, start: int, step: str,
              unwanted: Callable[[], bool], after: Callable[[int, int], None]) -> None:
        moved = 0
        while moved < view.nbytes and not unwanted():
            try:
                count = call(self._descriptor, [view[moved:moved + PIECE_BYTES]], start + moved)
                after(start + moved, count)
            except OSError as error:
                raise self._failure(error, step, view.nbytes) from error
            if not count:  # the end of the file, or a device that takes nothing: asking again would never end
                ended = OSError(errno.EIO, f'it ends after {moved} of {view.nbytes} bytes at offset {start}')
                raise self._failure(ended, step, view.nbytes)
            moved += count

    def _note_written(self, start: int, nbytes: int) -> None:
        self._write_back.wrote(start, nbytes, self._dirty_bytes())

    def _failure(self, error: OSError, step: str, nbytes: int) -> SpillError:
        return SpillError(error.errno, f'{step} in {self.folder!r} failed: {error.strerror} '
                          f'(needed {format_bytes(nbytes)}, free {self._free_text()}); {self._next_step(error)}')

    def _next_step(self, error: OSError) -> str:
        if error.errno == errno.EFBIG and (limit := _file_limit()):
            return limit
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return _NEXT_STEP
        return ('the array is still whole in the other tier; if it happens again check the disk, or set '
                'chainer.config.ooc_spill_dir to another folder')

    def _free_text(self) -> str:
        try:
            return format_bytes(filesystem.free_space(self._descriptor))
        except OSError:
            return 'unknown'


def free_before(folder: str) -> int:
    """By how much a file that is made in a folder now can grow, see `SpillFile.free_bytes`."""
    return _within_limit(share(filesystem.free_space(folder)), 0)


def _within_limit(free_bytes: int, end_bytes: int) -> int:
    """What of the free space a file of ``end_bytes`` may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return free_bytes if limit == resource.RLIM_INFINITY else min(free_bytes, max(0, limit - end_bytes))


def no_room(folder: str, needed_bytes: int, free_bytes: int) -> SpillError:
    """The error of a reservation that cannot be met."""
    return SpillError(errno.ENOSPC, f'the spill folder {folder!r} is too small (needed {format_bytes(needed_bytes)}, '
                      f'free {format_bytes(free_bytes)}); {_file_limit() or _NEXT_STEP}')


def _file_limit() -> str:
    """What is to be done about the system's limit for files; '' where there is none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return ('' if limit == resource.RLIM_INFINITY else
            f'files of this process may have {format_bytes(limit)}: raise that limit (ulimit -f)')


def _open_nameless(folder: str) -> io.FileIO:
    """Opens a file that has no name, readable and writable for its owner alone."""
    try:
        try:
            return _open(folder, os.O_TMPFILE | os.O_EXCL)  # O_EXCL: it cannot be given a name later
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
        path = os.path.join(folder, f'chainer_ooc-{secrets.token_hex(8)}')
        try:
            return _open(path, os.O_CREAT | os.O_EXCL)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    except OSError as error:
        advice = ('raise that limit (ulimit -n), or close files' if error.errno in (errno.EMFILE, errno.ENFILE) else
                  'set chainer.config.ooc_spill_dir to a folder that exists and can be written to')
        raise SpillError(
            error.errno, f'cannot make a spill file in {folder!r}: {error.strerror}; {advice}') from error


def _open(path: str, flags: int) -> io.FileIO:
    # An interrupt comes between two steps of the interpreter. Here there is none between the opening and the object
    # that closes the descriptor when nothing refers to it: ``map`` goes from one to the other by itself.
    file, = map(io.FileIO, map(os.open, (path,), (flags | os.O_RDWR | os.O_CLOEXEC,), (0o600,)), ('r+',))
    return file
