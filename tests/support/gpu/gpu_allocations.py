"""Ways to stand between the budget and its allocators, and to see what CUDA was asked for.

They replace methods that are written in Python (`Allocator.malloc`, `Driver.pin`) for a while; nothing of CuPy's is
touched.
"""
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cupy

import chainer_ooc

#: A word that tells which function an error is about.
FUNCTION = re.compile(
    r'(forward|backward) of call \d+|[A-Z]\w*(Function|Convolution|Normalization|Pooling|ReLU|Linear|Add)')


@dataclass(frozen=True)
class Bound:
    """An allocator's own malloc."""

    allocator: Any
    original: Callable[..., Any]

    def __call__(self, nbytes):
        return self.original(self.allocator, nbytes)


@contextlib.contextmanager
def each_malloc(replacement):
    """Calls ``replacement(malloc, nbytes)`` in place of every allocator's ``malloc(nbytes)`` meanwhile.

    ``malloc.allocator`` is the allocator, bound as its method is.
    """
    from chainer_ooc.backends.cuda.allocators.allocator import Allocator

    original = Allocator.malloc
    Allocator.malloc = lambda self, nbytes: replacement(Bound(self, original), nbytes)
    try:
        yield
    finally:
        Allocator.malloc = original


def poison(memory):
    """Fills memory with NaN, in the order of the current stream: all bits set are a NaN in each width."""
    cupy.cuda.runtime.memsetAsync(memory.pointer, 0xFF, memory.size_bytes, cupy.cuda.get_current_stream().ptr)
    return memory


def taken_bytes():
    """What of the device is taken, by the driver's own word."""
    free_bytes, total_bytes = cupy.cuda.runtime.memGetInfo()
    return total_bytes - free_bytes


class Pinned:
    """Counts what is pinned, and lets pinning be refused.

    Attributes:
        nbytes: pinned now.
        highest_bytes: the most at once.
        calls: of `pin`.
        refuse_from: the call from which on pinning is refused; None never.
    """

    def __init__(self):
        self.nbytes = self.highest_bytes = self.calls = self.refused = 0
        self.refuse_from = None
        self._sizes = {}

    @contextlib.contextmanager
    def watched(self):
        """Stands in `Driver`'s pin and unpin meanwhile; nothing that was pinned before is left to use."""
        from chainer_ooc.backends.cuda.driver import Driver

        chainer_ooc.reset(unpin=True)
        pin, unpin = Driver.pin, Driver.unpin
        Driver.pin = lambda driver, nbytes: self._pin(pin, driver, nbytes)
        Driver.unpin = lambda driver, address: self._unpin(unpin, driver, address)
        try:
            yield self
        finally:
            Driver.pin, Driver.unpin = pin, unpin

    def _pin(self, pin, driver, nbytes):
        self.calls += 1
        if self.refuse_from is not None and self.calls > self.refuse_from:
            self.refused += 1
            raise cupy.cuda.runtime.CUDARuntimeError(2)  # cudaErrorMemoryAllocation
        address = pin(driver, nbytes)
        self._sizes[address] = nbytes
        self.nbytes += nbytes
        self.highest_bytes = max(self.highest_bytes, self.nbytes)
        return address

    def _unpin(self, unpin, driver, address):
        self.nbytes -= self._sizes.pop(address)
        unpin(driver, address)
