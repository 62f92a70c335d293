"""Times of computations without what the device was idle for because the program waited for memory."""
import pytest

from chainer_ooc.backends.cuda.waits import MOST_WAITS, Waits


class Clock:
    """A driver whose events are moments of a device that a test moves on."""

    def __init__(self):
        self.now, self.behind = 0.0, 0.0

    def compute(self):
        return 'stream'

    def record(self, stream, timed):
        assert (stream, timed) == ('stream', True)
        return self.now

    def passed(self, event):
        return event <= self.now - self.behind

    def synchronize(self, event):
        assert self.passed(event)

    def seconds_between(self, start, end):
        assert self.passed(start) and self.passed(end), 'CUDA says that an event is not ready'
        return end - start


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def waits(clock):
    return Waits(clock)


def wait(clock, waits, begin, end):
    clock.now = begin
    with waits.within():
        clock.now = end


def test_a_wait_within_a_computation_does_not_count(clock, waits):
    wait(clock, waits, 2.0, 5.0)
    clock.now = 10.0
    assert waits.without([(0.0, 1.0), (1.0, 7.0), (7.0, 9.0)]) == [1.0, 3.0, 2.0]


def test_what_is_between_computations_or_over_their_edges_counts_as_far_as_it_is_in_them(clock, waits):
    for begin, end in ((0.5, 1.5), (2.0, 2.25), (3.5, 6.0)):
        wait(clock, waits, begin, end)
    clock.now = 10.0
    assert waits.without([(0.0, 1.0), (1.0, 2.0), (3.0, 4.0), (4.0, 5.0), (5.0, 7.0)]) == [0.5, 0.5, 0.5, 0.0, 1.0]


def test_several_waits_in_one_computation(clock, waits):
    for begin in (1.0, 3.0, 5.0):
        wait(clock, waits, begin, begin + 1)
    clock.now = 10.0
    assert waits.without([(0.5, 7.0), (7.0, 8.0)]) == [3.5, 1.0]


def test_a_device_that_was_busy_meanwhile_leaves_nothing_out(clock, waits):
    clock.now = 2.0
    with waits.within():  # it passes both events at once
        pass
    clock.now = 10.0
    assert waits.without([(0.0, 4.0)]) == [4.0]


def test_a_wait_within_another_counts_once(clock, waits):
    clock.now = 1.0
    with waits.within():
        wait(clock, waits, 2.0, 3.0)
        clock.now = 4.0
    clock.now = 10.0
    assert waits.without([(0.0, 5.0)]) == [2.0]


def test_a_wait_that_fails_counts_and_others_after_it(clock, waits):
    def fail():
        with waits.within():
            clock.now = 2.0
            raise MemoryError

    clock.now = 1.0
    with pytest.raises(MemoryError):
        fail()
    wait(clock, waits, 3.0, 4.0)
    clock.now = 10.0
    assert waits.without([(0.0, 5.0)]) == [3.0]


def test_times_are_asked_for_an_iteration_later(clock, waits):
    """By then the next one has waits of its own, which the device has not come to."""
    wait(clock, waits, 1.0, 2.0)
    wait(clock, waits, 11.0, 12.0)
    clock.behind = 2.0
    clock.now = 12.5
    assert waits.without([(0.0, 5.0)]) == [4.0]
    clock.behind = 0.0
    wait(clock, waits, 21.0, 22.0)
    assert waits.without([(10.0, 13.0), (13.0, 14.0)]) == [2.0, 1.0]
    clock.now = 30.0
    assert waits.without([(20.0, 25.0)]) == [4.0]
    assert len(waits._waits) == 1  # those before are forgotten


def test_nobody_asks(clock, waits):
    for number in range(2 * MOST_WAITS):
        wait(clock, waits, number, number + 0.5)
    assert len(waits._waits) == MOST_WAITS
    assert waits.without([]) == []
