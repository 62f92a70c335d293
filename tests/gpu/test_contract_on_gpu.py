"""The suite of all backends (`tests/backends/test_contract.py`) on `CudaBackend`, with real copies.

Arrays are CuPy's. What is left out has its reason beside it; what only this device promises follows.
"""
import importlib.util
import pathlib
import sys

import numpy as np
import pytest

from chainer_ooc.errors import SpillError

SUITE = pathlib.Path(__file__).parents[1] / 'backends' / 'test_contract.py'
MB = 1 << 20

#: Part of a test's name -> why it does not apply.
LEFT_OUT = {
    'a_mapping_has_the_bytes': "CuPy's arrays have no flag for being writable; below",
    'the_memory_of_a_mapping': "the root of CuPy's arrays is no array; below",
    'flat_writable_bytes': "CuPy's arrays have no flag for it: all can be written to",
    'a_source_may_be_read_only': 'likewise',
}


def _suite():
    spec = importlib.util.spec_from_file_location('contract_suite', SUITE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _chosen(module):
    return {name: test for name, test in vars(module).items()
            if name.startswith('test_') and not any(part in name for part in LEFT_OUT)}


def filled(backend, nbytes, seed=0):
    """As the suite's, which writes NumPy's bytes into a slice; CuPy takes them by `set` alone."""
    array = backend.allocate(nbytes)
    if nbytes:
        array.set(np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8))
    return array


suite = _suite()
suite.filled = filled
globals().update(_chosen(suite))


@pytest.fixture
def backend(tmp_path):
    from chainer_ooc.backends.cuda import CudaBackend
    made = CudaBackend(str(tmp_path), host_limit_bytes=1 << 30)
    yield made
    made.close()


@pytest.fixture
def has_mappings():
    """A GPU maps pinned memory, in which the copies of these tests lie."""


def test_most_of_the_suite_runs_here():
    every = [name for name in vars(suite) if name.startswith('test_')]
    assert len(_chosen(suite)) >= 0.6 * len(every)


def test_allocate_gives_flat_bytes_of_the_device(backend):
    import cupy
    array = backend.allocate(5 * MB + 1)
    assert isinstance(array, cupy.ndarray)
    assert (array.dtype, array.shape, array.base) == (np.uint8, (5 * MB + 1,), None)
    assert array.flags.c_contiguous


@pytest.mark.parametrize('nbytes', [0, 1, 4097, 20 * MB + 3])
def test_a_mapping_has_the_bytes_of_its_copy_and_kernels_read_and_write_them(backend, nbytes):
    array = suite.filled(backend, nbytes)
    copy = suite.out(backend, array)
    mapped = backend.map(copy)
    assert np.array_equal(mapped, array)
    mapped ^= 0xFF
    assert np.array_equal(suite.back(backend, copy), array ^ 0xFF)


def test_the_memory_of_a_mapping_can_be_found_in_a_part_of_it(backend):
    from chainer_ooc.backends import arrays
    mapped = backend.map(suite.out(backend, suite.filled(backend, 4 * MB)))
    part = mapped[64:1064].view(np.float32).reshape(10, 25).T
    root = arrays.root_of(part)
    assert root is arrays.root_of(mapped)
    assert arrays.view(mapped, arrays.layout_of(part, root)).data.ptr == part.data.ptr


def test_the_spill_file_cannot_be_mapped(tmp_path):
    from chainer_ooc.backends.cuda import CudaBackend
    backend = CudaBackend(str(tmp_path), host_limit_bytes=0)
    copy = suite.out(backend, suite.filled(backend, MB))
    with pytest.raises(SpillError, match='lie in the spill file'):
        backend.map(copy)
    backend.close()


@pytest.mark.parametrize('nbytes', [1, 4097, 20 * MB + 3])
def test_bytes_come_back_from_the_disk_behind_pinned_memory(tmp_path, nbytes):
    from chainer_ooc.backends.cuda import CudaBackend
    backend = CudaBackend(str(tmp_path), host_limit_bytes=MB)  # less than two of the copies
    try:
        arrays = [suite.filled(backend, nbytes, seed) for seed in range(4)]
        copies = [suite.out(backend, array) for array in arrays]
        for array, copy in zip(arrays, copies, strict=True):
            assert bool((suite.back(backend, copy) == array).all())
    finally:
        backend.close()


