"""What the tests of kernels share; chainer_ooc comes before them, as they import chainer."""
import tracemalloc

import numpy as np
import pytest

import chainer_ooc  # noqa: F401
from chainer_ooc.kernels.cudnn import handles
from chainer_ooc.kernels.onednn import library, primitives
from support import cuda_on_host
from support.fake_cudnn import HostDevice, Library


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


@pytest.fixture
def counts(monkeypatch):
    """How often each function of oneDNN was called, by name."""
    counts, call = {}, library.Library.call

    def watched(self, name, *arguments):
        counts[name] = counts.get(name, 0) + 1
        return call(self, name, *arguments)
    monkeypatch.setattr(library.Library, 'call', watched)
    return counts


@pytest.fixture
def runs(monkeypatch):
    """The arguments of every primitive of oneDNN that runs."""
    seen, run = [], primitives.Primitive.run

    def counted(self, arrays):
        seen.append(sorted(arrays))
        run(self, arrays)
    monkeypatch.setattr(primitives.Primitive, 'run', counted)
    return seen


@pytest.fixture
def device():
    """Arrays of NumPy in the place of a GPU's, for cuDNN."""
    return HostDevice()


@pytest.fixture
def cudnn(device):
    """A made-up cuDNN."""
    return Library(device)


@pytest.fixture
def ours(cudnn, device):
    """A handle of it."""
    return handles.Handle(cudnn, device)


@pytest.fixture
def kernels_on_host(monkeypatch):
    """Arrays of NumPy are taken for CuPy's, and kernels run on the host; gives the names of those that ran."""
    from chainer.backends import cuda

    if cuda_on_host.COMPILER is None:
        pytest.skip('needs a compiler of C++')
    monkeypatch.setattr(cuda, 'cupy', np)
    monkeypatch.setattr(np, 'RawKernel', cuda_on_host.RawKernel, raising=False)
    with cuda_on_host.launches() as launched:
        yield launched
