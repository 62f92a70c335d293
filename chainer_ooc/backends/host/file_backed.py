"""Live arrays whose pages are those of the spill file: they stay where they are, and need no memory while nobody reads.

    private     the array's own pages                              counts, as all memory of the process does
      back      their bytes are written to the spill file as those of any swap-out, and the file's pages take the place
                of the array's own, at the same addresses: nobody who refers to it notices
    on a file   the page cache has the bytes; the process has the pages that it has touched since `drop`
      dies      the place in the file is free again

What is written to such an array, by whomever, is written to the file. So nothing has to be brought back before it is
read, and no reference has to be found, unlike for feature maps; but the system has to be asked for each page that is
touched, and one that is written to costs it 11 microseconds (ext4). `copy` goes past that.

Shared pages of a file count neither for RLIMIT_DATA nor as private memory. A forked child would see what the parent
writes later: all become private before a fork.

Left out: systems that cannot move pages (`arena.available`). On file systems that write to a new place each time, a
full disk ends the process by SIGBUS, as in ``spill.mapping``. What another thread writes to an array at the moment
when that is backed, or made private, may be lost. From NumPy 2.5 on an array's memory is freed before weak references
to it are called: one that neither NumPy's handler nor ours frees keeps its place in the file.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from chainer_ooc.backends.base import ByteArray, FarCopy
from chainer_ooc.backends.file_backed import FileBacked
from chainer_ooc.backends.host import arena, arrays
from chainer_ooc.errors import SpillError
from chainer_ooc.locks import make_lock
from chainer_ooc.quantities import format_bytes

_PAGE_BYTES = os.sysconf('SC_PAGE_SIZE')


class _Block:
    """A block that lies on a file, for as long as the library knows it: its root as a weak reference, and its place.

    NumPy resizes no array that has weak references, so that its memory is of one size and stays where it is.
    """

    __slots__ = ('copy', 'owner', 'ref')

    def __init__(self, root: Any, died: Callable[[Any], None], copy: FarCopy) -> None:
        self.ref, self.copy = weakref.ref(root, died), copy
        self.owner = id(self.ref)  # how the library calls it


class HostFileBacked(FileBacked):
    """The blocks that lie on one backend's spill file. Its caller holds a lock of the process but for reads and writes.

    Args:
        write: writes bytes to far memory; gives their copy, the file's descriptor, and where in it they are.
        release: gives such a place back.
        gives: whether the system gives so many bytes of memory; a container's kernel would end the process.
        clean: is given the bytes that were written since it returned True last; has them written to the disk where a
            limit counts dirty pages.
    """

    def __init__(self, write: Callable[[ByteArray], tuple[FarCopy, int, int]],
                 release: Callable[[FarCopy], None], gives: Callable[[int], bool],
                 clean: Callable[[int], bool]) -> None:
        self._write, self._release, self._gives, self._clean = write, release, gives, clean
        self._own: list[_Block] = []
        self._written_bytes = 0
        self._ended = -1
        self._is_closed = False
        self._library = _library()
        self.refusal = ''

    def back(self, root: Any) -> bool:
        self._sweep()
        if self.is_backed(root):
            return True
        may_be = root.flags.owndata and not self.refusal and not self._is_closed
        flat = arrays.flat_bytes(root) if may_be else None
        if flat is None:
            return False
        address = arrays.address_of(flat)
        before_bytes = -address % _PAGE_BYTES
        nbytes = (flat.nbytes - before_bytes) // _PAGE_BYTES * _PAGE_BYTES
        if nbytes <= 0:
            return False
        copy, descriptor, start = self._write(flat[before_bytes:before_bytes + nbytes])
        block = _Block(root, self._library.file_backed_died, copy)
        self._own.append(block)  # first, or after an interrupt its place would be another's while it lies there
        self._ended = -1
        error = self._library.file_backed_back(block.owner, address + before_bytes, nbytes, descriptor, start)
        if error:
            why = 'as many as can be lie there already' if error == errno.ENOSPC else os.strerror(error)
            self.refusal = f'{why} ({format_bytes(nbytes)})'
        return not error

    def is_backed(self, root: Any) -> bool:
        return bool(self._library.file_backed_at(*_place_of(root)))

    def drop(self, root: Any) -> None:
        self._sweep()
        self._library.file_backed_drop(*_place_of(root))

    def read(self, array: Any, into: Any) -> None:
        self._copy(array, into, False)

    def write(self, array: Any, source: Any) -> None:
        self._copy(array, source, True)
        self.note_written(array.nbytes)

    def note_written(self, nbytes: int) -> None:
        self._written_bytes += nbytes
        if self._clean(self._written_bytes):
            self._written_bytes = 0

    def writing(self) -> AbstractContextManager[Any]:
        return _WRITING

    def _copy(self, array: Any, buffer: Any, writes: bool) -> None:
        assert array.flags.c_contiguous and buffer.flags.c_contiguous
        assert (array.shape, array.dtype) == (buffer.shape, buffer.dtype)
        error = self._library.file_backed_copy(
            arrays.address_of(array), arrays.address_of(buffer), array.nbytes, writes)
        if error:
            act = 'writing' if writes else 'reading'
            raise SpillError(error, f'{act} {format_bytes(array.nbytes)} of a parameter, its gradient or its state, in '
                             f'the spill file failed: {os.strerror(error)}; check the disk, and go on from your last '
                             'snapshot')

    def close(self) -> None:
        for block in self._own:
            root = block.ref()
            if root is not None and self.is_backed(root) and (
                    not self._gives(root.nbytes) or self._library.file_backed_unback(block.owner)):
                raise MemoryError(
                    f'no memory for a parameter of {format_bytes(root.nbytes)} that lies on the spill file; free some, '
                    'or go on with the settings that chainer.config.ooc_parameters and ooc_spill_dir had')
        self._is_closed = True
        self._sweep()

    def part(self) -> None:
        """In a forked child: what it writes stays its own."""
        self._library.file_backed_part()
        self._own.clear()

    def _sweep(self) -> None:
        """Gives the places back of those that lie on the file no more."""
        ended = _ended().value
        if ended == self._ended:
            return
        over = [each for each in self._own if not self._library.file_backed_is(each.owner)]
        for each in over:
            self._own.remove(each)
            self._release(each.copy)
        self._ended = ended


def _place_of(root: Any) -> tuple[int, int]:
    """Address and size of a block; of what is none, that of nothing."""
    return (0, 0) if root is None else (arrays.address_of(root), root.nbytes)


#: Held while something writes to blocks without Python's lock, and while a fork makes them private.
_WRITING = make_lock()


@functools.cache
def _ended() -> ctypes.c_long:
    return ctypes.c_long.in_dll(_library(), 'file_backed_ended')


@functools.cache
def _library() -> ctypes.PyDLL:
    library = arena.library()
    address = ctypes.c_size_t
    library.file_backed_back.argtypes = (address, address, ctypes.c_size_t, ctypes.c_int, ctypes.c_long)
    library.file_backed_copy.argtypes = (address, address, ctypes.c_size_t, ctypes.c_int)
    library.file_backed_is.argtypes = library.file_backed_unback.argtypes = (address,)
    library.file_backed_at.argtypes = library.file_backed_drop.argtypes = (address, ctypes.c_size_t)
    library.file_backed_died.argtypes, library.file_backed_died.restype = (ctypes.py_object,), None
    if np.lib.NumpyVersion(np.__version__) >= '2.5.0.dev0':
        ctypes.c_int.in_dll(library, 'file_backed_is_told_late').value = 1
        arena.watch_numpys_own()
    os.register_at_fork(before=functools.partial(_before_fork, library), after_in_parent=_WRITING.release,
                        after_in_child=_WRITING.release)
    return library


def _before_fork(library: ctypes.PyDLL) -> None:
    _WRITING.acquire()
    library.file_backed_unback_all()
