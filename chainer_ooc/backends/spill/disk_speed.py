"""How fast the disk behind a spill folder is, past the page cache, for ``doctor``.

Swaps go through the page cache, at the speed that `host.measure` finds, as long as the file fits into memory that
nothing else wants. Maps that need more than that move at the speed of the disk. Two measurements of a disk that others
use as well are never the same, so what is given is a range.

What is written is waited for (``fdatasync``), and what is read was dropped from the cache before. ``O_DIRECT`` would
do as well, and not all file systems have it. Left out: the cache of the disk itself, or of the host of a virtual one.
"""

from __future__ import annotations

import contextlib
import os
import time

from chainer_ooc.backends.spill import filesystem
from chainer_ooc.backends.spill.spill_file import SpillFile

_SAMPLE_BYTES = 32 << 20
_PASSES = 5
#: A slow disk gets fewer passes.
_ENOUGH_SECONDS = 1.5


def disk_speed(folder: str, sample_bytes: int = _SAMPLE_BYTES) -> dict[str, tuple[float, float]] | None:
    """Writes a sample to a nameless file in a folder and reads it, a few times.

    Args:
        folder: where the spill file lies.
        sample_bytes: what is written in each pass.

    Returns:
        The slowest and the fastest of the passes, each way; None for a RAM disk, which has no other speed than its
        memory, and where the file has no room.
    """
    if filesystem.is_ram_disk(folder):
        return None
    sample = bytearray(os.urandom(1 << 20)) * -(-sample_bytes // (1 << 20))  # nothing that compresses to nothing
    began, passes = time.perf_counter(), list[tuple[float, float]]()
    try:
        with contextlib.closing(SpillFile(folder)) as file:
            _pass(file, sample)  # has the file system set its blocks aside
            while len(passes) < _PASSES and (not passes or time.perf_counter() < began + _ENOUGH_SECONDS):
                passes.append(_pass(file, sample))
    except OSError:
        return None
    writes, reads = ([len(sample) / seconds for seconds in way] for way in zip(*passes, strict=True))
    return {'write_range_bytes_per_second': (min(writes), max(writes)),
            'read_range_bytes_per_second': (min(reads), max(reads))}


def _pass(file: SpillFile, sample: bytearray) -> tuple[float, float]:
    """Seconds of writing the sample to the disk, and of reading it from there."""
    began = time.perf_counter()
    file.write(memoryview(sample), 0)
    os.fdatasync(file.fileno())
    written = time.perf_counter()
    os.posix_fadvise(file.fileno(), 0, len(sample), os.POSIX_FADV_DONTNEED)
    reading = time.perf_counter()
    file.read(memoryview(sample), 0)
    return max(written - began, 1e-9), max(time.perf_counter() - reading, 1e-9)
