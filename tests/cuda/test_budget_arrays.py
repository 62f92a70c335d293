"""The budget below real arrays of CuPy, whose memory is the host's: no device is needed to see when it is freed."""
import threading

import numpy as np
import pytest

from chainer_ooc.backends import arrays
from chainer_ooc.backends.cuda.allocators.allocator import NoRoomError
from chainer_ooc.backends.cuda.allocators.ledger import Owner
from support.fake_device_memory import installed_budget
from support.told_ledger import listen

cupy = pytest.importorskip('cupy', reason='CuPy is not installed')
cupy_over_host = pytest.importorskip('support.cupy_over_host')


@pytest.fixture
def budget():
    return cupy_over_host.budget(cupy)


@pytest.fixture
def installed(budget):
    before = cupy.cuda.get_allocator()
    with installed_budget(budget):
        yield budget
    assert cupy.cuda.get_allocator() == before


def test_arrays_come_from_the_budget(installed):
    array = cupy.empty((100, 3), np.float32)
    assert installed.used_bytes() == 1536
    assert array.data.mem.size == 1200
    del array
    assert installed.used_bytes() == 0


def test_the_last_view_frees(installed):
    array = cupy.empty((8, 128), np.float32)
    views = [array[2:], array.T, array.reshape(-1)[5:], array.view(np.int32)]
    root = array.data.mem
    del array
    assert installed.used_bytes() == 4096
    while views:
        assert installed.used_bytes() == 4096
        views.pop()
    assert installed.used_bytes() == 4096
    del root
    assert installed.used_bytes() == 0


def test_the_budget_is_told_in_order_of_arrays(installed):
    events = []
    told = listen(installed, lambda kind, nbytes: events.append((kind, nbytes)))
    first = cupy.empty(128, np.float32)
    second = cupy.empty(256, np.float32)
    del first
    third = cupy.empty(384, np.float32)
    del second, third
    assert told.total() == 0
    assert events == [('malloc', 512), ('malloc', 1024), ('free', 512), ('malloc', 1536), ('free', 1024),
                      ('free', 1536)]


def test_an_empty_array_needs_nothing(installed):
    array = cupy.empty((0, 3), np.float32)
    assert array.shape == (0, 3)
    assert installed.used_bytes() == 0


def test_what_does_not_fit_is_a_memory_error(installed):
    installed.limit_bytes = 1024
    with pytest.raises(MemoryError, match=r'raise chainer\.config\.ooc_budget'):
        cupy.empty(1024, np.float32)


def test_relief_frees_arrays(installed):
    held = [cupy.empty(64, np.float32)]
    installed.limit_bytes = 1024

    def on_out_of_memory(missing_bytes):
        installed.limit_bytes = None
        return bool(held and (held.pop() is not None))

    installed.ask(installed, on_out_of_memory)
    assert cupy.empty(1024, np.float32).size == 1024
    assert not held


def test_another_allocator_of_a_thread_comes_first(installed):
    def other(nbytes):
        raise NoRoomError('another')

    try:
        with cupy.cuda.using_allocator(other), pytest.raises(NoRoomError, match='another'):
            cupy.empty(3, np.float32)
    except cupy.cuda.runtime.CUDARuntimeError:  # CuPy notes the allocator for each device, and there is none
        pytest.skip('cupy.cuda.using_allocator needs a device')
    assert cupy.cuda.get_allocator() is installed


def test_arrays_may_die_in_any_thread(installed):
    arrays = [cupy.empty(128, np.float32) for _ in range(20)]
    threads = [threading.Thread(target=arrays.pop) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert installed.used_bytes() == 0


def test_counting_is_exact_for_views_of_a_meter(installed):
    meter = installed.meter()
    meter.start()
    meter.mark()
    view = cupy.empty((4, 128), np.float32)[1]
    assert meter.current_bytes() == 2048
    del view
    assert meter.current_bytes() == 0
    assert meter.above_mark_bytes() == 2048
    meter.stop()


def test_execution_knows_an_array_of_the_budget_by_its_block(installed):
    array = cupy.empty((100, 3), np.float32)
    root = arrays.root_of(array)
    assert (type(root), root.pointer, root.nbytes) == (Owner, array.data.ptr, array.nbytes)
    assert arrays.root_of(array[3:].T) is root
    assert arrays.flat_bytes(root).data.ptr == array.data.ptr
