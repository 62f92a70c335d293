"""Free pages that a container is offered: who has them, and that nobody has them twice."""
import pytest

from chainer_ooc.backends.host import arena
from memory_groups import memory_group
from support.pool_programs import check

pytestmark = pytest.mark.skipif(arena.available() is not None, reason=str(arena.available()))

#: A training between two iterations; `offered()` tells what the kernel may take, `take(array)` does it.
REST = '''
    import mmap
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

    def offered():
        with open('/proc/self/smaps_rollup') as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith('LazyFree'))

    def take(address, nbytes):
        assert libc.madvise(address, nbytes, mmap.MADV_DONTNEED) == 0

    def free(*sizes):
        """Frees arrays side by side and apart; gives where they were."""
        arrays = [np.ones(size, np.uint8) for size in sizes]
        return [each.ctypes.data for each in arrays]

    pool.set_limited(True, offers=True)
'''


def test_what_is_free_is_offered_between_iterations_and_then_until_an_array_is_made_of_it():
    check(REST + '''
    free(40 * MB)
    assert pool.nbytes() >= 40 * MB and not offered()
    pool.rest()
    assert pool.nbytes() >= 40 * MB and offered() >= 40 * MB
    free(20 * MB)  # what is freed meanwhile is offered again
    assert offered() >= 40 * MB
    pool.set_limited(True, offers=True)
    assert pool.nbytes() >= 40 * MB and offered() >= 40 * MB
    array = np.empty(30 * MB, np.uint8)  # nobody has written to it
    assert 10 * MB <= offered() < 11 * MB
    kept = np.ones(4 * MB, np.uint8)
    array.resize(MB)
    assert 6 * MB <= offered() < 7 * MB  # what is freed within an iteration stays the pool's own
    array.resize(20 * MB)
    assert 6 * MB <= offered() < 7 * MB
    del array
    assert pool.nbytes() >= 36 * MB and 6 * MB <= offered() < 7 * MB
    pool.rest()
    assert offered() >= 36 * MB
    pool.close()
    assert not pool.nbytes()
    ''')


def test_what_is_moved_together_is_offered_no_more():
    check(REST + '''
    between = [np.ones(MB, np.uint8) for _ in range(5)]
    apart = [(np.ones(8 * MB, np.uint8), np.ones(MB, np.uint8)) for _ in range(5)]
    kept = [each[1] for each in apart]
    del apart
    pool.rest()
    pool.set_limited(True, offers=True)
    before, was_offered = _library().arena_fresh_bytes(), offered()
    assert was_offered >= 40 * MB
    array = np.empty(36 * MB, np.uint8)
    assert _library().arena_fresh_bytes() == before and offered() <= was_offered - 36 * MB
    array[:] = 3
    assert (array == 3).all() and all((each == 1).all() for each in between + kept)
    ''')


def test_arrays_between_iterations_are_made_of_what_is_offered():
    check(REST + '''
    free(40 * MB)
    pool.rest()
    before = _library().arena_fresh_bytes()
    for _ in range(3):
        assert np.ones(30 * MB, np.uint8).min() == 1 and not np.zeros(35 * MB, np.uint8).any()
    grown = np.ones(10 * MB, np.uint8)
    grown.resize(30 * MB)
    assert grown.sum() == 10 * MB
    assert _library().arena_fresh_bytes() == before
    ''')


@pytest.mark.parametrize('then', ['pass', 'pool.set_limited(True, offers=True)'])
def test_what_the_system_has_taken_is_free_no_more(then):
    """A page of each of two free ranges of three."""
    check(REST + f'''
    kept = np.ones(MB, np.uint8)
    first = free(40 * MB)[0]
    between = np.ones(36 * MB, np.uint8)  # of the first's
    second = free(20 * MB)[0]
    pool.rest()
    before = pool.nbytes()
    take(second + 4096 * 77, 4096)
    {then}
    assert pool.nbytes() == before - 20 * MB
    assert (between == 1).all() and (np.ones(20 * MB, np.uint8) == 1).all() and kept.all()
    ''')


@pytest.mark.parametrize('then', ['pass', 'pool.set_limited(True, offers=True)'])
@pytest.mark.parametrize('make', ['np.ones(30 * MB, np.uint8)', 'np.zeros(30 * MB, np.uint8) + np.uint8(1)', 'grown()'])
def test_an_array_is_not_made_of_what_the_system_has_taken(make, then):
    check(REST + f'''
    def grown():
        array = np.ones(8 * MB, np.uint8)
        array.resize(30 * MB)
        array[8 * MB:] = 1
        return array

    start = free(40 * MB)[0]
    pool.rest()
    {then}
    take(start + 20 * MB, 4096)
    before = _library().arena_fresh_bytes()
    array = {make}
    assert array.sum() == 30 * MB and _library().arena_fresh_bytes() >= before + 20 * MB
    ''')


def test_a_system_that_knows_of_no_offers_has_the_pages_back():
    check(REST + '''
    free(40 * MB)
    libc.mlockall(2)  # what is mapped from now on, which cannot be offered
    locked = free(20 * MB, 20 * MB, 20 * MB)
    pool.rest()
    assert pool.nbytes() <= 40 * MB
    libc.munlockall()
    ''')


@pytest.mark.parametrize('then', ['pass', 'training.limit(20 * MB, lambda nbytes: False)'])
def test_in_a_full_container_a_library_has_what_is_offered_and_the_next_iteration_the_rest(then):
    """In each round as much as is left with what is offered, so that the kernel has to take it, or to kill.

    Between iterations, or at the beginning of one.
    """
    try:
        with memory_group(400 << 20) as group:
            check(REST + f'''
    from chainer_ooc.backends.host import HostBackend, groups
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.memset.argtypes, libc.free.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), (ctypes.c_void_p,)
    training = HostBackend()
    training.begin()
    pool.close()
    taken = 0
    for round in range(6):
        training.limit(20 * MB, lambda nbytes: False)
        held = [np.full(50 * MB, each, np.uint8) for each in range(5)]
        assert all((array == number).all() for number, array in enumerate(held))
        del held[1:]
        before = training._blocks.nbytes()
        training.rest()
        {then}
        nbytes = groups.groups()[0].left_now_bytes() + 120 * MB
        block = libc.malloc(nbytes)
        libc.memset(block, 5, nbytes)
        training.limit(20 * MB, lambda nbytes: False)
        taken += training._blocks.nbytes() < before
        libc.free(block)
        assert (held[0] == 0).all()
    assert taken == 6
    training.close()
''', preexec_fn=group.enter)
            assert group.kills() == 0
    except OSError as error:
        pytest.skip(f'no memory groups here: {error}')
