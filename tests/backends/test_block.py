import gc

import pytest

from chainer_ooc.backends.host import block
from support.resident import mapped_bytes


def test_a_mapping_goes_back_to_the_system_at_once():
    gc.collect()
    nbytes = 256 << 20  # none of it is touched
    before = mapped_bytes()
    mapping = block.make(nbytes)
    assert mapped_bytes() - before >= nbytes
    del mapping
    assert mapped_bytes() - before < nbytes // 2


def test_a_mapping_is_no_longer_than_its_block():
    nbytes = (17 << 20) + 4096  # rounded up to whole huge pages it would have 18 MiB
    before = mapped_bytes()
    mappings = [block.make(nbytes) for _ in range(32)]
    assert mapped_bytes() - before < 32 * nbytes + (4 << 20)
    mappings[0][-1] = 1


def test_what_the_system_would_refuse_is_not_available():
    assert block.is_available(0)
    assert block.is_available(1 << 20)
    assert not block.is_available(1 << 60)


def test_a_refusal_of_the_system_is_a_memory_error_that_says_how_much():
    with pytest.raises(MemoryError, match=f'no {1 << 60} bytes of near memory'):
        block.make(1 << 60)
