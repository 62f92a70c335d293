"""The memory devices: where arrays are and how they move. `base` is the contract that `host` and `cuda` fill in.

    base.py        the contract; of it, metering.py is what recording needs, and file_backed.py what few devices have
    owned.py       what all devices do alike: who may use a backend, its transfers and its far copies, who makes room
    collector.py   what the garbage collector must not end before its time
    layout.py      how an array lies on its block of memory, and what lies behind that
    arrays.py      arrays and the memory under them, of every library
    references.py  whether anybody else has an object
    libc.py        the C library
    host/          the process's own memory
    cuda/          a GPU's
    spill/         far memory in a file, which both have

What computes on a device is in `kernels`, which imports this room; nothing here imports that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import Backend
from chainer_ooc.config import Settings
from chainer_ooc.errors import ConfigError


@dataclass(frozen=True)
class BackendOptions:
    """What a backend is made for; a session goes on with the one it has while this stays the same.

    Attributes:
        spill_dir: folder of the spill file, or None.
        host_limit_bytes: far memory before disk, or None (cuda only).
        allocator: one of `config.ALLOCATORS` (cuda only).
        parameters: where parameters lie, one of `config.PLACES`, or None for near memory (host only).
    """

    spill_dir: str | None
    host_limit_bytes: int | None = None
    allocator: str = 'virtual'
    parameters: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> BackendOptions:
        """Those of the configuration."""
        return cls(settings.spill_dir, settings.host_limit_bytes, settings.allocator, settings.parameters)


def device_of(array: Any) -> str:
    """Returns the name of the device that an array is on: 'host' or 'cuda'."""
    return 'cuda' if type(array) is not np.ndarray and arrays.is_on_device(array) else 'host'


def choose(device: str, options: BackendOptions) -> Backend:
    """Returns a backend for a device, as `device_of` names it.

    Raises:
        SpillError: no spill file can be made.
        ConfigError: parameters are to lie where the device cannot have them.
    """
    backend = _make(device, options)
    if options.parameters is not None and backend.file_backed is None:
        backend.close()
        raise ConfigError(
            f'chainer.config.ooc_parameters = {options.parameters!r} cannot be used on this device ({backend.name}): '
            'parameters can lie on a file on the host alone, on Linux, and where there was a C compiler as chainer_ooc '
            'was installed; set it to None')
    return backend


def _make(device: str, options: BackendOptions) -> Backend:
    if device == 'cuda':
        from chainer_ooc.backends.cuda import CudaBackend

        return CudaBackend(options.spill_dir, host_limit_bytes=options.host_limit_bytes, allocator=options.allocator)
    from chainer_ooc.backends.host.backend import HostBackend

    return HostBackend(options.spill_dir)


def expect_arrays() -> None:
    """Has what the program makes on the host before a backend is there leave no holes, see `host.heap`."""
    from chainer_ooc.backends.host import heap

    heap.leave_no_holes()


def give_back() -> None:
    """Unpins what backends of a GPU that are closed have left to the next ones.

    Raises:
        RuntimeError: CUDA cannot; the rest can be given back by another call.
    """
    from chainer_ooc.backends.cuda import regions

    regions.give_back()
