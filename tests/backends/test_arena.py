"""The pool of pages that NumPy's arrays come from: contents, sizes, and what is given back when."""
import ctypes
import os
import random
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest

from chainer_ooc.backends.host import arena
from chainer_ooc.backends.host.arena import Arena
from chainer_ooc.backends.host.backend import HostBackend
from chainer_ooc.backends.host.block_pool import BlockPool
from support.resident import private_bytes

MB = 1 << 20
GRAIN = 16 << 10

needs_arena = pytest.mark.skipif(arena.available() is not None, reason=str(arena.available()))


@pytest.fixture
def pool():
    pool = Arena()
    pool.begin()
    pool.keep_at_most(0)
    yield pool
    pool.close()


def used_bytes():
    return arena._library().arena_used_bytes()


def fresh_bytes():
    return arena._library().arena_fresh_bytes()


def mappings():
    with open('/proc/self/maps') as file:
        return len(file.readlines())


def whole(nbytes):
    return -(-nbytes // GRAIN) * GRAIN


def filled(nbytes, value):
    array = np.empty(nbytes, np.uint8)
    array[:] = value
    return array


def intact(array, value):
    return array.min() == value == array.max()  # a comparison would be an array of the pool


def draw_bytes(draw):
    """Sizes as feature maps have them: few different ones, and now and then any other."""
    if draw.random() < 0.6:
        return draw.choice([1605632, 3211264, 6422528, 802816, 401408])
    return int(2 ** draw.uniform(10, 23.2))


@needs_arena
@pytest.mark.parametrize('seed', range(4))
def test_contents_stay_and_the_pool_holds_no_more_than_was_in_use_at_once(pool, seed):
    draw = random.Random(seed)
    base = most = used_bytes()
    live = []
    for _ in range(1500):
        number = draw.randrange(len(live)) if live else None
        if live and (sum(len(each) for each, _ in live) > 64 * MB or draw.random() < 0.45):
            array, value = live.pop(number)
            assert intact(array, value)
        elif live and draw.random() < 0.1:
            array, value = live.pop(number)
            before, wanted = len(array), draw_bytes(draw)
            most = max(most, used_bytes() + whole(wanted))  # while it is copied
            array.resize(wanted, refcheck=False)
            assert intact(array[:min(before, wanted)], value)
            array[:] = value
            live.append((array, value))
        else:
            value = draw.randrange(1, 256)
            wanted = draw_bytes(draw)
            if draw.random() < 0.3:
                array = np.zeros(wanted, np.uint8)
                assert not array.any()
                array[:] = value
            else:
                array = filled(wanted, value)
            live.append((array, value))
        array = None
        most = max(most, used_bytes())
        assert used_bytes() + pool.nbytes() <= most
    assert all(intact(array, value) for array, value in live)
    live.clear()
    assert used_bytes() == base


@needs_arena
def test_free_pages_of_many_arrays_serve_a_larger_one(pool):
    arrays = [filled(2 * MB, 1) for _ in range(16)]
    del arrays[::2]
    assert pool.nbytes() == 16 * MB
    resident = private_bytes()
    array = filled(16 * MB, 2)
    assert pool.nbytes() == 0
    assert private_bytes() < resident + MB
    assert all(intact(each, 1) for each in arrays) and intact(array, 2)


@needs_arena
def test_free_neighbours_are_one_block_again(pool):
    address = np.empty(16 * MB, np.uint8).ctypes.data
    parts = [np.empty(2 * MB, np.uint8) for _ in range(8)]
    assert [each.ctypes.data for each in parts] == [address + 2 * MB * number for number in range(8)]
    random.Random(0).shuffle(parts)
    while parts:
        parts.pop()
    assert np.empty(16 * MB, np.uint8).ctypes.data == address


@needs_arena
def test_pages_are_cleared_seldom_and_mappings_stay_few(pool):
    draw = random.Random(7)
    before, fresh, asked = mappings(), fresh_bytes(), 0
    live = []
    for _ in range(6000):
        live.append(np.empty(draw_bytes(draw), np.uint8))
        asked += len(live[-1])
        while sum(map(len, live)) > 96 * MB:
            del live[draw.randrange(len(live))]
    assert mappings() - before < 600
    assert fresh_bytes() - fresh < 0.03 * asked


@needs_arena
def test_free_pages_go_back_on_demand_and_with_the_last_backend():
    first, second = Arena(), Arena()
    first.begin()
    second.begin()
    first.keep_at_most(0)
    array = filled(64 * MB, 1)
    resident = private_bytes()
    del array
    assert first.nbytes() == 64 * MB
    assert first.keep_at_most(24 * MB)
    assert first.nbytes() == 24 * MB
    assert private_bytes() < resident - 36 * MB
    assert not first.keep_at_most(24 * MB)
    first.close()
    assert second.nbytes() == 24 * MB
    second.close()
    assert second.nbytes() == 0
    assert not of_pool(np.empty(MB, np.uint8))


def of_pool(array):
    before = used_bytes()
    nbytes = whole(array.nbytes)
    array.resize(0, refcheck=False)
    return used_bytes() <= before - nbytes


@needs_arena
def test_arrays_outlive_the_pool_and_die_in_other_threads(pool):
    held = [filled(MB, 3)]
    pool.close()
    assert intact(held[0], 3)
    before = used_bytes()
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert used_bytes() == before - MB
    assert pool.nbytes() == 0


@needs_arena
def test_other_threads_are_left_alone_and_may_ask_for_blocks(pool):
    found = []

    def ask():
        found.append(of_pool(np.empty(MB, np.uint8)))
        found.append(of_pool(pool.allocate(MB)))
        found.append(of_pool(np.empty(MB, np.uint8)))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [False, True, False]
    assert of_pool(np.empty(MB, np.uint8))


@needs_arena
def test_a_handler_of_the_program_is_left_alone():
    handlers = arena._handlers()
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ('PyCapsule_New', ctypes.pythonapi))
    name = b'mem_handler'
    theirs = make(ctypes.pythonapi.PyCapsule_GetPointer(ctypes.py_object(arena._ours()), name), name, None)
    before = handlers.set(theirs)
    try:
        pool = Arena()
        pool.begin()
        assert handlers.get() is theirs
        pool.close()
        assert handlers.get() is theirs
    finally:
        handlers.set(before)


