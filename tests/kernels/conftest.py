"""What the tests of kernels share; chainer_ooc comes before them, as they import chainer."""
import tracemalloc

import pytest

import chainer_ooc  # noqa: F401


@pytest.fixture
def peak_scratch_bytes():
    """A function that gives the bytes that a call takes beside what is there after it."""
    def measure(call):
        tracemalloc.start()
        try:
            result = call()
            left_bytes, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        del result
        return peak_bytes - left_bytes
    return measure
