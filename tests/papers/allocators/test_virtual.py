"""Virtual addresses. Unless it says otherwise chunks have 4 bytes, and the device 21: five chunks and a byte."""
import pytest

from chainer_ooc.papers.allocators.allocator import DeviceFullError
from chainer_ooc.papers.allocators.pool import BestFitPool
from chainer_ooc.papers.allocators.virtual import VirtualModel

UNIT = 512


@pytest.fixture
def device():
    return VirtualModel(21, chunk_bytes=4)


def test_a_block_maps_as_many_chunks_as_it_needs(device):
    # chunk     0    1    2
    # block a  [aaaa|aaaa|aa..]
    block = device.malloc(10)
    assert (block.chunks, block.size_bytes) == ((0, 1, 2), 12)
    assert (device.used_bytes, device.reserved_bytes) == (10, 12)


def test_freed_chunks_are_mapped_again_before_new_ones_are_made(device):
    # chunk     0    1    2    3    4
    # block a  [aaaa|aaaa|aa..]
    # block b                 [bbbb]
    # block c  [cccc|cccc|cccc]    [cccc]
    first, second = device.malloc(10), device.malloc(4)
    device.free(first)
    assert device.reserved_bytes == 16, 'chunks stay cached'
    third = device.malloc(16)
    assert (second.chunks, third.chunks) == ((3,), (2, 1, 0, 4))
    assert device.reserved_bytes == 20


def test_each_block_has_addresses_of_its_own(device):
    first, second = device.malloc(6), device.malloc(1)
    assert first.address + first.size_bytes <= second.address


def test_chunks_that_do_not_touch_serve_one_block_where_a_pool_fails(device):
    # chunk     0    1    2    3    4
    #          [    |bbbb|    |dddd|    ]     three are free, no two together
    pool = BestFitPool(5 * UNIT)
    pool.free(pool.malloc(5 * UNIT))
    for allocator, unit in (device, 4), (pool, UNIT):
        blocks = [allocator.malloc(unit) for _ in range(5)]
        for block in blocks[::2]:
            allocator.free(block)
    assert set(device.malloc(12).chunks) == {0, 2, 4}
    with pytest.raises(DeviceFullError):
        pool.malloc(2 * UNIT)


def test_less_than_one_chunk_is_lost_for_each_block(device):
    for nbytes in (1, 4, 5):
        device.malloc(nbytes)
    assert device.reserved_bytes - device.used_bytes == 3 + 0 + 3


def test_a_device_with_too_few_chunks_fails_and_is_not_fragmented(device):
    device.malloc(9)
    with pytest.raises(DeviceFullError):
        device.malloc(9)
    assert device.malloc(8).chunks == (3, 4)


def test_what_is_beside_whole_chunks_is_never_used(device):
    with pytest.raises(DeviceFullError):
        device.malloc(21)
    device.malloc(20)


def test_small_requests_share_a_chunk_that_goes_back_when_it_is_free():
    # chunk       0                  1
    # small      [a . . .|b . . .]
    # a, b freed (                )
    # large      [l l l l|l l l l]  [l l l l|l l l l]
    device = VirtualModel(4 * UNIT, chunk_bytes=2 * UNIT, small_bytes=UNIT)
    first, second = device.malloc(100), device.malloc(200)
    assert (device.used_bytes, device.reserved_bytes) == (300, 2 * UNIT)
    device.free(first)
    with pytest.raises(DeviceFullError):  # half of the shared chunk is free, for small requests alone
        device.malloc(4 * UNIT)
    device.free(second)
    assert device.reserved_bytes == 2 * UNIT
    assert set(device.malloc(4 * UNIT).chunks) == {0, 1}


def test_small_requests_take_another_chunk_when_theirs_is_full():
    device = VirtualModel(6 * UNIT, chunk_bytes=2 * UNIT, small_bytes=UNIT)
    blocks = [device.malloc(100) for _ in range(5)]
    assert device.reserved_bytes == 6 * UNIT
    assert len({block.address for block in blocks}) == 5
    with pytest.raises(DeviceFullError):
        device.malloc(UNIT)
    device.malloc(100)
