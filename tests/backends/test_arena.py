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

from chainer_ooc.backends.host import arena, block
from chainer_ooc.backends.host.arena import Arena
from chainer_ooc.backends.host.backend import HostBackend
from chainer_ooc.backends.host.block import Blocks
from chainer_ooc.backends.layout import GAP_BYTES
from support.resident import private_bytes

pytestmark = pytest.mark.usefixtures('no_gap')

MB = 1 << 20
GRAIN = 16 << 10
LEAST = 256 << 10

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


def areas():
    return ctypes.c_long.in_dll(arena._library(), 'arena_areas').value


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


def in_parts(nbytes, number):
    """Arrays that lie side by side, each full of ones."""
    whole_array = np.empty(number * nbytes, np.uint8)
    del whole_array
    parts = [filled(nbytes, 1) for _ in range(number)]
    assert [each.ctypes.data - parts[0].ctypes.data for each in parts] == [*range(0, number * nbytes, nbytes)]
    return parts


@needs_arena
@pytest.mark.parametrize('seed', range(4))
def test_contents_stay_and_the_pool_holds_no_more_than_was_in_use_at_once(pool, seed):
    draw = random.Random(seed)
    base, base_areas = used_bytes(), areas()
    most, live = base, []  # array, value, whether it is the pool's
    for _ in range(1500):
        if live and (sum(len(each) for each, _, _ in live) > 64 * MB or draw.random() < 0.4):
            array, value, _ = live.pop(draw.randrange(len(live)))
            assert intact(array, value)
        elif live and draw.random() < 0.3:
            array, value, is_ours = live.pop(draw.randrange(len(live)))
            before, wanted = len(array), draw_bytes(draw)
            if is_ours and wanted > before:
                most = max(most, used_bytes() + whole(wanted))  # while it is copied
            array.resize(wanted, refcheck=False)
            assert intact(array[:min(before, wanted)], value) and not array[before:].any()
            array[:] = value
            live.append((array, value, is_ours and wanted >= LEAST))
        else:
            value = draw.randrange(1, 256)
            wanted = draw_bytes(draw)
            if draw.random() < 0.3:
                array = np.zeros(wanted, np.uint8)
                assert not array.any()
                array[:] = value
            else:
                array = filled(wanted, value)
            live.append((array, value, wanted >= LEAST))
        array = None
        assert used_bytes() == base + sum(whole(len(each)) for each, _, is_ours in live if is_ours)
        most = max(most, used_bytes())
        assert used_bytes() + pool.nbytes() <= most
    assert all(intact(array, value) for array, value, _ in live)
    live.clear()
    pool.keep_at_most(0)
    assert (used_bytes(), pool.nbytes(), areas()) == (base, 0, base_areas)


@needs_arena
def test_the_pages_behind_an_array_that_shrinks_are_free(pool):
    array, used = filled(10 * MB, 1), used_bytes()
    array.resize(300_000, refcheck=False)
    assert used_bytes() == used - 10 * MB + whole(300_000)
    assert pool.nbytes() == 10 * MB - whole(300_000)
    rest = filled(9 * MB, 2)
    assert rest.ctypes.data == array.ctypes.data + whole(300_000)
    assert intact(array, 1) and intact(rest, 2)
    array.resize(LEAST - 1, refcheck=False)
    assert intact(array, 1)
    assert used_bytes() == used - MB  # it is malloc's


@needs_arena
def test_pages_behind_an_array_that_shrinks_go_back_without_a_backend(pool):
    array = filled(16 * MB, 1)
    pool.close()
    resident = private_bytes()
    array.resize(MB, refcheck=False)
    assert pool.nbytes() == 0 and intact(array, 1)
    assert private_bytes() < resident - 14 * MB


@needs_arena
def test_an_array_grows_in_place_as_far_as_the_pages_behind_it_are_free(pool):
    array, _, last = in_parts(MB, 3)
    del _
    address, kept, used = array.ctypes.data, pool.nbytes(), used_bytes()
    array.resize(2 * MB, refcheck=False)
    assert array.ctypes.data == address and pool.nbytes() == kept - MB and used_bytes() == used + MB
    assert intact(array[:MB], 1) and not array[MB:].any()
    array.resize(2 * MB + 1, refcheck=False)
    assert array.ctypes.data != address
    assert intact(array[:MB], 1) and not array[MB:].any() and intact(last, 1)
    assert used_bytes() == used + MB + GRAIN


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
    first.keep_at_most(24 * MB)
    assert first.nbytes() == 24 * MB
    assert private_bytes() < resident - 36 * MB
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
import ctypes
import resource
import numpy as np
from chainer_ooc.backends.host.arena import Arena, _library
from chainer_ooc.backends.host.guard import data_bytes

