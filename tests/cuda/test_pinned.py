"""Pinned blocks: exact sizes, pinned once, used again, never given back while a copy may use them."""
import functools
import itertools

import pytest

from chainer_ooc.backends.cuda import regions
from chainer_ooc.backends.cuda.pinned import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    SHARE_OF_FREE,
    PinnedMemory,
    host_view,
)
from chainer_ooc.backends.cuda.regions import Region
from chainer_ooc.backends.host import limits
from support.fake_driver import FakeDriver
from support.interrupting import interrupted_at


@pytest.fixture
def driver():
    made = FakeDriver()
    yield made
    assert made.misuses == []


def test_blocks_have_exactly_the_size_that_is_asked_for(driver):
    pinned = PinnedMemory(driver, 10_000)
    assert [pinned.lend(nbytes).nbytes for nbytes in (1, 1025, 4097)] == [1, 1025, 4097]
    assert pinned.held_bytes() == 1 + 1025 + 4097


def test_a_block_is_used_again_for_the_same_size_only(driver):
    pinned = PinnedMemory(driver, 10_000)
    block = pinned.lend(1000)
    pinned.take_back(block)
    assert pinned.lend(999) is not block
    assert pinned.lend(1000) is block
    assert driver.pins == 2


def test_what_was_taken_back_first_is_lent_first(driver):
    pinned = PinnedMemory(driver, 10_000)
    blocks = [pinned.lend(1000) for _ in range(3)]
    for block in (blocks[2], blocks[0], blocks[1]):
        pinned.take_back(block)
    assert [pinned.lend(1000) for _ in range(3)] == [blocks[2], blocks[0], blocks[1]]


def test_other_sizes_make_room_the_oldest_first(driver):
    pinned = PinnedMemory(driver, 1000)
    blocks = [pinned.lend(nbytes) for nbytes in (300, 400, 300)]
    for block in blocks:
        pinned.take_back(block)
    assert pinned.lend(500) is not None
    assert pinned.held_bytes() == 300 + 500
    assert pinned.lend(300) is blocks[2]


def test_nothing_is_unpinned_where_it_does_not_help(driver):
    pinned = PinnedMemory(driver, 1000)
    small = pinned.lend(300)
    assert pinned.lend(600) is not None
    pinned.take_back(small)
    assert pinned.lend(500) is None
    assert pinned.lend(300) is small


def test_free_bytes_are_those_that_are_not_lent(driver):
    pinned = PinnedMemory(driver, 1000)
    block = pinned.lend(600)
    assert pinned.free_bytes() == 400
    pinned.take_back(block)
    assert pinned.free_bytes() == 1000
    pinned.lend(700)
    assert pinned.free_bytes() == 300


def test_unpinning_waits_for_the_last_copy(driver):
    # out        [ a -> block ]
    # host                      lend(another size): unpins the block
    pinned = PinnedMemory(driver, 1000)
    block, array, stream = pinned.lend(1000), driver.empty(1000), driver.new_stream()
    driver.wait_event(stream, driver.record(driver.compute()))
    driver.copy_out(block.address, array.ctypes.data, 1000, stream)
    block.last = driver.record(stream)
    pinned.take_back(block)
    assert pinned.lend(999) is not None
    assert block.last.operation.ran


def test_a_block_whose_last_copy_is_unknown_is_neither_lent_nor_unpinned(driver):
    pinned = PinnedMemory(driver, 1000)
    block = pinned.lend(600)
    block.settled = False
    pinned.take_back(block)
    assert pinned.lend(600) is None
    assert pinned.lend(500) is None
    assert pinned.free_bytes() == 400
    block.settled = True
    assert pinned.lend(600) is block


def test_a_refusal_frees_what_is_not_lent_and_tries_again(driver):
    pinned = PinnedMemory(driver, 10_000)
    pinned.take_back(pinned.lend(1000))
    driver.fail_next('pin')
    assert pinned.lend(2000).nbytes == 2000
    assert pinned.held_bytes() == 2000
    assert not pinned.refused


def test_after_a_second_refusal_no_more_is_asked_for(driver):
    pinned = PinnedMemory(driver, 10_000)
    lent = pinned.lend(1000)
    driver.fail_next('pin', 2)
    assert pinned.lend(2000) is None
    assert (pinned.refused, pinned.limit_bytes) == (True, 1000)
    pins = driver.pins
    assert pinned.lend(10) is None
    assert driver.pins == pins
    pinned.take_back(lent)
    assert pinned.lend(1000) is lent


class Clock:
    """Seconds that are set by hand."""

    seconds = 0.0

    def __call__(self):
        return self.seconds


