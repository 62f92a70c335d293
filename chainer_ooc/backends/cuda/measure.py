"""How fast bytes move between the GPU and pinned memory, through the very path that swaps take.

The first passes do not count: they pin the blocks, and a link that was idle takes a moment to reach its speed. The
speed of the spill file is not measured here: a plan that counts on pinned memory is wrong about what goes to the disk,
and the times that are measured while it runs correct it.

Computations run as fast beside copies as without them: the copies have engines of their own. Kernels that are
bound by memory lose what the copies take of its bandwidth, a few per cent on today's cards.
"""

from __future__ import annotations

import statistics
import time

from chainer_ooc.backends.base import Backend, Bandwidth, ByteArray, Transfer
from chainer_ooc.backends.host.measure import latency_seconds

#: From the first one on, as much as the device has room for.
SAMPLES_BYTES = (64 << 20, 16 << 20, 4 << 20, 1 << 20)
_PASSES = 5
_WARM_UP_PASSES = 2
_TINY_BYTES = 4096


def bandwidth(backend: Backend) -> Bandwidth:
    """Copies a sample out and in a few times and takes the medians; near memory needed: twice the sample.

    Raises:
        SpillError: A copy failed. Its far memory is given back.
        MemoryError: There is no room for the smallest sample.
    """
    sample, target = _arrays(backend)
    passes = [_round_trip(backend, sample, target) for _ in range(_PASSES)][_WARM_UP_PASSES:]
    tiny = sample[:_TINY_BYTES]
    return Bandwidth(
        write_bytes_per_second=sample.nbytes / statistics.median(write for write, _ in passes),
        read_bytes_per_second=sample.nbytes / statistics.median(read for _, read in passes),
        latency_seconds=statistics.median(latency_seconds(backend, tiny) for _ in range(_PASSES)))


def _arrays(backend: Backend) -> tuple[ByteArray, ByteArray]:
    for nbytes in SAMPLES_BYTES[:-1]:
        try:
            return backend.allocate(nbytes), backend.allocate(nbytes)
        except MemoryError:
            continue
    return backend.allocate(SAMPLES_BYTES[-1]), backend.allocate(SAMPLES_BYTES[-1])


def _round_trip(backend: Backend, sample: ByteArray, target: ByteArray) -> tuple[float, float]:
    """Seconds of one swap-out and of one swap-in."""
    copy, out = backend.swap_out(sample)
    try:
        out.wait()
        back = backend.swap_in(copy, target)
        return _seconds(out), _seconds(back)
    finally:
        backend.release(copy)


def _seconds(transfer: Transfer) -> float:
    """Seconds of a transfer, once it is over: a wait for a swap-in does not block."""
    while not transfer.done:
        time.sleep(1e-4)
    transfer.wait()
    return max(transfer.seconds, 1e-9)
