import gc
import mmap
import weakref

import numpy as np
import pytest

from chainer_ooc.backends.host import block


@pytest.mark.parametrize('nbytes', [0, 1, 4097, block.LEAST_MAPPED_BYTES - 1, block.LEAST_MAPPED_BYTES, (1 << 20) + 3])
def test_near_memory_is_flat_writable_bytes(nbytes):
    array = block.allocate(nbytes)
    assert (array.dtype, array.shape) == (np.uint8, (nbytes,))
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[:] = 7
    assert array.sum() == 7 * nbytes


def test_only_large_blocks_are_mappings_of_their_own():
    assert block.allocate(block.LEAST_MAPPED_BYTES - 1).base is None
    assert type(block.allocate(block.LEAST_MAPPED_BYTES).base) is block.Block


def test_a_mapping_dies_with_the_last_view_of_it():
    array = block.allocate(1 << 20)
    mapping = weakref.ref(array.base)
    view = array[5:].view('u2' if array[5:].nbytes % 2 == 0 else 'u1')[::-1]
    del array
    assert mapping() is not None
    view[0] = 9
    assert view[0] == 9
    del view
    assert mapping() is None


def mapped_bytes():
    with open('/proc/self/statm', encoding='ascii') as file:
        return int(file.read().split()[0]) * mmap.PAGESIZE


def test_a_mapping_goes_back_to_the_system_at_once():
    gc.collect()
    nbytes = 256 << 20  # none of it is touched
    before = mapped_bytes()
    array = block.allocate(nbytes)
    assert mapped_bytes() - before >= nbytes
    del array
    assert mapped_bytes() - before < nbytes // 2


def test_a_mapping_is_no_longer_than_its_block():
    nbytes = (17 << 20) + 4096  # rounded up to whole huge pages it would have 18 MiB
    before = mapped_bytes()
    arrays = [block.allocate(nbytes) for _ in range(32)]
    assert mapped_bytes() - before < 32 * nbytes + (4 << 20)
    arrays[0][-1] = 1


def test_what_the_system_would_refuse_is_not_available():
    assert block.is_available(0)
    assert block.is_available(1 << 20)
    assert not block.is_available(1 << 60)


def test_two_blocks_are_apart():
    one, other = (block.allocate(block.LEAST_MAPPED_BYTES) for _ in range(2))
    one[:], other[:] = 1, 2
    assert (one == 1).all()
    assert not np.shares_memory(one, other)


def test_a_refusal_of_the_system_is_a_memory_error_that_says_how_much():
    with pytest.raises(MemoryError, match=f'no {1 << 60} bytes of near memory'):
        block.allocate(1 << 60)
