"""Which oneDNN there is on this machine, and how to get it. `kernels.onednn` computes with it."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
from collections.abc import Iterator
from dataclasses import dataclass

#: Packages that bring the library, the smaller one first, and the name under which a system has it.
PACKAGES = ('onednn-cpu-gomp', 'onednn')
FILE_NAME = 'libdnnl.so.3'

INSTALL = "install it with pip install 'chainer-ooc[cpu]', or the system's package (Debian and Ubuntu: libdnnl3)"
ADVICE = f'{INSTALL}, or set chainer.config.use_ideep to "never"'


@dataclass(frozen=True)
class OnednnPresence:
    """The library that is used where chainer.config.use_ideep allows it.

    Attributes:
        path: of the shared object, or its name where the system finds it.
        version: what it says itself.
        package: what brought it, with its version; None if the system did.
        threads: in how many it computes; None where that is not OpenMP's choice.
    """

    path: str
    version: str
    package: str | None
    threads: int | None


class _Version(ctypes.Structure):
    """The start of dnnl_version_t."""

    _fields_ = (('major', ctypes.c_int), ('minor', ctypes.c_int), ('patch', ctypes.c_int))


def places() -> Iterator[tuple[str, str | None]]:
    """Where the library may be, each with the package that brings it."""
    for package in PACKAGES:
        try:
            distribution = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        yield from ((os.path.realpath(str(each.locate())), f'{package} {distribution.version}')
                    for each in distribution.files or () if each.name == FILE_NAME)
    yield FILE_NAME, None


def find() -> OnednnPresence | None:
    """Loads the first that can be loaded; None if there is none."""
    for path, package in places():
        try:
            library = ctypes.CDLL(path)
            library.dnnl_version.restype = ctypes.POINTER(_Version)
            found = library.dnnl_version().contents
        except (OSError, AttributeError):  # another library of that name, or a broken one
            continue
        count = getattr(library, 'omp_get_max_threads', None)
        version = f'{found.major}.{found.minor}.{found.patch}'
        return OnednnPresence(path, version, package, None if count is None else count())
    return None


@functools.cache
def version_under(use_ideep: str) -> str:
    """Returns the version that computes under a value of chainer.config.use_ideep, or '' for none."""
    found = None if use_ideep == 'never' else find()
    return '' if found is None else found.version