def test_one_refusal_lowers_the_limit_for_a_while_and_not_for_good(driver):
    clock = Clock()
    pinned = PinnedMemory(driver, 10_000, clock)
    pinned.lend(1000)
    driver.fail_next('pin', 2)
    assert pinned.lend(2000) is None
    clock.seconds += 0.9 * FIRST_PAUSE_SECONDS
    assert (pinned.lend(2000), pinned.free_bytes()) == (None, 0)
    clock.seconds += 0.2 * FIRST_PAUSE_SECONDS
    assert pinned.lend(2000).nbytes == 2000
    assert (pinned.limit_bytes, pinned.refused, pinned.refusals) == (10_000, False, 1)


def test_a_system_that_goes_on_refusing_is_asked_ever_more_rarely(driver):
    clock = Clock()
    pinned = PinnedMemory(driver, 10_000, clock)
    driver.fail_next('pin', 10**6)
    asked, before = [], 0
    for _ in range(3000):
        clock.seconds += 0.1
        pinned.lend(2000)
        if pinned.refusals > before:
            asked.append(clock.seconds)
            before = pinned.refusals
    pauses = [after - at for at, after in itertools.pairwise(asked)]
    assert pauses[:4] == pytest.approx([1, 2, 4, 8], abs=0.15)
    assert max(pauses) == pytest.approx(LONGEST_PAUSE_SECONDS, abs=0.15)


def test_without_a_limit_the_machine_is_asked_again_when_the_share_is_in_the_way(driver, monkeypatch):
    clock, free_bytes = Clock(), [1000]
    monkeypatch.setattr(limits, 'free_bytes', lambda: free_bytes[0])
    pinned = PinnedMemory(driver, None, clock)
    lent = [pinned.lend(700)]
    free_bytes[0] = 10_300  # the machine was given more memory; 700 are no longer free
    assert pinned.lend(5000) is None, 'not before a second is over'
    clock.seconds += 1.1 * FIRST_PAUSE_SECONDS
    lent.append(pinned.lend(5000))
    assert lent[1].nbytes == 5000
    assert pinned.limit_bytes == int((700 + 10_300) * SHARE_OF_FREE)
    free_bytes[0] = 0
    clock.seconds += 1.1 * FIRST_PAUSE_SECONDS
    assert pinned.free_bytes() == 0
    assert pinned.limit_bytes == 5700, 'what is pinned cannot be taken back'


