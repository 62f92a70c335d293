"""When a plan is made anew because iterations take longer or shorter than it expected."""
import dataclasses
import time

import pytest

import chainer_ooc
from chainer_ooc.cost.costs import Costs, measured
from chainer_ooc.execute import sessions
from chainer_ooc.execute.functions.recipe import Recipe
from chainer_ooc.execute.graphs import graphs
from chainer_ooc.execute.graphs.times import PART_FACTOR, Times, Timing
from chainer_ooc.execute.recording.recorder import Recorder
from support.trainings.ooc_training import Training, ooc, train

COSTS = Costs((1.0, 2.0), 10.0, 20.0, 0.5)
TIMING = Timing(seconds=(1.0, 2.0), total_seconds=3.0, predicted_seconds=3.0, waited_seconds=0.0,
                recomputed_seconds=0.0, written_bytes=0, write_seconds=0.0, read_bytes=0, read_seconds=0.0)


def timing(**changes):
    return dataclasses.replace(TIMING, **changes)


def test_a_plan_that_was_right_stays():
    times = Times(COSTS)
    assert not any(times.note(TIMING) for _ in range(20))
    assert times.costs == COSTS


@pytest.mark.parametrize('total_seconds', [3.0 * PART_FACTOR * 1.01, 3.0 / PART_FACTOR * 0.99])
def test_two_iterations_that_part_from_their_plan_are_enough(total_seconds):
    times = Times(COSTS)
    assert [times.note(timing(total_seconds=total_seconds)) for _ in range(2)] == [False, True]


def test_one_odd_iteration_among_others_is_not_enough():
    times = Times(COSTS)
    times.note(TIMING)
    assert not times.note(timing(total_seconds=3.2))


def test_iterations_under_several_plans_are_each_held_against_their_own():
    times = Times(COSTS)
    fast, slow = timing(total_seconds=3.0, predicted_seconds=3.0), timing(total_seconds=9.0, predicted_seconds=9.0)
    assert not any(times.note(each) for each in (fast, slow) * 8)
    assert times.costs == COSTS


def test_the_next_time_is_after_twice_as_many():
    times = Times(COSTS)
    slow = timing(total_seconds=9.0)
    assert [number for number in range(1, 31) if times.note(slow)] == [2, 6, 14, 30]


def test_the_new_costs_are_medians_by_position():
    times = Times(COSTS)
    times.note(timing(seconds=(1.0, 5.0), total_seconds=6.0))
    times.note(timing(seconds=(3.0, 5.0), total_seconds=8.0))
    assert times.costs.seconds == (2.0, 5.0)


def test_what_lies_between_computations_is_spread_evenly_and_stalls_are_not():
    # computations 1 + 2, waited 3, recomputed 1, total 9: 2 seconds lie between
    times = Times(COSTS)
    for _ in range(2):
        times.note(timing(total_seconds=9.0, waited_seconds=3.0, recomputed_seconds=1.0))
    assert times.costs.seconds == (2.0, 3.0)


@pytest.mark.parametrize(('waited', 'total', 'expected'), [
    (0.0, 3.0, (0.75, 1.5)),  # 1.5 of 3 s of computation were beside copies, which doubled them
    (0.5, 3.5, (5 / 6, 5 / 3)),  # 1 s was
    (1.5, 4.5, (1.0, 2.0)),  # none: all copies were waited for
])
def test_what_copies_cost_computations_is_taken_off(waited, total, expected):
    times = Times(dataclasses.replace(COSTS, slowdown=1.0))
    for _ in range(2):
        times.note(timing(total_seconds=total, waited_seconds=waited, predicted_seconds=99.0, written_bytes=30,
                          write_seconds=1.0, read_bytes=30, read_seconds=0.5))
    assert times.costs.seconds == pytest.approx(expected)
    assert times.costs.slowdown == 1.0


def test_computations_lose_no_more_to_copies_than_copies_can_take():
    times = Times(dataclasses.replace(COSTS, slowdown=1.0))
    for _ in range(2):
        times.note(timing(predicted_seconds=99.0, written_bytes=30, write_seconds=1000.0))
    assert times.costs.seconds == (0.5, 1.0)


def test_copies_give_the_bandwidths_and_without_copies_those_before_stay():
    times = Times(COSTS)
    for _ in range(2):
        times.note(timing(total_seconds=9.0, written_bytes=30, write_seconds=10.0))
    assert (times.costs.write_bytes_per_second, times.costs.read_bytes_per_second) == (3.0, 20.0)
    assert times.costs.latency_seconds == 0.5


@pytest.mark.usefixtures('nothing_quiet')
def test_training_plans_again_when_its_times_were_wrong(monkeypatch):
    """Recorded times are a hundred times as long as they were; when two iterations that count are over a plan knows.

    What an iteration took is asked when the next one has ended: a device may be behind.
    """
    monkeypatch.setattr(graphs, 'measured', lambda trace: dataclasses.replace(
        measured(trace), seconds=tuple(100 * each for each in measured(trace).seconds)))
    with ooc('pooch'):
        training = Training('residual')
        predicted = []
        for _ in range(7):
            training.iterate()
            predicted.append(chainer_ooc.stats().predicted_seconds)
        training.finish()
    assert predicted[0] is None
    assert predicted[1] == predicted[2] == predicted[3] == predicted[4] > 1.5 * predicted[5]


def test_no_iteration_waits_for_the_one_before(monkeypatch):
    """A device may still be at its end: what it took is asked one iteration later."""
    begun, asked, seconds = [], [], Recorder.seconds
    monkeypatch.setattr(Recorder, 'seconds', lambda recorder, backend: (
        asked.append(len(begun) - begun.index(recorder)), seconds(recorder, backend))[1])
    with ooc('swap-all'):
        training = Training('residual')
        for _ in range(6):
            training.iterate()
            begun.append(sessions.current()._iteration.recorder)
    assert asked == [1, 2, 2], 'the recording at once, and what followed its plan later, but for the first'


def test_recomputed_calls_do_not_count_as_stalls(verdict_mixes, monkeypatch):
    run = Recipe.run

    def slow(recipe, inputs):
        time.sleep(0.02)
        return run(recipe, inputs)

    monkeypatch.setattr(Recipe, 'run', slow)
    stats = train('residual', 'recompute-all').stats[-1]
    assert stats.recomputed_calls >= 3
    assert stats.stall_seconds < 0.02 * stats.recomputed_calls < stats.seconds
