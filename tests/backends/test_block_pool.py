"""Blocks that are kept for the next arrays: used again, given back when memory is short, and never lent to two."""
import gc
import resource
import threading
import weakref

import numpy as np
import pytest

from chainer_ooc.backends.host import block
from chainer_ooc.backends.host.block_pool import BlockPool
from chainer_ooc.backends.host.guard import data_bytes

pytestmark = pytest.mark.usefixtures('no_gap')

LARGE, LARGER, SMALL = 1 << 20, 3 << 20, block.LEAST_MAPPED_BYTES - 1


def address(array):
    return array.__array_interface__['data'][0]


@pytest.fixture
def blocks():
    made = BlockPool()
    yield made
    made.close()


@pytest.mark.parametrize('nbytes', [0, 1, 4097, SMALL, SMALL + 1, LARGE + 3])
def test_near_memory_is_flat_writable_bytes(blocks, nbytes):
    for _ in range(2):
        array = blocks.allocate(nbytes)
        assert (array.dtype, array.shape) == (np.uint8, (nbytes,))
        assert array.flags.c_contiguous
        assert array.flags.writeable
        array[:] = 7
        assert array.sum() == 7 * nbytes


def test_only_large_blocks_are_mappings_of_their_own(blocks):
    assert blocks.allocate(SMALL).base is None
    assert type(blocks.allocate(SMALL + 1).base) is block.HeapBlock
    assert blocks.nbytes() == SMALL + 1


def test_two_arrays_are_apart(blocks):
    one, other = (blocks.allocate(LARGE) for _ in range(2))
    one[:], other[:] = 1, 2
    assert (one == 1).all()
    assert not np.shares_memory(one, other)


def test_the_next_array_of_the_same_size_has_the_block(blocks):
    array = blocks.allocate(LARGE)
    place = address(array)
    assert blocks.nbytes() == 0
    del array
    assert blocks.nbytes() == LARGE
    other = blocks.allocate(LARGER)
    assert address(other) != place
    assert (address(blocks.allocate(LARGE)), blocks.nbytes()) == (place, LARGE)


def test_the_block_that_was_freed_last_is_taken_first(blocks):
    arrays = [blocks.allocate(LARGE) for _ in range(3)]
    places = [address(each) for each in arrays]
    for number in (1, 2, 0):
        arrays[number] = None
    again = [address(each) for each in [blocks.allocate(LARGE) for _ in range(3)]]
    assert again == [places[0], places[2], places[1]]


@pytest.mark.parametrize('view_of', [
    lambda array: array[5:-5], lambda array: array.view('<i4').reshape(-1, 2).T, memoryview,
    lambda array: array[::2][::-1], lambda array: np.frombuffer(array, np.float32)])
def test_a_block_with_a_view_is_not_lent_again(blocks, view_of):
    array = blocks.allocate(LARGE)
    array[:] = 3
    place, view = address(array), view_of(array)
    del array
    assert blocks.nbytes() == 0
    other = blocks.allocate(LARGE)
    other[:] = 0
    assert address(other) != place
    del view
    assert blocks.nbytes() == LARGE


@pytest.mark.parametrize('hold', [
    lambda array: array.base, lambda array: memoryview(array.base), lambda array: np.frombuffer(array.base, np.uint8)])
def test_a_block_that_somebody_holds_without_its_array_is_his(blocks, hold):
    array = blocks.allocate(LARGE)
    array[:] = 3
    place, held = address(array), hold(array)
    del array
    other = blocks.allocate(LARGE)
    other[:] = 0
    assert address(other) != place
    assert (np.frombuffer(held, np.uint8) == 3).all()


def test_what_is_too_much_goes_back_to_the_system_the_oldest_first(blocks):
    arrays = [blocks.allocate(LARGE) for _ in range(4)]
    mappings, places = [weakref.ref(each.base) for each in arrays], [address(each) for each in arrays]
    for number in (2, 0, 1):
        arrays[number] = None
    assert blocks.nbytes() == 3 * LARGE
    assert not blocks.keep_at_most(3 * LARGE)
    assert blocks.keep_at_most(3 * LARGE - 1)
    assert blocks.nbytes() == 2 * LARGE
    assert [each() is None for each in mappings] == [False, False, True, False]
    assert address(blocks.allocate(LARGE)) == places[1]
    assert blocks.keep_at_most(0)
    assert not blocks.keep_at_most(0)
    assert [each() is None for each in mappings] == [True, True, True, False]


def test_after_close_arrays_keep_their_blocks_and_nothing_is_kept(blocks):
    array = blocks.allocate(LARGE)
    kept = blocks.allocate(LARGE)
    mappings = weakref.ref(array.base), weakref.ref(kept.base)
    del kept
    blocks.close()
    assert (mappings[0]() is None, mappings[1]() is None) == (False, True)
    array[:] = 5
    assert (array == 5).all()
    del array
    gc.collect()
    assert mappings[0]() is None
    assert blocks.nbytes() == 0


def test_arrays_may_die_in_any_thread(blocks):
    def die(arrays):
        arrays.clear()

    for _ in range(20):
        arrays = [[blocks.allocate(LARGE) for _ in range(4)] for _ in range(4)]
        threads = [threading.Thread(target=die, args=(each,)) for each in arrays]
        for each in threads:
            each.start()
        more = [blocks.allocate(LARGE) for _ in range(8)]
        for number, array in enumerate(more):
            array[:] = number
        for each in threads:
            each.join()
        assert [set(np.unique(each)) for each in more] == [{number} for number in range(8)]
        assert len({address(each) for each in more}) == 8
        del more, array
    assert blocks.nbytes() <= 24 * LARGE


def test_a_refusal_of_the_system_is_a_memory_error_that_says_how_much(blocks):
    with pytest.raises(MemoryError, match=f'no {1 << 60} bytes of near memory'):
        blocks.allocate(1 << 60)


# --- as the backend uses them ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _without_arena(no_arena):
    """Blocks are kept where there is no arena."""


def test_the_backend_keeps_no_more_than_it_is_told(backend):
    arrays = [backend.allocate(LARGE) for _ in range(4)]
    mappings = [weakref.ref(each.base) for each in arrays]
    arrays.clear()
    backend.keep_at_most(2 * LARGE)
    assert [each() is None for each in mappings].count(True) == 2
    backend.trim()
    assert all(each() is None for each in mappings)


def test_what_is_kept_counts_as_free(backend):
    array = backend.allocate(512 << 20)
    array[::4096] = 1
    before = backend.free_bytes()
    del array
    assert backend.free_bytes() - before > 400 << 20


def test_behind_a_limit_what_is_kept_makes_room(backend, monkeypatch):
    kept = [backend.allocate(64 << 20) for _ in range(4)]
    mappings = [weakref.ref(each.base) for each in kept]
    kept.clear()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + (32 << 20), hard))
    try:
        assert backend.has_room(16 << 20)
        assert not any(each() is None for each in mappings)  # there was room beside them
        assert backend.has_room(200 << 20)
        assert all(each() is None for each in mappings)
        assert not backend.has_room(400 << 20)
        backend.allocate(200 << 20)
        with pytest.raises(MemoryError):
            backend.allocate(400 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
