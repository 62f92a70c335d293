"""What all allocators promise, and what each does by itself."""
import itertools

import pytest

from chainer_ooc.backends.cuda.allocators import ALLOCATORS
from chainer_ooc.backends.cuda.allocators.allocator import NoRoomError
from chainer_ooc.backends.cuda.allocators.async_pool import AsyncAllocator
from chainer_ooc.backends.cuda.allocators.pool import ManagedAllocator, PoolAllocator, paged
from chainer_ooc.backends.cuda.allocators.virtual import VirtualAllocator
from chainer_ooc.errors import ReentryError
from support import fake_device_memory as fake

MIB = fake.MIB


@pytest.fixture
def calls():
    return fake.FakeCalls(fake.FakeDevice(100 * MIB))


@pytest.fixture(params=[*ALLOCATORS])
def allocator(request, calls):
    return fake.allocator_of(request.param, calls)


def test_each_has_the_name_it_is_found_by(calls):
    assert [ALLOCATORS[name](calls).name for name in ALLOCATORS if name != 'virtual'] == ['pool', 'async', 'unified']
    assert VirtualAllocator.name == 'virtual'


def test_memory_is_large_enough_and_nobody_elses(allocator):
    blocks = [allocator.malloc(nbytes) for nbytes in (1, 600, MIB, 3 * MIB, 8 * MIB, 8 * MIB)]
    assert all(block.size_bytes >= nbytes
               for block, nbytes in zip(blocks, (1, 600, MIB, 3 * MIB, 8 * MIB), strict=False))
    ordered = sorted(blocks, key=lambda block: block.pointer)
    assert all(first.pointer + first.size_bytes <= second.pointer for first, second in itertools.pairwise(ordered))
    assert allocator.used_bytes() == sum(block.size_bytes for block in blocks)
    assert allocator.used_bytes() <= allocator.held_bytes()


def test_what_is_freed_is_cached_and_trimmed(allocator, calls):
    allocator.open()
    del_me = allocator.malloc(20 * MIB)
    held_bytes = allocator.held_bytes()
    assert held_bytes == calls.device.taken_bytes >= del_me.size_bytes
    del del_me
    assert allocator.used_bytes() == 0
    assert allocator.held_bytes() == held_bytes
    allocator.trim(64 * MIB)
    assert allocator.held_bytes() == held_bytes
    allocator.trim(0)
    assert allocator.held_bytes() == calls.device.taken_bytes == 0


def test_the_limit_holds_and_what_is_cached_makes_way(allocator, calls):
    allocator.limit_bytes = 32 * MIB
    for nbytes in (20 * MIB, 30 * MIB, 10 * MIB, 32 * MIB):
        block = allocator.malloc(nbytes)
        assert allocator.held_bytes() <= 32 * MIB
        with pytest.raises(MemoryError):
            allocator.malloc(33 * MIB)
        assert allocator.used_bytes() == block.size_bytes
        del block
    assert calls.device.most_bytes <= 64 * MIB  # the driver's own pool shows only afterwards what it took


def test_the_device_may_refuse(allocator):
    block = allocator.malloc(60 * MIB)
    with pytest.raises(MemoryError):
        allocator.malloc(60 * MIB)
    assert allocator.used_bytes() == block.size_bytes
    del block
    assert allocator.malloc(60 * MIB)


def test_close_leaves_what_lives_and_takes_the_rest_later(allocator, calls):
    block = allocator.malloc(20 * MIB)
    allocator.malloc(30 * MIB)
    allocator.close()
    assert calls.device.taken_bytes == allocator.held_bytes() < 50 * MIB
    assert allocator.used_bytes() == block.size_bytes
    del block
    allocator.close()
    allocator.close()
    assert calls.device.taken_bytes == 0


def test_regions_are_counted_in_pages():
    assert [paged(nbytes) for nbytes in (512, MIB, MIB + 512, 2 * MIB, 3 * MIB)] == [
        512, MIB, 2 * MIB, 2 * MIB, 4 * MIB]


