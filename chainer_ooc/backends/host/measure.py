"""How fast the spill file is, measured through the very path that swaps take.

As in training, a swap-in goes to memory that has just been allocated, whose pages the kernel has yet to make. The first
pass is thrown away: it writes fresh pages of the file, while training writes the same extents again and again. What is
measured is therefore the page cache, which training uses as well as long as the file fits it; a set of maps that is
much larger than the machine's memory runs at the speed of the disk, which a short measurement cannot show.
"""

from __future__ import annotations

import statistics
import time

from chainer_ooc.backends.base import Backend, Bandwidth, ByteArray

SAMPLE_BYTES = 16 << 20
_PASSES = 4
_TINY_BYTES = 4096


def bandwidth(backend: Backend) -> Bandwidth:
    """Copies a sample out and in a few times and takes the medians; near memory needed: twice ``SAMPLE_BYTES``.

    Raises:
        SpillError: A copy failed. Its space is given back.
    """
    sample = backend.allocate(SAMPLE_BYTES)
    sample[:] = 1  # so that its pages exist
    passes = [_round_trip(backend, sample) for _ in range(_PASSES)][1:]
    tiny = sample[:_TINY_BYTES]
    return Bandwidth(
        write_bytes_per_second=SAMPLE_BYTES / statistics.median(write for write, _ in passes),
        read_bytes_per_second=SAMPLE_BYTES / statistics.median(read for _, read in passes),
        latency_seconds=statistics.median(_latency(backend, tiny) for _ in range(_PASSES)))


def _round_trip(backend: Backend, sample: ByteArray) -> tuple[float, float]:
    """Seconds of one swap-out and of one swap-in."""
    copy, out = backend.swap_out(sample)
    try:
        out.wait()
        back = backend.swap_in(copy, backend.allocate(sample.nbytes))
        back.wait()
    finally:
        backend.release(copy)
    return max(out.seconds, 1e-9), max(back.seconds, 1e-9)


def _latency(backend: Backend, tiny: ByteArray) -> float:
    """Seconds from the call to the end of a copy of one page."""
    started = time.perf_counter()
    copy, out = backend.swap_out(tiny)
    out.wait()
    seconds = time.perf_counter() - started
    backend.release(copy)
    return seconds
