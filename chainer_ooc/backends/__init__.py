"""The devices: the only place that knows which device it is; `base` is the contract that each folder fills in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from chainer_ooc.backends.base import Backend

#: Makes a backend; the argument is `chainer.config.ooc_spill_dir`.
Maker = Callable[[str | None], Backend]

_makers: list[Maker] = []


def choose(spill_dir: str | None) -> Backend:
    """Returns the device that arrays are on: so far the host, whose far memory is a file in `spill_dir`.

    Raises:
        SpillError: no spill file can be made there.
    """
    from chainer_ooc.backends.host.backend import HostBackend

    return (_makers[-1] if _makers else HostBackend)(spill_dir)


@contextlib.contextmanager
def chosen(maker: Maker) -> Iterator[list[Backend]]:
    """Has `choose` make another device meanwhile, in every thread: for tests, which run a whole training on it.

    A session keeps the backend that it has: call `chainer_ooc.reset()` before, and after.

    Yields:
        The backends that were made, in their order.
    """
    made: list[Backend] = []

    def make(spill_dir: str | None) -> Backend:
        made.append(maker(spill_dir))
        return made[-1]

    _makers.append(make)
    try:
        yield made
    finally:
        _makers.remove(make)
