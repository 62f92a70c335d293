"""The best-fit pool. In the drawings a letter is a unit of 512 bytes of a block, a dot one of cached memory.

A space is memory that went back to the device. `a3` allocates three units, `-a` frees them.
"""
import pytest

from chainer_ooc.papers.allocators.allocator import DeviceFullError, ExactAllocator
from chainer_ooc.papers.allocators.pool import BestFitPool

UNIT = 512


@pytest.fixture
def pool_of(drawing):
    def pool_of(units):
        return drawing(BestFitPool(units * UNIT), UNIT)
    return pool_of


def test_a_request_is_rounded_up_to_512_bytes():
    pool = BestFitPool(10_000)
    sizes = [pool.malloc(nbytes).size_bytes for nbytes in (1, 512, 513)]
    assert sizes == [512, 512, 1024]
    assert (pool.used_bytes, pool.reserved_bytes) == (1026, 2048)


def test_a_request_that_nothing_cached_holds_gets_a_region_of_its_size(pool_of):
    pool = pool_of(100)
    assert pool('a2 b3') == 'aabbb'
    assert pool('-a -b') == '.....'
    assert pool.allocator.cached == ((0, 2 * UNIT), (2 * UNIT, 3 * UNIT))


def test_a_larger_cached_chunk_is_split_and_its_end_stays_cached(pool_of):
    pool = pool_of(100)
    assert pool('a8 -a') == '........'
    assert pool('b2') == 'bb......'
    assert pool('c3') == 'bbccc...'
    assert pool.allocator.reserved_bytes == 8 * UNIT


def test_a_chunk_of_the_very_size_is_not_split(pool_of):
    pool = pool_of(100)
    assert pool('a3 -a b3') == 'bbb'
    assert pool.allocator.cached == ()


@pytest.mark.parametrize(('frees', 'cached'), [
    ('-b', '[2:3]'),           # aa...ccc
    ('-a -b', '[0:5]'),        # .....ccc    with the one before
    ('-b -a', '[0:5]'),        # .....ccc    with the one behind
    ('-a -c', '[0:2][5:3]'),   # ..bbb...    no neighbours
    ('-a -c -b', '[0:8]'),     # ........    with both
])
def test_a_freed_chunk_merges_with_free_neighbours(pool_of, frees, cached):
    pool = pool_of(100)
    assert pool('x8 -x a2 b3 c3') == 'aabbbccc'
    pool(frees)
    assert ''.join(f'[{address // UNIT}:{nbytes // UNIT}]' for address, nbytes in pool.allocator.cached) == cached


def test_regions_never_merge(pool_of):
    pool = pool_of(100)
    assert pool('a2 b2 -a -b') == '....'
    assert pool.allocator.cached == ((0, 2 * UNIT), (2 * UNIT, 2 * UNIT))
    assert pool('c3') == '....ccc'


def test_two_cached_chunks_that_do_not_touch_hold_no_request_of_their_sum(pool_of):
    pool = pool_of(100)
    assert pool('x8 -x a2 b3 c3 -a -c') == '..bbb...'
    assert pool('d4') == '..bbb...dddd'


def test_the_smallest_chunk_that_fits_is_taken(pool_of):
    pool = pool_of(100)
    assert pool('a5 x1 b3 y1 c4 -a -b -c') == '.....x...y....'
    assert pool('d3') == '.....xdddy....'
    assert pool('e3') == '.....xdddyeee.'
    assert pool('f2') == 'ff...xdddyeee.'


def test_of_chunks_of_one_size_the_first_is_taken(pool_of):
    pool = pool_of(100)
    assert pool('a2 x1 b2 y1 c2 -c -b -a') == '..x..y..'
    assert pool('d2') == 'ddx..y..'


def test_a_full_device_gets_whole_free_regions_back(pool_of):
    pool = pool_of(10)
    assert pool('a4 b4 -a') == '....bbbb'
    assert pool('c5') == '    bbbbccccc'
    assert pool.allocator.reserved_bytes == 9 * UNIT


def test_a_region_of_which_a_part_lives_stays(pool_of):
    pool = pool_of(9)
    assert pool('a6 -a b1 c2') == 'bcc...'
    pool('-c')
    with pytest.raises(DeviceFullError):  # 3 units are the device's, 5 are cached
        pool('d6')
    assert pool.allocator.reserved_bytes == 6 * UNIT
    assert str(pool) == 'b.....', 'a failure moves nothing'
    assert pool('-b d6') == 'dddddd'


def test_the_largest_free_piece_may_be_what_the_device_still_has(pool_of):
    pool = pool_of(9)
    pool('a2')
    assert pool('b7') == 'aabbbbbbb'
    with pytest.raises(DeviceFullError):
        pool('c1')


def test_no_bytes_take_no_room():
    pool = BestFitPool(0)
    block = pool.malloc(0)
    pool.free(block)
    pool.free(block)
    assert pool.used_bytes == pool.reserved_bytes == 0


def test_the_reference_loses_nothing():
    allocator = ExactAllocator(10)
    first, _, third = (allocator.malloc(nbytes) for nbytes in (3, 4, 3))
    allocator.free(first)
    allocator.free(third)
    assert (allocator.used_bytes, allocator.reserved_bytes) == (4, 4)
    allocator.malloc(6)
    with pytest.raises(DeviceFullError):
        allocator.malloc(1)
