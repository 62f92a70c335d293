"""Pinned regions: many blocks at once, by a thread beside the training, and left to the next backend of the process."""
import itertools
import os
import threading

import pytest

from chainer_ooc.backends.cuda import regions
from chainer_ooc.backends.cuda.pinned import PinnedMemory
from chainer_ooc.backends.cuda.regions import KEPT, Pinning
from chainer_ooc.backends.spill.swap_thread import SwapThread
from chainer_ooc.errors import SpillError
from support.fake_driver import FakeDriver
from support.pinning import Pinner

KB = 1 << 10


@pytest.fixture
def driver():
    made = Pinner()
    yield made
    regions.give_back()
    assert made.misuses == []
    assert made.left_behind() == []


@pytest.fixture
def pinned(driver):
    made = PinnedMemory(driver, 1 << 20)
    yield made
    made.close()


def test_what_is_prepared_is_pinned_at_once_by_a_thread_and_lent_in_its_sizes(driver, pinned):
    pinned.prepare([1000, 3000, 1000])
    blocks = [pinned.lend(nbytes) for nbytes in (1000, 1000, 3000)]
    assert (driver.by_caller, driver.by_thread) == ([], [1024 + 3072 + 1000])
    assert [block.nbytes for block in blocks] == [1000, 1000, 3000]
    spans = sorted((block.address, block.address + block.nbytes) for block in blocks)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all((start - spans[0][0]) % 512 == 0 for start, _ in spans)


def test_what_is_there_or_on_its_way_is_not_pinned_once_more(driver, pinned):
    pinned.take_back(pinned.lend(1000))
    driver.gate.clear()
    for _ in range(3):
        pinned.prepare([1000, 2000])
    driver.gate.set()
    assert pinned.lend(2000) is not None
    assert (driver.by_caller, driver.by_thread) == ([1000], [2000])


def test_large_needs_are_several_regions_in_their_order(driver, pinned, monkeypatch):
    monkeypatch.setattr(regions, 'REGION_BYTES', 4096)
    pinned.prepare([2048, 2048, 1000, 9000, 500])
    assert pinned.lend(500) is not None
    assert driver.by_thread == [4096, 1000, 9000, 500]


def test_it_is_known_whether_a_block_is_ready(driver, pinned):
    assert pinned.is_prepared(0)
    assert not pinned.is_prepared(1000)
    driver.gate.clear()
    pinned.prepare([1000])
    assert not pinned.is_prepared(1000)
    driver.gate.set()
    block = pinned.lend(1000)
    assert not pinned.is_prepared(1000)
    pinned.take_back(block)
    assert pinned.is_prepared(1000)
    assert pinned.is_prepared(2 << 20), 'that goes to the spill file at once'


def test_the_limit_holds_for_what_is_prepared(driver):
    pinned = PinnedMemory(driver, 5000)
    lent = pinned.lend(2000)
    pinned.prepare([2000, 2000])
    assert pinned.held_bytes() == 4000, 'of two there is room for the first'
    assert pinned.lend(2000) is not None
    assert pinned.is_prepared(2000), 'that goes to the spill file'
    assert pinned.lend(2000) is None
    pinned.take_back(lent)
    pinned.close()
    assert sum(driver.by_caller + driver.by_thread) == 4000


def test_what_is_on_its_way_counts_as_pinned_and_as_free(driver, pinned):
    driver.gate.clear()
    pinned.prepare([1000])
    assert (pinned.held_bytes(), pinned.free_bytes()) == (1000, 1 << 20)
    driver.gate.set()
    pinned.lend(1000)
    assert pinned.free_bytes() == (1 << 20) - 1000


def test_a_refusal_to_the_thread_is_one_to_the_caller(driver, pinned):
    driver.fail_next('pin')
    pinned.prepare([1000])
    assert pinned.lend(1000) is None
    assert (pinned.refused, pinned.refusals, pinned.limit_bytes) == (True, 1, 0)


def test_a_region_is_unpinned_once_none_of_its_blocks_is_lent(driver):
    pinned = PinnedMemory(driver, 4000)
    pinned.prepare([1024, 1024])
    first, second = pinned.lend(1024), pinned.lend(1024)
    pinned.take_back(first)
    assert pinned.lend(3000) is None
    pinned.take_back(second)
    assert pinned.lend(3000) is not None
    assert pinned.held_bytes() == 3000
    pinned.close()


def test_without_a_thread_the_caller_pins(driver, pinned, monkeypatch):
    def start(self):
        raise SpillError('no thread')

    monkeypatch.setattr(SwapThread, 'start', start)
    pinned.prepare([1000, 2000])
    assert pinned.lend(1000) is not None
    assert (driver.by_caller, driver.by_thread) == ([1000], [])
    assert pinned.is_prepared(2000), 'waiting would not help'


def test_close_waits_for_what_is_being_pinned_and_leaves_the_rest(driver, monkeypatch):
    monkeypatch.setattr(regions, 'REGION_BYTES', KB)
    pinned = PinnedMemory(driver, 1 << 20)
    driver.gate.clear()
    pinned.prepare([KB, KB, KB])
    assert driver.begun.wait(20)
    threading.Timer(0.1, driver.gate.set).start()
    pinned.close()
    assert driver.by_thread == [KB]
    assert [region.nbytes for region in KEPT] == [KB]


def test_what_is_pinned_serves_the_next_backend(driver):
    first = PinnedMemory(driver, 1 << 20)
    first.prepare([1000, 2000])
    first.lend(2000)
    first.close()
    second = PinnedMemory(driver, 1 << 20)
    assert [second.lend(nbytes).nbytes for nbytes in (2000, 1000)] == [2000, 1000]
    assert driver.pins == 1
    second.close()


def test_what_the_next_backend_may_not_have_is_unpinned(driver):
    first = PinnedMemory(driver, 1 << 20)
    for nbytes in (1000, 2000):
        first.lend(nbytes)
    first.close()
    second = PinnedMemory(driver, 2500)
    assert second.held_bytes() in (1000, 2000)
    assert sum(found.nbytes for found in driver._pinned.values()) == second.held_bytes()
    second.close()


def test_what_another_host_has_pinned_stays_for_its_own(driver):
    first = PinnedMemory(driver, 1 << 20)
    first.lend(1000)
    first.close()
    other = PinnedMemory(FakeDriver(), 1 << 20)
    assert other.held_bytes() == 0
    other.close()
    assert [region.driver for region in KEPT] == [driver]


def test_what_is_kept_is_given_back_when_it_is_asked_for(driver):
    first = PinnedMemory(driver, 1 << 20)
    first.lend(1000)
    first.close()
    assert [found.nbytes for found in driver._pinned.values()] == [1000]
    regions.give_back()
    assert not driver._pinned


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='the system has no fork')
def test_what_is_kept_is_the_parents_after_a_fork(driver):
    first = PinnedMemory(driver, 1 << 20)
    first.lend(1000)
    first.close()
    child = os.fork()
    if not child:
        os._exit(len(KEPT))
    assert os.waitpid(child, 0)[1] == 0
    assert len(KEPT) == 1


def test_an_interrupt_before_the_thread_is_woken_leaves_nobody_waiting(driver, pinned, monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Pinning, '_wake', interrupt)
        with pytest.raises(KeyboardInterrupt):
            pinned.prepare([1000])
    assert pinned.lend(1000) is not None
    assert (driver.by_caller, driver.by_thread) == ([], [1000])
