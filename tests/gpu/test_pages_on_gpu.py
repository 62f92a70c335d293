"""Pinned pages of our own on a device: copies and kernels see them, also after a fork, and CUDA lets go of them."""
import ctypes
import time

import pytest

from support.forked import forked

NBYTES = (64 << 20) + 1000


@pytest.fixture
def region():
    """A driver and a region that it has pinned."""
    from chainer_ooc.backends.cuda import pages
    from chainer_ooc.backends.cuda.driver import Driver

    driver = Driver()
    address = driver.pin(NBYTES)
    if address not in pages._MAPPED:
        driver.unpin(address)
        pytest.skip('this device or system registers no memory of ours, or the host has not so much')
    yield driver, address
    driver.unpin(address)
    assert address not in pages._MAPPED


def copied_in(driver, address):
    """What a device gets from pinned memory, as NumPy's bytes."""
    import cupy

    array, stream = driver.empty(NBYTES), driver.new_stream()
    driver.copy_in(driver.address(array), address, NBYTES, stream)
    driver.finish(stream)
    return cupy.asnumpy(array)


def test_copies_go_both_ways_and_run_beside_the_program(region):
    import cupy
    import numpy as np

    driver, address = region
    array, stream = cupy.arange(NBYTES, dtype=np.uint8), driver.new_stream()
    cupy.cuda.runtime.deviceSynchronize()
    began = time.perf_counter()
    for _ in range(20):
        driver.copy_out(address, driver.address(array), NBYTES, stream)
    queued_seconds = time.perf_counter() - began
    driver.finish(stream)
    assert queued_seconds < 0.5 * (time.perf_counter() - began), 'CUDA took it for pageable memory'
    assert ctypes.string_at(address, NBYTES) == cupy.asnumpy(array).tobytes()
    assert copied_in(driver, address).tobytes() == cupy.asnumpy(array).tobytes()


def test_kernels_read_and_write_it_where_it_is(region):
    import cupy

    driver, address = region
    ctypes.memset(address, 3, NBYTES)
    shown = driver.show(address, NBYTES, lambda: None)
    shown += 4
    cupy.cuda.runtime.deviceSynchronize()
    assert ctypes.string_at(address, NBYTES) == b'\7' * NBYTES


def test_what_is_written_after_a_fork_is_what_the_device_copies(region):
    from support.host_runtime import flags_of

    driver, address = region
    ctypes.memset(address, 1, NBYTES)
    with forked(lambda: str(flags_of(address, NBYTES)).encode()) as ask:
        ctypes.memset(address, 2, NBYTES)
        assert (copied_in(driver, address) == 2).all()
        assert ask() == b'None', 'the child has it mapped'


def test_pinned_once_more_it_is_other_memory_to_cuda():
    """An address that was left registered would be refused here, or copied from where it was."""
    from chainer_ooc.backends.cuda.driver import Driver

    driver = Driver()
    for value in range(1, 6):
        address = driver.pin(NBYTES)
        ctypes.memset(address, value, NBYTES)
        assert (copied_in(driver, address) == value).all()
        driver.unpin(address)