@needs_arena
def test_memory_is_freed_while_an_exception_is_on_its_way(pool):
    ones = np.ones(MB, np.float32)
    before = used_bytes()
    with pytest.raises(ValueError, match='reshape'):
        (ones * 2).reshape(7, -1)
    with pytest.raises(ValueError, match='broadcast'):
        np.add(ones + 1, ones * 2, out=np.empty(3, np.float32))
    assert used_bytes() == before


@needs_arena
def test_tracemalloc_counts_them(pool):
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        array = np.empty(5 * MB, np.uint8)
        assert 0 <= tracemalloc.get_traced_memory()[0] - before - len(array) < 1000
    finally:
        tracemalloc.stop()


@needs_arena
def test_a_forked_child_has_its_own(pool):
    kept, held = filled(4 * MB, 5), filled(4 * MB, 6)
    del kept
    child = os.fork()
    if not child:
        code = 1
        try:
            assert intact(held, 6)
            assert pool.nbytes() == 0  # it is the parent's training that has a use for them
            held[:] = 7
            assert intact(filled(4 * MB, 8), 8)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert intact(held, 6) and pool.nbytes() == 4 * MB


LIMITED = '''
import resource
import numpy as np
from chainer_ooc.backends.host.arena import Arena
from chainer_ooc.backends.host.guard import data_bytes

MB = 1 << 20
pool = Arena()
pool.begin()
np.zeros(MB, np.uint8)
soft = data_bytes() + 64 * MB
resource.setrlimit(resource.RLIMIT_DATA, (soft, soft))
arrays = [np.ones(3 * MB, np.uint8) for _ in range(20)]
try:
    np.empty(8 * MB, np.uint8)
except MemoryError:
    pass
else:
    raise AssertionError('more than the limit allows')
del arrays[::2]
large = np.full(30 * MB, 9, np.uint8)
assert all(each.min() == 1 == each.max() for each in arrays) and large.min() == 9 == large.max()
del large, arrays
np.ones(60 * MB, np.uint8)
lasts = np.ones(60 * MB, np.uint8)  # lives until the interpreter ends
'''


@needs_arena
def test_holes_cost_nothing_under_a_limit_of_the_system_and_arrays_may_outlive_everything():
    ended = subprocess.run([sys.executable, '-c', LIMITED], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, '')


@needs_arena
def test_a_backend_trains_with_it_and_says_so_if_there_is_none(tmp_path, monkeypatch):
    backend = HostBackend(str(tmp_path))
    backend.begin()
    assert of_pool(np.empty(MB, np.uint8))
    assert backend.kept_serves_all
    backend.close()
    monkeypatch.setattr(arena, '_library', lambda: 'there was no compiler')
    backend = HostBackend(str(tmp_path))
    backend.begin()
    assert not backend.kept_serves_all and isinstance(backend._blocks, BlockPool)
    assert 'there was no compiler' in ' '.join(backend.describe()['warnings'])
    backend.close()