MB = 1 << 20
pool = Arena()
_library().arena_set_gap(0)
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
del large
try:
    np.empty(60 * MB, np.uint8)  # the free half of it is moved in vain
except MemoryError:
    pass
else:
    raise AssertionError('more than the limit allows')
assert all(each.min() == 1 == each.max() for each in arrays)
del arrays
pool.keep_at_most(0)
assert ctypes.c_long.in_dll(_library(), 'arena_areas').value == 0
np.ones(60 * MB, np.uint8)
lasts = np.ones(60 * MB, np.uint8)  # lives until the interpreter ends
'''


@needs_arena
def test_holes_cost_nothing_under_a_limit_of_the_system_and_arrays_may_outlive_everything():
    ended = subprocess.run([sys.executable, '-c', LIMITED], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, '')


TIGHT = '''
import resource
import numpy as np
from chainer_ooc.backends.host.arena import Arena, _library
from chainer_ooc.backends.host.limits import kilobyte_fields

MB = 1 << 20
pool = Arena()
_library().arena_set_gap(0)
pool.begin()
soft = kilobyte_fields('/proc/self/status')['VmSize'] + 6 * MB
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
full = np.full(5 * MB, 1, np.uint8)
assert _library().arena_used_bytes() == 0
del full
zeros = np.zeros(5 * MB, np.uint8)
assert not zeros.any()
del zeros
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, hard))
arrays = [np.full(MB, 1, np.uint8) for _ in range(32)]
del arrays[::2]
soft = kilobyte_fields('/proc/self/status')['VmSize'] + 2 * MB
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
np.empty(14 * MB, np.uint8)  # there are addresses once free pages have gone back
assert all(each.min() == 1 == each.max() for each in arrays)
'''


@needs_arena
def test_an_array_for_which_the_pool_finds_no_addresses_comes_from_malloc():
    """The pool asks for 2 MiB more, to begin at a huge page."""
    ended = subprocess.run([sys.executable, '-c', TIGHT], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, '')


@pytest.fixture
def holes(pool):
    """Arrays with seven free megabytes between them, of which only four may leave the pool."""
    arrays = in_parts(MB, 15)
    most_areas = ctypes.c_long.in_dll(arena._library(), 'arena_most_areas')
    before, most_areas.value = most_areas.value, areas() + 4
    del arrays[1::2]
    assert pool.nbytes() == 7 * MB
    yield arrays
    most_areas.value = before


@needs_arena
def test_free_pages_between_arrays_stay_free_where_there_are_enough_holes(pool, holes):
    had_areas, resident = areas(), private_bytes()
    pool.keep_at_most(0)
    assert pool.nbytes() == 3 * MB and areas() == had_areas + 4
    assert private_bytes() < resident - 6 * MB  # they have lost their pages
    fresh = fresh_bytes()
    small = [filled(MB, 2) for _ in range(3)]
    assert fresh_bytes() == fresh and pool.nbytes() == 0
    assert all(intact(each, 1) for each in holes) and all(intact(each, 2) for each in small)
    small.clear()
    large = filled(4 * MB, 3)
    assert fresh_bytes() == fresh + 4 * MB and pool.nbytes() == 3 * MB
    assert all(intact(each, 1) for each in holes) and intact(large, 3)
    del large
    holes.clear()
    pool.keep_at_most(0)
    assert pool.nbytes() == 0 and areas() == had_areas - 1


@needs_arena
def test_other_free_pages_go_back_where_there_are_enough_holes(pool, holes):
    free = filled(8 * MB, 1)
    del free
    pool.keep_at_most(2 * MB)
    assert pool.nbytes() == 3 * MB


@needs_arena
def test_free_pages_that_stayed_go_back_with_the_arrays_beside_them(pool, holes):
    pool.close()
    assert pool.nbytes() == 3 * MB
    had_areas = areas()
    holes.pop()  # beside the last hole
    assert pool.nbytes() == 2 * MB and areas() == had_areas
    while holes:
        holes.pop(len(holes) // 2)
    assert pool.nbytes() == 0 and areas() == had_areas - 5


FULL = '''
import ctypes
import mmap
import numpy as np
from chainer_ooc.backends.host.arena import Arena, _library

MB, PAGE = 1 << 20, mmap.PAGESIZE
mprotect = ctypes.CDLL(None).mprotect
mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
with open('/proc/sys/vm/max_map_count') as file:
    most = int(file.read())
filler = mmap.mmap(-1, 2 * most * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(filler))


