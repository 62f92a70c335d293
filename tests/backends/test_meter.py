"""The meter counts what NumPy allocates, and leaves tracemalloc as it was."""
import ctypes
import itertools
import tracemalloc

import numpy as np
import pytest

from chainer_ooc.backends.host import meter as module
from chainer_ooc.backends.host.meter import HostMeter
from support.interrupting import interrupted_at

MB = 1_000_000
SLACK_BYTES = 100  # what the interpreter allocates between the start and its own allocators being back


@pytest.fixture
def meter():
    meter = HostMeter()
    yield meter
    meter.stop()


def test_it_counts_what_lives_since_its_start(meter):
    before = np.empty(3 * MB, 'u1')
    meter.start()
    assert meter.current_bytes() == pytest.approx(0, abs=SLACK_BYTES)
    array = np.empty(2 * MB, 'u1')
    assert meter.current_bytes() == pytest.approx(2 * MB, abs=SLACK_BYTES)
    del array, before
    assert meter.current_bytes() == pytest.approx(0, abs=SLACK_BYTES)


def test_the_peak_is_that_since_the_mark_above_what_lived_then(meter):
    # bytes  5 MB . . . . .
    #        3 MB           |  _2 MB_
    #                     mark       above: 2 MB, though 5 MB were there before it
    meter.start()
    kept = np.empty(3 * MB, 'u1')
    np.empty(2 * MB, 'u1')
    meter.mark()
    np.empty(2 * MB, 'u1')
    assert meter.above_mark_bytes() == pytest.approx(2 * MB, abs=SLACK_BYTES)
    meter.mark()
    assert meter.above_mark_bytes() == pytest.approx(0, abs=SLACK_BYTES)
    del kept


def test_a_mark_of_one_leaves_the_peak_of_another(meter):
    # bytes  2 MB      . #
    #        1 MB      .#    _#_     the first one's call ends after the other's
    #               mark    mark
    other = HostMeter()
    meter.start()
    other.start()
    meter.mark()
    array = np.empty(2 * MB, 'u1')
    del array
    other.mark()
    np.empty(MB, 'u1')
    assert meter.above_mark_bytes() == pytest.approx(2 * MB, abs=SLACK_BYTES)
    assert other.above_mark_bytes() == pytest.approx(MB, abs=SLACK_BYTES)
    array = np.empty(2 * MB, 'u1')
    meter.mark()
    del array
    other.mark()
    assert meter.above_mark_bytes() == 0  # less than lived at the mark is no peak
    other.stop()


def test_it_knows_which_blocks_it_has_counted(meter):
    before = np.empty(1000, 'u1')
    assert not meter.has_counted(before)
    meter.start()
    array, other = np.empty(1000, 'u1'), np.empty(1000, 'u1')
    assert (meter.has_counted(before), meter.has_counted(array)) == (False, True)
    del other
    assert meter.has_counted(array)
    meter.stop()
    assert not meter.has_counted(array)
    tracemalloc.start()  # by the program, long before
    try:
        array = np.empty(1000, 'u1')
        meter.start()
        assert not meter.has_counted(array)  # nor is anything known of later ones
        meter.stop()
    finally:
        tracemalloc.stop()


def test_it_counts_nothing_before_its_start_and_after_its_end(meter):
    array = np.empty(MB, 'u1')
    for _ in range(2):
        meter.mark()
        assert (meter.current_bytes(), meter.above_mark_bytes()) == (0, 0)
        meter.start()
        meter.stop()
    del array


def test_it_can_be_started_twice_and_stopped_twice(meter):
    meter.start()
    array = np.empty(MB, 'u1')
    meter.start()
    assert meter.current_bytes() == pytest.approx(MB, abs=SLACK_BYTES)
    meter.stop()
    meter.stop()
    assert not tracemalloc.is_tracing()
    del array


@pytest.mark.parametrize('frames', [1, 7])
def test_a_program_that_traces_itself_goes_on_tracing(meter, frames):
    tracemalloc.start(frames)
    try:
        array = np.empty(MB, 'u1')
        meter.start()
        assert meter.current_bytes() == pytest.approx(0, abs=SLACK_BYTES)
        meter.stop()
        assert tracemalloc.is_tracing()
        assert tracemalloc.get_traceback_limit() == frames
        assert tracemalloc.get_traced_memory()[0] >= MB
        del array
    finally:
        tracemalloc.stop()


def test_a_user_who_stops_tracing_meanwhile_does_no_harm(meter):
    tracemalloc.start()
    meter.start()
    tracemalloc.stop()
    meter.mark()
    meter.above_mark_bytes()
    meter.stop()
    assert not tracemalloc.is_tracing()


def allocators():
    """Which functions Python allocates by, of each domain."""
    found = [module._Allocator() for _ in range(3)]
    for domain, each in enumerate(found):
        ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(each))
    return [bytes(each) for each in found]


def test_objects_of_python_are_not_counted_and_are_allocated_as_before(meter):
    before = allocators()
    meter.start()
    assert allocators() == before
    objects = [str(number) for number in range(100_000)]
    assert meter.current_bytes() == pytest.approx(0, abs=SLACK_BYTES)
    array = np.empty(2 * MB, 'u1')
    assert meter.current_bytes() == pytest.approx(2 * MB, abs=SLACK_BYTES)
    meter.stop()
    assert allocators() == before
    del objects, array


def test_a_process_that_has_started_it_too_often_may_not_again(meter, monkeypatch):
    monkeypatch.setattr(module, 'MOST_STARTS', 3)
    monkeypatch.setattr(module, '_starts', itertools.count())
    for _ in range(3):
        assert meter.start()
        assert meter.start()  # it counts already
        meter.stop()
    assert not meter.start()
    assert not meter.running
    assert not tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        assert meter.start()  # where the program's own tracemalloc runs, nothing more is lost
        meter.stop()
    finally:
        tracemalloc.stop()


def test_one_that_stops_leaves_another_counting(meter):
    other = HostMeter()
    meter.start()
    other.start()
    meter.stop()
    assert tracemalloc.is_tracing()
    array = np.empty(MB, 'u1')
    assert other.current_bytes() == pytest.approx(MB, abs=SLACK_BYTES)
    other.stop()
    assert not tracemalloc.is_tracing()
    del array


@pytest.mark.timeout(20)
def test_it_stops_after_an_interrupt_at_any_line_of_its_start(meter):
    """It had a lock, which one on the way out left locked: stopping waited for ever."""
    def start():
        assert meter.start()

    for number in itertools.count(1):
        is_interrupted = interrupted_at(number, start, 'line', lambda code: code.co_filename == module.__file__)
        meter.stop()
        assert not meter.running and not tracemalloc.is_tracing()
        if not is_interrupted:
            break
    assert number > 5
