"""The meter of the device: peaks of stretches, and what was allocated since it began."""
import pytest

from chainer_ooc.backends.cuda.allocators.pool import PoolAllocator
from chainer_ooc.backends.cuda.budget import AllocatorBudget
from support import fake_device_memory as fake


@pytest.fixture
def budget():
    calls = fake.FakeCalls(fake.FakeDevice(100 * fake.MIB))
    return AllocatorBudget(PoolAllocator(calls), calls)


def test_it_counts_what_was_allocated_since_it_began(budget):
    old, meter = budget(512), budget.meter()
    assert meter.start()
    young = budget(1024)
    assert meter.current_bytes() == 1024
    del old
    assert meter.current_bytes() == 1024
    del young
    assert meter.current_bytes() == 0


def test_it_knows_which_blocks_it_has_counted(budget):
    old, meter = budget(512), budget.meter()
    meter.start()
    young = budget(512)
    assert (meter.has_counted(old.mem.owner), meter.has_counted(young.mem.owner)) == (False, True)
    meter.stop()
    assert not meter.has_counted(young.mem.owner)


def test_it_counts_nothing_when_it_does_not_run(budget):
    meter = budget.meter()
    meter.mark()
    kept = budget(512)
    assert not meter.running
    assert meter.current_bytes() == meter.above_mark_bytes() == 0
    meter.start()
    assert meter.running
    del kept
    budget(512)
    meter.stop()
    meter.stop()
    assert meter.current_bytes() == meter.above_mark_bytes() == 0
    assert not meter.running


def test_starting_twice_goes_on(budget):
    meter = budget.meter()
    meter.start()
    kept = budget(512)
    assert meter.start()
    assert meter.current_bytes() == kept.mem.size


def test_starting_again_begins_anew(budget):
    meter = budget.meter()
    meter.start()
    old = budget(512)
    meter.stop()
    meter.start()
    assert meter.current_bytes() == 0
    del old
    assert meter.current_bytes() == 0


def test_the_peak_is_above_what_lived_at_the_mark(budget):
    #  bytes   4096         .#####
    #          2048       .#.     .
    #          1024  ####       .     ##   the older block dies before the mark's end
    old, meter = budget(1024), budget.meter()
    meter.start()
    meter.mark()
    first = budget(1024)
    second = budget(2048)
    del first, second, old
    assert meter.above_mark_bytes() == 3072
    meter.mark()
    assert meter.above_mark_bytes() == 0
    kept = budget(512)
    assert meter.above_mark_bytes() == kept.mem.size


def test_once_stopped_it_costs_nothing(budget):
    meter = budget.meter()
    meter.start()
    ours = meter._ours
    meter.stop()
    kept = budget(512)
    assert ours.sum_bytes == 0
    assert budget.used_bytes() == kept.mem.size


def test_two_meters_count_by_themselves(budget):
    first, second = budget.meter(), budget.meter()
    first.start()
    kept = [budget(512)]
    second.start()
    kept.append(budget(1024))
    assert (first.current_bytes(), second.current_bytes()) == (1536, 1024)
    first.stop()
    kept.append(budget(512))
    assert second.current_bytes() == 1536
