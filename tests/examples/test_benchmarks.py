"""What the benchmarks compute with; their figures are not tested, as times are not."""

import pytest

from pairs import PairedSeconds, in_turns
from probes import smallest


def test_ratios_are_taken_within_pairs():
    times = PairedSeconds((1.0, 2.0, 4.0), (1.1, 2.0, 4.8))
    assert times.ratios == pytest.approx([1.0, 1.1, 1.2])
    assert times.ratio == pytest.approx(1.1)
    assert times.middle_half == pytest.approx((1.05, 1.15))


def test_one_pair_has_no_spread():
    times = PairedSeconds((2.0,), (3.0,))
    assert times.middle_half == times.interval == (1.5, 1.5)


def test_interval_of_the_median_leaves_out_the_same_number_at_both_ends():
    times = PairedSeconds((1.0,) * 100, tuple(float(number) for number in range(100)))
    assert times.interval == (40.0, 59.0)


def test_who_goes_first_alternates():
    order = []

    def side(name):
        return lambda: order.append(name) or 1.0

    in_turns(side('a'), side('b'), 3)
    assert order == ['a', 'b', 'b', 'a', 'a', 'b']


@pytest.mark.parametrize('limit', [1, 32, 33, 500, 1000, 1001, 2000])
@pytest.mark.parametrize('high', [10, 640, 1000])
def test_search_ends_at_the_first_multiple_that_works(limit, high):
    tried = []

    def works(value):
        tried.append(value)
        return value >= limit

    assert smallest(works, 0, high, 32) == -(-limit // 32) * 32
    assert len(tried) == len(set(tried))


def test_search_does_not_try_what_is_known_not_to_work():
    tried = []
    assert smallest(lambda value: tried.append(value) or value >= 70, 64, 128, 8) == 72
    assert min(tried) > 64


def test_search_gives_up_when_nothing_works():
    with pytest.raises(RuntimeError, match='nothing works, up to 6400'):
        smallest(lambda value: False, 0, 100, 10)