def fill(left):
    """Each readable page in the middle of writable ones makes two mappings more, until the system refuses."""
    number = 0
    while not mprotect(start + (2 * number + 1) * PAGE, PAGE, mmap.PROT_READ):
        number += 1
    for each in range(number - left, number):
        mprotect(start + (2 * each + 1) * PAGE, PAGE, mmap.PROT_READ | mmap.PROT_WRITE)


pool = Arena()
_library().arena_set_gap(0)
pool.begin()
for left in range(6):
    pool.keep_at_most(0)
    arrays = [np.full(MB, 1, np.uint8) for _ in range(16)]
    del arrays[::2]
    assert pool.nbytes() == 8 * MB
    fill(left)
    made = [np.zeros(3 * MB // 2, np.uint8) for _ in range(6)]
    pool.keep_at_most(0)
    kept = pool.nbytes()
    assert kept >= (7 - 2 * left) * MB, (left, kept)  # what lies between arrays cannot be given back
    fresh = _library().arena_fresh_bytes()
    small = [np.ones(MB, np.uint8) for _ in range(kept // MB)]
    assert _library().arena_fresh_bytes() == fresh
    assert mprotect(start, len(filler), mmap.PROT_READ | mmap.PROT_WRITE) == 0
    assert all(each.min() == 1 == each.max() for each in arrays + small) and not any(each.any() for each in made)
    del made, small
    pool.keep_at_most(0)
    assert pool.nbytes() == 0
    del arrays
assert _library().arena_used_bytes() == 0
pool.close()
assert ctypes.c_long.in_dll(_library(), 'arena_areas').value == 0
'''


def most_mappings():
    try:
        with open('/proc/sys/vm/max_map_count') as file:
            return int(file.read())
    except OSError:
        return sys.maxsize


@needs_arena
@pytest.mark.skipif(most_mappings() > 100_000, reason='the system allows too many mappings to make them all')
def test_arrays_are_made_and_nothing_is_lost_where_the_system_allows_no_more_mappings():
    ended = subprocess.run([sys.executable, '-c', FULL], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, '')


@needs_arena
def test_a_backend_trains_with_it_and_says_so_if_there_is_none(tmp_path, monkeypatch):
    backend = HostBackend(str(tmp_path))
    backend.begin()
    assert of_pool(np.empty(MB, np.uint8))
    assert isinstance(backend._blocks, Arena)
    backend.close()
    monkeypatch.setattr(arena, '_library', lambda: 'there was no compiler')
    backend = HostBackend(str(tmp_path))
    backend.begin()
    assert isinstance(backend._blocks, Blocks)
    assert 'there was no compiler' in ' '.join(backend.describe()['warnings'])
    backend.close()


def ends(array):
    return array.ctypes.data, array.ctypes.data + array.nbytes


@needs_arena
@pytest.mark.parametrize('nbytes', [LEAST, MB, MB + GRAIN, 4 * MB])
def test_with_a_gap_no_array_begins_where_another_one_ends(pool, nbytes):
    """NumPy before 2.0.2 took these for overlapping, and computed other bits."""
    arena.library().arena_set_gap(1)
    arrays = [np.empty(nbytes, np.uint8) for _ in range(20)]
    del arrays[::3]
    arrays += [np.empty(nbytes, np.uint8) for _ in range(20)]
    arrays[3].resize(nbytes + 2 * GRAIN, refcheck=False)
    places = [ends(each) for each in arrays]
    assert not {start for start, _ in places} & {end for _, end in places}


@needs_arena
@pytest.mark.parametrize('dtype', ['f4', 'f8'])
@pytest.mark.parametrize('name', ['log2', 'exp2', 'exp', 'log', 'tan', 'arctan', 'cbrt'])
def test_bits_do_not_depend_on_what_lies_beside_an_array(pool, name, dtype):
    given = np.random.RandomState(0).uniform(0.1, 3, LEAST * 2).astype(dtype)
    arena.library().arena_set_gap(GAP_BYTES)
    function, kept = getattr(np, name), []
    for _ in range(12):
        kept += [given.copy()]
        kept += [function(kept[-1])]
    assert len({each.tobytes() for each in kept[1::2]}) == 1


def test_other_blocks_of_near_memory_have_the_same_gap(monkeypatch):
    monkeypatch.setattr(block, 'GAP_BYTES', 1)
    pool = Blocks()
    arrays = [pool.allocate(MB) for _ in range(20)]
    assert {each.nbytes for each in arrays} == {MB}
    places = [ends(each) for each in arrays]
    assert not {start for start, _ in places} & {end for _, end in places}
