"""The compiled parts of this package, each of which it can do without."""

from __future__ import annotations

import ctypes
import pathlib
import sysconfig
from typing import TypeVar

_Library = TypeVar('_Library', bound=ctypes.CDLL)


def load(kind: type[_Library], *place: str) -> _Library:
    """Loads one.

    Args:
        kind: `ctypes.CDLL`, whose calls let go of Python's lock, or `ctypes.PyDLL`.
        place: folders within the package, and the name without its suffix.

    Raises:
        OSError: it is not there, or cannot be loaded; the text says why there is none.
    """
    suffix = sysconfig.get_config_var('EXT_SUFFIX') or '.so'
    path = pathlib.Path(__file__).parent.joinpath(*place[:-1], place[-1] + suffix)
    try:
        return kind(str(path))
    except OSError:
        raise OSError(f'{path.name} is missing: there was no C compiler as chainer_ooc was installed') from None