def test_a_small_array_takes_nothing_of_what_a_large_one_left(calls):
    # A best-fit pool gives the gradient a part of the map's region, which no map can have until the gradient goes.
    allocator = PoolAllocator(calls)
    allocator.limit_bytes = 64 * MIB
    large = allocator.malloc(50 * MIB)
    del large
    gradient = allocator.malloc(2 * MIB)
    large = allocator.malloc(50 * MIB)
    assert allocator.used_bytes() == large.size_bytes + gradient.size_bytes == 52 * MIB


def test_what_is_cached_goes_back_as_far_as_it_is_in_the_way_and_the_longest_unused_first(calls):
    allocator = PoolAllocator(calls)
    allocator.limit_bytes = 64 * MIB
    for nbytes in (10 * MIB, 20 * MIB, 30 * MIB, 10 * MIB):
        allocator.malloc(nbytes)
    assert allocator.held_bytes() == 60 * MIB
    kept = allocator.malloc(18 * MIB)
    assert (allocator.held_bytes(), allocator.used_bytes()) == (58 * MIB, kept.size_bytes)  # the 20 MiB are gone
    again = allocator.malloc(30 * MIB)
    assert (allocator.held_bytes(), allocator.used_bytes()) == (58 * MIB, kept.size_bytes + again.size_bytes)


def test_memory_of_a_size_whose_pool_has_just_gone_is_counted(calls):
    allocator = PoolAllocator(calls)
    allocator.limit_bytes = 64 * MIB
    del_me = allocator.malloc(40 * MIB)
    del del_me
    allocator.trim(0)
    cached = allocator.malloc(60 * MIB)
    del cached
    block = allocator.malloc(40 * MIB)
    assert (allocator.held_bytes(), allocator.used_bytes()) == (40 * MIB, block.size_bytes)


def test_a_region_that_the_device_refused_is_not_counted(calls):
    allocator = PoolAllocator(calls)
    with pytest.raises(NoRoomError):
        allocator.malloc(101 * MIB)
    assert allocator.held_bytes() == 0


def test_who_asks_in_the_midst_of_a_request_is_refused(calls, monkeypatch):
    """As a handler or a finalizer does."""
    allocator = PoolAllocator(calls)
    device_memory = calls.device_memory

    def asked_meanwhile(nbytes):
        with pytest.raises(ReentryError, match='in the middle of a request'):
            allocator.malloc(8 * MIB)
        return device_memory(nbytes)

    monkeypatch.setattr(calls, 'device_memory', asked_meanwhile)
    block = allocator.malloc(8 * MIB)
    assert allocator.used_bytes() == block.size_bytes == allocator.held_bytes()


def test_managed_memory_is_prefetched_once(calls):
    allocator = ManagedAllocator(calls)
    allocator.malloc(4 * MIB)
    assert allocator.malloc(4 * MIB).size_bytes == 4 * MIB
    assert calls.prefetched == [4 * MIB]


def test_managed_memory_never_asks_for_more_than_the_card_has_free(calls):
    others = calls.device_memory(30 * MIB)
    allocator = ManagedAllocator(calls)
    calls.managed_memory = lambda nbytes: fake.FakeMemory(fake.FakeDevice(10**12), nbytes)  # the driver never refuses
    kept = allocator.malloc(50 * MIB)
    with pytest.raises(NoRoomError, match='the card'):
        allocator.malloc(22 * MIB)
    assert allocator.held_bytes() == kept.size_bytes
    del others


def test_the_drivers_pool_keeps_what_is_freed_only_while_it_is_used(calls):
    allocator = AsyncAllocator(calls)
    assert not calls.ordered.keeps
    allocator.open()
    assert calls.ordered.keeps
    allocator.close()
    assert not calls.ordered.keeps


def test_what_the_drivers_pool_took_too_much_goes_back(calls):
    allocator = AsyncAllocator(calls)
    allocator.limit_bytes = 40 * MIB
    kept = allocator.malloc(30 * MIB)
    with pytest.raises(NoRoomError):  # the pool would hold 64 MiB for it
        allocator.malloc(8 * MIB)
    assert allocator.held_bytes() == 32 * MIB
    assert kept.size_bytes == 30 * MIB
