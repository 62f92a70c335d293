"""How fast the spill file is and what its use costs computations, measured through the very path that swaps take.

The first pass does not count: it writes fresh pages of the file, while training uses the same extents again and again,
and the same near memory as far as the budget has room to keep it (`arena`). What is measured is therefore the page
cache, which training uses as well as long as the file fits it; a set of maps that is much larger than the machine's
memory runs at the speed of the disk, which a short measurement cannot show.

Copies are done by the cores that compute as well. A matrix product, which has all cores, waits for the one that copies;
what one core does alone, such as a ReLU, does not notice. Training is a mixture, and so is what is timed here beside
copies: both, for as long each. Where there is no room for a product's buffers the program may have none, and the second
alone is timed.
"""

from __future__ import annotations

import mmap
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from chainer_ooc.backends.base import Backend, Bandwidth, ByteArray, FarCopy, Transfer

SAMPLE_BYTES = 16 << 20
#: Where a larger sample has no room.
SMALL_SAMPLE_BYTES = 2 << 20
#: Passes that count, and comparisons of a computation alone with one beside copies.
_PASSES, _COMPARISONS = 3, 4
_TINY_BYTES = 4096
_SIDE = 384
_ROUND_SECONDS = 0.02

#: What OpenBLAS takes for each thread at its first product, and ends the process where it does not get it.
BLAS_BYTES = 64 << 20


def bandwidth(backend: Backend, sample_bytes: int = SAMPLE_BYTES) -> Bandwidth:
    """Measures `copies`, and what they cost computations; needed: twice `sample_bytes` of what is not kept.

    Raises:
        SpillError: A copy failed. Its space is given back.
    """
    sample, target = (_unmetered(sample_bytes) for _ in range(2))
    sample[:] = target[:] = 1  # so that their pages exist
    return replace(copies(backend, sample, target, 1), slowdown=_slowdown(backend, sample))


def _unmetered(nbytes: int) -> ByteArray:
    """Memory that no meter counts, since another thread may be recording what its own calls allocate, but limits do.

    Raises:
        MemoryError: the system has none.
    """
    try:
        return np.frombuffer(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    except OSError as error:
        raise MemoryError(f'no {nbytes} bytes to measure the speed of the spill file with: {error.strerror}') from error


def copies(backend: Backend, sample: ByteArray, target: ByteArray, warm_up_passes: int) -> Bandwidth:
    """Copies a sample out and in a few times and takes the medians; the first so many passes do not count.

    Args:
        backend: makes the copies.
        sample: of near memory.
        target: where it is copied back to.
        warm_up_passes: how many do not count.

    Raises:
        SpillError: A copy failed. Its far memory is given back.
    """
    passes = [_round_trip(backend, sample, target) for _ in range(warm_up_passes + _PASSES)]
    outs, backs = zip(*passes[warm_up_passes:], strict=True)
    tiny = sample[:_TINY_BYTES]
    return Bandwidth(
        write_bytes_per_second=sample.nbytes / statistics.median(outs),
        read_bytes_per_second=sample.nbytes / statistics.median(backs),
        latency_seconds=statistics.median(_latency_seconds(backend, tiny) for _ in passes))


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
    """Seconds of a transfer, once it is over: on a GPU a wait for a swap-in does not block."""
    while not transfer.done:
        time.sleep(1e-4)
    transfer.wait()  # says whether it failed
    return max(transfer.seconds, 1e-9)


def _latency_seconds(backend: Backend, tiny: ByteArray) -> float:
    """Seconds from the call to the end of a copy of one page."""
    started = time.perf_counter()
    copy, out = backend.swap_out(tiny)
    out.wait()
    seconds = time.perf_counter() - started
    backend.release(copy)
    return seconds


class _Computation:
    """A matrix product, then element-wise passes for about as long; without products the passes alone."""

    def __init__(self, has_products: bool) -> None:
        self._matrix, self._product = (
            _unmetered(4 * _SIDE * _SIDE).view(np.float32).reshape(_SIDE, _SIDE) for _ in range(2))
        self._matrix[:] = 0.5
        self._multiply = self._product_of_matrices if has_products else self._pass_over
        self._multiply()
        started = time.perf_counter()
        self._multiply()
        multiplied = time.perf_counter()
        self._pass_over()
        self._passes = max(1, round((multiplied - started) / (time.perf_counter() - multiplied)))
        self._rounds = max(1, round(_ROUND_SECONDS / (2 * (multiplied - started))))

    def _product_of_matrices(self) -> None:
        np.matmul(self._matrix, self._matrix, out=self._product)

    def _pass_over(self) -> None:
        np.maximum(self._matrix, 0.0, out=self._product)

    def seconds(self, between: Callable[[], None]) -> float:
        """Computes for a while and calls `between` again and again."""
        started = time.perf_counter()
        for _ in range(self._rounds):
            self._multiply()
            between()
            for _ in range(self._passes):
                self._pass_over()
            between()
        return time.perf_counter() - started


class _Copying:
    """Swap-outs of a sample, two under way at a time."""

    def __init__(self, backend: Backend, sample: ByteArray):
        self.seconds = 0.0
        self._backend, self._sample = backend, sample
        self._under_way: list[tuple[FarCopy, Transfer]] = []

    def go_on(self) -> None:
        while self._under_way and self._under_way[0][1].done:
            self._end()
        while len(self._under_way) < 2:
            self._under_way.append(self._backend.swap_out(self._sample))

    def end(self) -> None:
        while self._under_way:
            self._end()

    def _end(self) -> None:
        copy, out = self._under_way.pop(0)
        try:
            out.wait()
            self.seconds += out.seconds
        finally:
            self._backend.release(copy)


def _slowdown(backend: Backend, sample: ByteArray) -> float:
    """By how much longer a computation takes while copies run, as a share of its time."""
    computation = _Computation(backend.leaves_outside(BLAS_BYTES * (os.cpu_count() or 1)))
    return max(0.0, statistics.median(_slowdown_once(computation, backend, sample) for _ in range(_COMPARISONS)))


def _slowdown_once(computation: _Computation, backend: Backend, sample: ByteArray) -> float:
    alone_seconds = computation.seconds(lambda: None)
    copying = _Copying(backend, sample)
    try:
        seconds = computation.seconds(copying.go_on)
        copied_seconds = copying.seconds
    finally:
        copying.end()
    return (seconds / alone_seconds - 1) / max(copied_seconds / seconds, 0.1)
