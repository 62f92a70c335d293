"""Replaying mallocs and frees. A script such as `0:a3 1:b2 2:-a` is position 0 allocating 3 units as `a`, and so on."""
import pytest

from chainer_ooc.papers.allocators.allocator import ExactAllocator
from chainer_ooc.papers.allocators.events import Event, replay, smallest_capacity
from chainer_ooc.papers.allocators.pool import BestFitPool
from chainer_ooc.papers.allocators.virtual import VirtualModel

UNIT = 512


@pytest.fixture
def events():
    def events(script):
        made = []
        for word in script.split():
            position, act = word.split(':')
            block = ord(act.strip('-')[0])
            nbytes = 0 if act[0] == '-' else int(act[1:]) * UNIT
            made.append(Event('free' if act[0] == '-' else 'malloc', block, nbytes, int(position), 'map'))
        return made
    return events


#: Position 2 wants three units, where one and two are free on the two sides of a block that lives.
HOLES = '0:a1 0:b1 0:c2 1:-a 1:-c 2:d3 2:-d 2:-b'


def test_peaks_are_those_of_the_whole_replay(events):
    result = replay(events('0:a3 0:b2 1:-a 2:c4 2:-b 2:-c'), ExactAllocator(100 * UNIT))
    assert result.peak_used_bytes == result.peak_reserved_bytes == 6 * UNIT
    assert (result.failed_at, result.fragmentation) == (None, 0)


def test_fragmentation_is_what_is_not_used_when_most_is_reserved(events):
    # xxxx -> ab.. -> .b.. and ddd behind them: 4 of 7 units are used
    result = replay(events('0:x4 0:-x 0:a1 0:b1 0:c2 1:-a 1:-c 2:d3 2:-d 2:-b'), BestFitPool(100 * UNIT))
    assert (result.peak_used_bytes, result.peak_reserved_bytes) == (4 * UNIT, 7 * UNIT)
    assert result.fragmentation == pytest.approx(3 / 7)


def test_a_failure_has_its_position(events):
    # x takes the whole device as one region, in which b then lives between the holes: .b.. , 2 of 3 units in one piece
    result = replay(events('0:x4 0:-x 0:a1 0:b1 0:c2 1:-a 1:-c 2:d3 2:-d 2:-b'), BestFitPool(4 * UNIT))
    assert (result.failed_at, result.peak_used_bytes) == (2, 4 * UNIT)


def test_regions_of_their_own_are_given_back_and_do_not_fragment(events):
    result = replay(events(HOLES), BestFitPool(4 * UNIT))
    assert (result.failed_at, result.peak_reserved_bytes) == (None, 4 * UNIT)


def test_later_iterations_find_the_cache_of_the_first_and_what_stays(events):
    # iteration 1: s, aa, bbb each get a region      s..bbb -> s.....
    # iteration 2: aa and bbb fit their old regions
    script = events('-1:s1 0:a2 1:-a 1:b3 2:-b')
    pool = BestFitPool(100 * UNIT)
    result = replay(script, pool, iterations=3)
    assert result.peak_reserved_bytes == pool.reserved_bytes == 6 * UNIT
    assert pool.used_bytes == UNIT


def test_a_later_iteration_can_be_the_one_that_fails(events):
    # iteration 1: a bbb -> . bbb -> the region of a goes -> bbb cccc: all 7 units, and in the end ... ....
    # iteration 2: a.. bbb. -> ... bbb. -> the first region goes, but cccc beside bbb. makes 8
    script = events('0:a1 0:b3 1:-a 1:c4 1:-b 1:-c')
    assert smallest_capacity(script, BestFitPool) == 7 * UNIT
    assert replay(script, BestFitPool(7 * UNIT), iterations=2).failed_at == 1
    assert smallest_capacity(script, BestFitPool, iterations=2) == 8 * UNIT


def test_what_fails_before_the_iteration_has_position_minus_one(events):
    assert replay(events('-1:s3 0:a1'), ExactAllocator(UNIT)).failed_at == -1


def test_no_events_need_no_memory():
    assert smallest_capacity([], BestFitPool) == 0
    assert replay([], ExactAllocator(0)).failed_at is None


@pytest.mark.parametrize(('allocator', 'units'), [
    (ExactAllocator, 4),
    (BestFitPool, 7),
    (lambda capacity_bytes: VirtualModel(capacity_bytes, chunk_bytes=UNIT), 4),
    (lambda capacity_bytes: VirtualModel(capacity_bytes, chunk_bytes=3 * UNIT), 9),
], ids=['exact', 'pool', 'chunks of 1', 'chunks of 3'])
def test_the_smallest_capacity_is_what_the_allocator_needs(events, allocator, units):
    # Bytes alone: 4 units. The pool cuts x into abcc, then has .b.. and needs a region for ddd; chunks of 3 take a, b
    # and cc one each.
    script = events('0:x4 0:-x 0:a1 0:b1 0:c2 1:-a 1:-c 2:d3 2:-d 2:-b')
    enough = smallest_capacity(script, allocator)
    assert replay(script, allocator(enough)).failed_at is None
    assert replay(script, allocator(enough - 1)).failed_at is not None
    assert enough == units * UNIT
