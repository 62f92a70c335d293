"""How fast bytes move between the GPU and pinned memory, through the very path that swaps take.

The first passes do not count: they pin the blocks, and a link that was idle takes a moment to reach its speed. The
speed of the spill file is not measured here: a plan that counts on pinned memory is wrong about what goes to the disk,
and the times that are measured while it runs correct it.

Computations run as fast beside copies as without them: the copies have engines of their own. Kernels that are
bound by memory lose what the copies take of its bandwidth, a few per cent on today's cards.
"""

from __future__ import annotations

from chainer_ooc.backends.base import Backend, Bandwidth, ByteArray
from chainer_ooc.backends.host.measure import copies

#: From the first one on, as much as the device has room for.
SAMPLES_BYTES = (64 << 20, 16 << 20, 4 << 20, 1 << 20)
_WARM_UP_PASSES = 2


def bandwidth(backend: Backend) -> Bandwidth:
    """Measures `copies`; near memory needed: twice the sample.

    Raises:
        SpillError: A copy failed. Its far memory is given back.
        MemoryError: There is no room for the smallest sample.
    """
    return copies(backend, *_arrays(backend), _WARM_UP_PASSES)


def _arrays(backend: Backend) -> tuple[ByteArray, ByteArray]:
    """A sample and a target."""
    for nbytes in SAMPLES_BYTES[:-1]:
        try:
            return backend.allocate(nbytes), backend.allocate(nbytes)
        except MemoryError:
            continue
    return backend.allocate(SAMPLES_BYTES[-1]), backend.allocate(SAMPLES_BYTES[-1])
