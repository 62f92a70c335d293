"""What the tests of the CUDA device share; chainer_ooc comes before chainer."""

import gc

import pytest

import chainer_ooc
from chainer_ooc.backends.cuda import CudaBackend, regions


@pytest.fixture
def verdict_mixes(monkeypatch):
    """The policies that only tests have; see `verdict_mixes.py` of tests/support."""
    from chainer_ooc.classify import policies
    from support.trainings import verdict_mixes
    for name, policy in verdict_mixes.POLICIES.items():
        monkeypatch.setitem(policies.POLICIES, name, policy)


@pytest.fixture
def fake(request):
    """Makes backends on fakes; each must be used by the rules, and leave nothing once it is closed."""
    from support.fake_driver import FakeDriver

    made = []

    def make(seed=0, spill_dir=None, *, forgiven=(), driver=None, host_limit_bytes=1 << 30, **device):
        driver = FakeDriver(seed, **device) if driver is None else driver
        made.append((CudaBackend(spill_dir, host_limit_bytes=host_limit_bytes, driver=driver), driver, forgiven))
        return made[-1][0]

    make.driver_of = lambda backend: next(driver for each, driver, _ in made if each is backend)
    yield make
    for backend, driver, forgiven in made:
        backend.close()
        assert [each for each in driver.misuses if each not in forgiven] == []
        assert driver.left_behind() == []
    regions.give_back()


@pytest.fixture
def on_device(monkeypatch):
    """Has Chainer take CuPy's arrays; gives a function that puts sessions on a fake device."""
    import chainer
    import cupy
    from chainer.backends import cuda

    from chainer_ooc.backends import host
    from chainer_ooc.backends.cuda import arrays
    from support import cupy_over_host, pinning
    from support.devices import chosen

    monkeypatch.setattr(cuda, 'available', True)
    monkeypatch.setattr(cuda, 'ndarray', cupy.ndarray)
    monkeypatch.setattr(cuda.GpuDevice, 'from_array', staticmethod(lambda array: None))  # there is none to make current
    monkeypatch.setattr(arrays, 'mark', lambda array: host.arrays.checksum(cupy_over_host.seen(array)))  # a kernel
    for remembered in ('_array_types', '_cpu_array_types'):  # from when there was no GPU
        monkeypatch.setattr(chainer, remembered, None)
    made, before, outside = [], cupy.cuda.get_allocator(), cupy_over_host.outside(cupy)
    cupy.cuda.set_allocator(outside)

    def devices(seed, host_limit_bytes=1 << 30):
        def make(spill_dir):
            made.append(cupy_over_host.Device(cupy, seed))
            return CudaBackend(spill_dir, host_limit_bytes=host_limit_bytes, driver=made[-1])

        chainer_ooc.reset()
        return chosen(make)

    with pinning.at_once():
        yield devices
    chainer_ooc.reset(unpin=True)
    gc.collect()
    assert [device.misuses for device in made] == [[]] * len(made)
    assert [device.left_behind() for device in made] == [[]] * len(made)
    assert cupy.cuda.get_allocator() is outside
    cupy.cuda.set_allocator(before)
