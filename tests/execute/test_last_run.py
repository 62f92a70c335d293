"""`last_run()`: the last iteration position by position, as it was measured."""
import chainer_ooc  # before chainer

# isort: split
import itertools
import types

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_ooc.execute.finished import _Course
from chainer_ooc.execute.tally import Stretch, Tally
from chainer_ooc.plans.run import Run
from chainer_ooc.report.contents import report_of
from chainer_ooc.simulate.timeline import Cause, Stream
from support.trainings.ooc_training import Training, ooc


@pytest.fixture(autouse=True)
def closed():
    yield
    chainer_ooc.reset()


def train(policy='swap-all', budget=None, iterations=3):
    """The last run of a training, and its stats."""
    with ooc(policy, budget=budget):
        training = Training('residual')
        training.iterate(iterations)
        return chainer_ooc.last_run(), chainer_ooc.stats()


def of(run, stream):
    return [each for each in run.timeline.tasks if each.stream is stream]


def test_each_position_has_its_computation_within_the_iteration():
    run, stats = train()
    computations = of(run, Stream.COMPUTE)
    assert [each.subject for each in computations] == list(range(run.trace.positions))
    assert all(one.start_seconds <= one.end_seconds <= other.end_seconds <= stats.seconds
               for one, other in itertools.pairwise(computations))
    assert run.timeline.seconds == stats.seconds


def test_memory_at_each_position_is_within_the_peak():
    run, stats = train()
    assert len(run.timeline.near_bytes) == run.trace.positions
    assert 0 < max(run.timeline.near_bytes) <= stats.peak_bytes == run.timeline.peak_bytes


@pytest.mark.host
@pytest.mark.usefixtures('prompt_swap_outs')
def test_copies_are_those_that_were_counted():
    run, stats = train()
    nbytes = {stream: sum(run.trace.maps[each.subject].nbytes for each in of(run, stream))
              for stream in (Stream.COPY_OUT, Stream.COPY_IN)}
    assert nbytes[Stream.COPY_IN] == stats.swapped_in_bytes > 0
    assert 0 < nbytes[Stream.COPY_OUT] <= stats.swapped_out_bytes
    began = {each.subject: each.start_seconds for each in of(run, Stream.COPY_OUT)}
    assert all(each.start_seconds >= began[each.subject] for each in of(run, Stream.COPY_IN))


def test_stalls_have_causes_and_add_up():
    run, stats = train('vdnn-all')
    stalls = run.timeline.stalls
    assert {each.cause for each in stalls} <= {*Cause}
    assert sum(each.seconds for each in stalls) == pytest.approx(stats.stall_seconds, abs=1e-6)


class Clock:
    """A device whose moments are the seconds that a test sets."""

    now = 0.0

    def timestamp(self):
        return self.now

    def seconds_between(self, start, end):
        return end - start

    def tier_bytes(self):
        return {}


def test_a_wait_within_another_counts_once_and_for_its_own_cause():
    """A map is fetched at 1 s; room for it is made from 2 to 5 s, 3 to 4 s of it by waiting for a swap-out."""
    clock, iteration = Clock(), object()
    tally = Tally(clock, Stretch(clock), iteration)

    def storage(number, token=iteration):
        return types.SimpleNamespace(map=number, token=token)
    clock.now = 1.0
    with tally.stalled(Cause.SWAP_IN, storage(7)):
        clock.now = 2.0
        with tally.stalled(Cause.MEMORY):
            clock.now = 3.0
            with tally.stalled(Cause.SWAP_OUT, storage(8)):
                clock.now = 4.0
            clock.now = 5.0
        clock.now = 5.5
    with tally.stalled(Cause.SWAP_OUT, storage(9, 'an earlier one')):
        clock.now = 5.75
    course = _Course(tally, tally.whole, [(0.0, 0.5), (6.0, 7.0)])
    assert sorted((each.position, each.map, each.seconds, each.cause.value) for each in course.stalls()) == [
        (1, -1, 0.25, 'swap-out'), (1, -1, 2.0, 'memory'), (1, 7, 1.5, 'swap-in'), (1, 8, 1.0, 'memory')]


def test_a_run_that_waited_for_maps_of_another_iteration_can_be_read_again():
    """Backward of backward reads those of the graph before, which has ids of its own."""
    chain = chainer.Sequential(*(chainer.Sequential(L.Linear(32, 32), F.tanh) for _ in range(3)))
    with ooc('swap-all', min_bytes=1000, budget=150_000):
        for number in range(4):
            h = chain(np.full((64, 32), number, np.float32))
            loss = F.sum(h * h)
            gradient, = chainer.grad([loss], [chain[0][0].W], enable_double_backprop=True)
            chain.cleargrads()
            (loss + F.sum(gradient * gradient)).backward()
        run = chainer_ooc.last_run()
    assert run is not None and Run.from_json(run.to_json()) == run
    assert repr(run).count('\n') == 0 and len(repr(run)) < 200


def test_what_runs_again_is_in_the_computation_that_needs_it():
    run, stats = train('sublinear', budget=360_000)
    again = [each for each in of(run, Stream.COMPUTE) if each.recomputed_seconds]
    assert stats.recomputed_calls > 0
    assert again and all(each.subject >= len(run.trace.calls) for each in again)


def test_its_plan_is_the_one_that_was_followed_and_its_text_is_whole():
    run, stats = train()
    assert (run.plan.policy, run.plan.seconds, run.min_bytes) == ('swap-all', stats.predicted_seconds, 0)
    assert Run.from_json(run.to_json()) == run


def test_a_report_of_it_says_what_stats_do_where_another_model_trains_too():
    """What the other has, its optimizer's state too, stands beside the maps that the plan is about."""
    models = [chainer.Sequential(*(chainer.Sequential(L.Linear(32, 32), F.tanh) for _ in range(5))) for _ in range(2)]
    optimizers = [chainer.optimizers.Adam().setup(each) for each in models]
    with ooc('swap-all', min_bytes=1000, budget=300_000):
        for number in (0, 1, 0, 1, 0, 1, 0):
            models[number].cleargrads()
            F.sum(models[number](np.full((64, 32), number, np.float32))).backward()
            optimizers[number].update()
        run, stats = chainer_ooc.last_run(), chainer_ooc.stats()
    shown = report_of('', run).course.plan
    assert (shown.budget_bytes, shown.peak_bytes) == (stats.budget_bytes, stats.predicted_peak_bytes)


def test_an_iteration_in_which_nothing_moves_has_its_time_alone():
    run, stats = train('keep', iterations=4)
    assert (run.timeline.tasks, run.timeline.near_bytes) == ((), ())
    assert run.timeline.seconds == stats.seconds


def test_there_is_none_before_a_plan_is_followed_nor_afterwards():
    assert chainer_ooc.last_run() is None
    assert train(iterations=1)[0] is None
    with chainer.using_config('ooc', None):
        assert chainer_ooc.last_run() is None


def test_it_stays_when_the_trace_is_asked_for():
    with ooc('swap-all'):
        training = Training('residual')
        training.iterate(2)
        chainer_ooc.trace()
        assert chainer_ooc.last_run() is not None
