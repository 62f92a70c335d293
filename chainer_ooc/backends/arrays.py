"""Arrays and the memory under them, for every array library that a device uses.

Execution moves storage, not arrays (P4): several views may share one block of memory, and each has to come back with
its own shape, strides and offset. A *root* is what owns the block and dies with it, an array or another object that
weak references can watch; a `Layout` is how a view lies on it.

An array's type says which library it is of. One of an unknown library has no root, and never moves.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.host import arrays as _host
from chainer_ooc.backends.layout import Layout

_libraries: dict[type, ModuleType | None] = {np.ndarray: _host}


def is_array(value: Any) -> bool:
    """Whether a value is an array whose memory may be moved."""
    kind = type(value)  # each attribute of each function comes here
    return (_libraries[kind] if kind in _libraries else _library(kind)) is not None


def is_on_device(value: Any) -> bool:
    """Whether a value is an array in the memory of a device other than the host."""
    return _library(type(value)) not in (None, _host)


def root_of(array: Any) -> Any:
    """Returns what owns the memory of `array`, or None if that memory cannot be moved."""
    kind = type(array)
    library = _libraries[kind] if kind in _libraries else _library(kind)
    return None if library is None else library.root_of(array)


def layout_of(array: Any, root: Any) -> Layout:
    """Describes `array` as a view of `root`, which must be ``root_of(array)``."""
    library = _libraries.get(type(array)) or _of(array)
    layout: Layout = library.layout_of(array, root)
    return layout


def flat_bytes(root: Any) -> ByteArray | None:
    """Returns a root's block as bytes without copying, or None if it is not one gapless block."""
    library = _libraries.get(type(root)) or _library(type(root)) or _device_library()
    flat: ByteArray | None = library.flat_bytes(root)
    return flat


def view(block: ByteArray, layout: Layout) -> Any:
    """Lays an array over a block of bytes."""
    library = _libraries.get(type(block)) or _of(block)
    return library.view(block, layout)


def zeros_like_block(array: Any, nbytes: int) -> ByteArray:
    """Returns a new block of zeros in the memory that `array` is in."""
    block: ByteArray = _of(array).zeros(nbytes)
    return block


def links(holder: Any) -> tuple[Any, ...]:
    """What an array, or something on the way from it to its root, refers to on that way."""
    library = _library(type(holder)) or _device_library()
    found: tuple[Any, ...] = library.links(holder)
    return found


def mark(array: Any) -> Any:
    """What differs (``!=``) from another mark of an array if its content has changed.

    A device's marks, and what comes of comparing them, are arrays of the device: nothing waits until their truth is
    asked.
    """
    return checksum(array) if isinstance(array, np.ndarray) else _of(array).mark(array)


def checksum(array: Any) -> int:
    """A number that changes with an array's content; of subclasses of NumPy's arrays too, which never move.

    It waits for a device, some 0.1 ms.
    """
    if isinstance(array, np.ndarray):
        return _host.checksum(np.asarray(array))
    return int(_of(array).mark(array))


def _of(array: Any) -> ModuleType:
    library = _library(type(array))
    assert library is not None, type(array)
    return library


def _library(kind: type) -> ModuleType | None:
    if kind not in _libraries:
        is_cupy = kind.__name__ == 'ndarray' and kind.__module__.partition('.')[0] == 'cupy'
        _libraries[kind] = _device_library() if is_cupy else None
    return _libraries[kind]


def _device_library() -> ModuleType:
    from chainer_ooc.backends.cuda import arrays

    return arrays
