"""Equations 1 to 6 of OOC-Paleo, by themselves and beside the simulator."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.papers.littles_law import available_after, balance, concurrency, swap_in_per_second, utilisation
from support.planning.paleo_chains import chain, simulated


def passed(available, work, swap_in, steps, capacity=float('inf')):
    """(Num_avail before, Procutil) of each time step of one second; the unit holds a second's work at once."""
    rows = []
    for _ in range(steps):
        rows.append((available, utilisation(available, work, 1.0)))
        available = available_after(available, work, swap_in, 1.0, capacity)
    return rows


def steps_until(layers, available, work, swap_in, capacity):
    """How many time steps it takes to process so many buffers."""
    done = steps = 0
    while done < layers - 1e-9:  # the last layers may be done in thirds or fifths
        done += utilisation(available, work, 1.0)
        available = available_after(available, work, swap_in, 1.0, capacity)
        steps += 1
    return steps


def test_concurrency_is_latency_times_throughput():
    assert concurrency(0.5, 8.0) == 4.0


@pytest.mark.parametrize(('available', 'share'), [(0, 0.0), (1, 0.25), (3, 0.75), (4, 1.0), (9, 1.0)])
def test_utilisation_is_the_share_of_the_full_concurrency_that_is_available(available, share):
    assert utilisation(available, 8.0, 0.5) == share


@pytest.mark.parametrize('slowest', range(3))
def test_the_slowest_part_of_the_way_is_the_throughput_of_swap_ins(slowest):
    assert swap_in_per_second(*(3.0 if each == slowest else 5.0 + each for each in range(3))) == 3.0


def test_a_unit_that_outruns_swap_in_ends_at_the_throughput_of_swap_in():
    assert passed(4.0, 1.0, 0.5, 9) == [
        (4.0, 1), (3.5, 1), (3.0, 1), (2.5, 1), (2.0, 1), (1.5, 1), (1.0, 1), (0.5, 0.5), (0.5, 0.5)]


def test_swap_in_that_outruns_the_unit_fills_near_memory_and_no_more():
    # a step takes in what was free before it began: 6 - 5.5
    assert [row[0] for row in passed(4.0, 1.0, 1.5, 5, capacity=6.0)] == [4.0, 4.5, 5.0, 5.0, 5.0]
    assert [row[0] for row in passed(4.0, 1.0, 1.5, 5)] == [4.0, 4.5, 5.0, 5.5, 6.0]


@given(st.integers(0, 40), st.integers(1, 8), st.integers(0, 8), st.integers(1, 4))
def test_what_is_never_short_follows_the_plain_balance(available, work, swap_in, seconds):
    plain = balance(available, work, swap_in, seconds)
    bounded = available_after(available, work, swap_in, seconds)
    assert bounded == plain if available >= work * seconds else bounded > plain


@given(st.integers(2, 8), st.integers(0, 12), st.integers(1, 5))
def test_equal_layers_in_a_full_memory_take_the_time_that_the_simulator_says(capacity, more, ratio):
    """Both take what a step has freed from the next step on, and both are as slow as swap-in in the end."""
    layers = capacity + more
    problem = chain([1] * layers, [1] * layers, [ratio] * layers, budget=capacity * ratio)
    _, seconds, swapped = simulated('capacity', problem)
    assert len(swapped) == more
    assert seconds == steps_until(layers, capacity, 1.0, 1 / ratio, capacity)