def test_a_limit_that_was_given_stays(driver, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(limits, 'free_bytes', lambda: 1 << 40)
    pinned = PinnedMemory(driver, 1000, clock)
    clock.seconds = 100.0
    assert pinned.lend(2000) is None
    assert pinned.limit_bytes == 1000


def test_a_copy_of_nothing_needs_nothing(driver):
    pinned = PinnedMemory(driver, 0)
    pinned.take_back(pinned.lend(0))
    assert driver.pins == 0


def test_without_a_limit_a_share_of_the_machine_is_pinned(driver, monkeypatch):
    monkeypatch.setattr(limits, 'free_bytes', lambda: 1000)
    assert PinnedMemory(driver, None).limit_bytes == int(1000 * SHARE_OF_FREE)


def test_close_unpins_what_is_lent_too(driver):
    pinned = PinnedMemory(driver, 1000)
    pinned.lend(300)
    pinned.take_back(pinned.lend(400))
    pinned.close()
    pinned.close()
    assert driver.left_behind() == []


def test_a_view_of_the_host_is_the_memory_itself(driver):
    address = driver.pin(10)
    view = host_view(address, 10)
    view[3:5] = b'ab'
    assert bytes(host_view(address + 3, 2)) == b'ab'
    driver.unpin(address)


def test_a_block_that_is_shown_when_all_is_closed_is_unpinned_by_its_last_mapping(driver):
    pinned = PinnedMemory(driver, 10_000)
    block = pinned.lend(1000)
    pinned.lend(500)
    shown = [pinned.show(block), pinned.show(block)]
    pinned.close()
    assert driver.left_behind() == ['pinned bytes: 1000']
    shown[0][:] = 7
    assert (shown[1] == 7).all()
    del shown[0]
    assert driver.left_behind() == ['pinned bytes: 1000']
    shown.clear()
    assert driver.left_behind() == []
    pinned.close()


def test_the_last_mapping_waits_for_what_may_read_it_when_all_is_closed(driver, monkeypatch):
    pinned, order = PinnedMemory(driver, 10_000), []
    shown = pinned.show(pinned.lend(1000))
    pinned.close()
    for name in ('finish_all', 'unpin'):
        monkeypatch.setattr(driver, name, functools.partial(
            lambda name, call, *given: [order.append(name), call(*given)], name, getattr(driver, name)))
    del shown
    assert order == ['finish_all', 'unpin']


def test_a_mapping_that_ends_before_the_close_leaves_nothing_to_do(driver):
    pinned = PinnedMemory(driver, 10_000)
    block = pinned.lend(1000)
    del_me = pinned.show(block)
    del del_me
    assert not block.shown
    pinned.close()
    assert driver.left_behind() == []


def test_unpinning_waits_for_the_computations_that_may_use_a_mapping(driver, monkeypatch):
    pinned, waited = PinnedMemory(driver, 1000), []
    monkeypatch.setattr(driver, 'synchronize', lambda event: waited.append(event.operation.stream))
    never_shown, block = pinned.lend(100), pinned.lend(100)
    pinned.show(block)
    for each in (never_shown, block):
        pinned.take_back(each)
    pinned.trim()
    assert waited == [driver.compute()]


# Failures and interrupts


def refusing_once(driver, monkeypatch):
    """Has the driver refuse to unpin, once."""
    unpin, left = driver.unpin, [True]

    def refused(address):
        if left:
            left.pop()
            raise RuntimeError('cudaErrorUnknown')
        unpin(address)

    monkeypatch.setattr(driver, 'unpin', refused)


def test_a_region_that_cannot_be_unpinned_is_still_counted_and_lent(driver, monkeypatch):
    pinned = PinnedMemory(driver, 10_000)
    pinned.take_back(pinned.lend(1000))
    refusing_once(driver, monkeypatch)
    with pytest.raises(RuntimeError, match='cudaErrorUnknown'):
        pinned.trim()
    assert (pinned.held_bytes(), driver.pins) == (1000, 1)
    assert pinned.lend(1000) is not None
    assert driver.pins == 1
    pinned.close()
    regions.give_back()
    assert driver.left_behind() == []


def test_what_cannot_be_unpinned_for_a_lower_limit_is_kept_for_the_next_backend(driver, monkeypatch):
    first = PinnedMemory(driver, 10_000)
    for block in [first.lend(nbytes) for nbytes in (1000, 2000, 3000)]:
        first.take_back(block)
    first.close()
    refusing_once(driver, monkeypatch)
    with pytest.raises(RuntimeError, match='cudaErrorUnknown'):
        PinnedMemory(driver, 1500)
    assert sum(region.nbytes for region in regions.KEPT) == 6000
    refusing_once(driver, monkeypatch)
    with pytest.raises(RuntimeError, match='cudaErrorUnknown'):
        regions.give_back()
    regions.give_back()
    assert driver.left_behind() == []


@pytest.mark.parametrize('closes', [False, True])
@pytest.mark.parametrize('line', range(1, 25))
def test_an_interrupt_as_a_region_is_cut_loses_nothing_and_lends_nothing_twice(driver, line, closes):
    pinned = PinnedMemory(driver, 10_000)
    pinned.prepare([1000, 2000])
    pinned._pinning.coming[0].pinning.wait()
    codes = {each.__code__ for each in (PinnedMemory._look, PinnedMemory._cut, PinnedMemory.take_back, Region.cut)}
    interrupted_at(line, lambda: pinned.is_prepared(1000), 'line', codes.__contains__)
    if closes:
        pinned.close()
        pinned = PinnedMemory(driver, 10_000)
    pinned.free_bytes()  # looks at what has come
    assert pinned.held_bytes() == sum(found.nbytes for found in driver._pinned.values())
    lent = [pinned.lend(nbytes) for nbytes in (1000, 2000, 1000)]
    ranges = sorted((block.address, block.address + block.nbytes) for block in lent)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(ranges))
    for block in lent:
        pinned.take_back(block)
    pinned.trim()
    assert pinned.held_bytes() == 0
    pinned.close()
    regions.give_back()
    assert driver.left_behind() == []


@pytest.mark.parametrize('name', ['_share_bytes', '_keep_within_limit', '_cut'])
def test_an_interrupt_as_it_is_made_loses_nothing_of_what_others_have_pinned(driver, monkeypatch, name):
    pinned = PinnedMemory(driver, 10_000)
    pinned.prepare([1000, 2000])
    pinned._pinning.coming[0].pinning.wait()
    pinned.free_bytes()
    pinned.close()
    before = sum(region.nbytes for region in regions.KEPT)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(PinnedMemory, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            PinnedMemory(driver, None)
    assert sum(region.nbytes for region in regions.KEPT) == before > 0
    regions.give_back()
    assert driver.left_behind() == []
