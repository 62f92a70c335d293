"""The devices: the only place that knows which device it is; `base` is the contract that each folder fills in."""

from __future__ import annotations

from chainer_ooc.backends.base import Backend


def choose(spill_dir: str | None) -> Backend:
    """Returns the device that arrays are on: so far the host, whose far memory is a file in `spill_dir`.

    Raises:
        SpillError: no spill file can be made there.
    """
    from chainer_ooc.backends.host.backend import HostBackend

    return HostBackend(spill_dir)