def test_a_swap_in_is_seen_by_what_is_computed_after_the_wait(backend):
    # Waiting does not block the host: the sum below must be ordered behind the copy by the device.
    array = suite.filled(backend, 64 * MB)
    expected = int(array.astype(np.int64).sum())
    copy = suite.out(backend, array)
    for _ in range(10):
        into = backend.allocate(array.nbytes)
        into[:] = 0
        backend.swap_in(copy, into).wait()
        assert int(into.astype(np.int64).sum()) == expected


def test_a_swap_out_takes_what_was_computed_before_it(backend):
    array = backend.allocate(64 * MB)
    for number in range(10):
        array.fill(number)
        copy, transfer = backend.swap_out(array)
        transfer.wait()
        into = suite.back(backend, copy)
        assert bool((into == number).all())
        backend.release(copy)


def test_timing_is_by_events(backend):
    array, into = suite.filled(backend, 256 * MB), backend.allocate(256 * MB)
    copy, transfer = backend.swap_out(array)
    transfer.wait()
    start = backend.timestamp()
    backend.swap_in(copy, into).wait()
    seconds = backend.seconds_between(start, backend.timestamp())
    assert 0 < transfer.seconds < 1
    assert 0 < seconds < 1


@pytest.mark.parametrize('shape', [(), (7,), (4093,), (64, 8192), (3, 4099)])
@pytest.mark.parametrize('dtype', ['f4', 'f2', 'u1'])
def test_a_mark_stays_on_the_device_and_is_that_of_the_content(shape, dtype):
    import cupy

    from chainer_ooc.backends import arrays

    host = np.array(np.random.RandomState(0).uniform(1, 99, size=shape), dtype)
    array = cupy.asarray(host)
    before = arrays.mark(array)
    assert isinstance(before, cupy.ndarray)
    assert arrays.mark(cupy.asarray(host)) == before
    array.reshape(-1)[-1] = 0
    assert arrays.mark(array) != before
    assert arrays.checksum(array) == int(arrays.mark(array))


@pytest.mark.parametrize('classes', [10, 4093, 8186])
def test_a_mark_on_the_device_is_that_of_the_host_s_arithmetic_and_tells_other_labels(classes, monkeypatch):
    import cupy

    from chainer_ooc.backends.cuda import arrays as device_arrays

    one_hot = np.eye(classes, dtype='f4')[[5, 2, 8, 1] * 16]
    found = int(device_arrays.mark(cupy.asarray(one_hot)))
    assert found != int(device_arrays.mark(cupy.asarray(one_hot[[2, 1, 0, 3, *range(4, 64)]])))
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, 'cupy', np)
        assert found == int(device_arrays.mark(one_hot))


def test_a_mark_of_parts_and_a_checksum_of_a_block_are_those_of_the_host_s_arithmetic(monkeypatch):
    import cupy

    from chainer_ooc.backends import arrays
    from chainer_ooc.backends.cuda import arrays as device_arrays

    monkeypatch.setattr(device_arrays, 'PART_BYTES', 1 << 20)
    host = np.random.RandomState(0).uniform(1, 99, (64, 3, 96, 96)).astype('f4')
    device = cupy.asarray(host)
    found = int(device_arrays.mark(device[:, :2])), arrays.checksum(device.reshape(-1).view('u1'))
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, 'cupy', np)
        assert found == (device_arrays.mark(host[:, :2]), device_arrays.mark(host.reshape(-1).view('u1')))


def test_a_thread_pins_what_is_prepared(backend, monkeypatch):
    from support import pinning

    monkeypatch.setattr(pinning.Pinning, '_wake', pinning.BY_THREAD)
    pinned = backend._far.pinned
    backend.prepare([3 * MB, 5 * MB + 1])
    assert pinned.held_bytes() == 8 * MB + 1
    sources = [filled(backend, nbytes) for nbytes in (5 * MB + 1, 3 * MB)]
    copies = [backend.swap_out(each)[0] for each in sources]
    assert pinned.held_bytes() == 8 * MB + 1
    for copy, source in zip(copies, sources, strict=True):
        into = backend.allocate(copy.nbytes)
        backend.swap_in(copy, into).wait()
        assert (into == source).all()
