"""The figures of an iteration agree with each other, with the plan and with the trace."""
import dataclasses

import chainer_ooc  # before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_ooc.classify.bound import Bound
from chainer_ooc.errors import TraceFormatError
from chainer_ooc.execute.graphs.times import Times
from chainer_ooc.plans import gap
from chainer_ooc.problem import Verdict
from chainer_ooc.trace import Trace
from chainer_ooc.trace.model import VERSION
from support.trainings.ooc_networks import NETWORKS
from support.trainings.ooc_training import POLICIES, SWAPPING, Training, ooc, train


def test_there_are_no_figures_before_the_first_iteration():
    assert (chainer_ooc.stats(), chainer_ooc.plan(), chainer_ooc.trace()) == (None, None, None)


def test_plain_iterations_leave_no_figures():
    train('old', None)
    assert chainer_ooc.stats() is None


def test_there_are_no_figures_once_it_is_off():
    def iterate():
        layer.cleargrads()
        F.sum(layer(np.ones((2, 3), np.float32))).backward()

    layer = L.Linear(3, 2)
    with chainer.using_config('ooc', 'keep'):
        iterate()
        iterate()
    assert chainer_ooc.stats().policy == 'keep'  # the block is over, and its iterations are what was asked for
    try:
        chainer.config.ooc = 'keep'
        assert chainer_ooc.stats() is not None
        chainer.config.ooc = None
        assert chainer_ooc.stats() is None
    finally:
        del chainer.config.ooc


@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('network', NETWORKS)
def test_figures_of_an_iteration_are_consistent(network, policy):
    outcome = train(network, policy, iterations=5)
    assert [each.phase for each in outcome.stats] == ['profile'] + ['run'] * 4
    for each in outcome.stats:
        assert each.policy == policy
        assert each.budget_bytes > each.peak_bytes > 0
        assert min(each.swapped_in_bytes, each.swapped_out_bytes) >= 0
        assert each.seconds > 0 and each.stall_seconds >= 0 and each.faults >= 0 and each.recomputed_calls == 0
        assert each.stall_seconds <= each.seconds
        if policy == 'keep':
            assert (each.swapped_out_bytes, each.swapped_in_bytes, each.faults) == (0, 0, 0)
    first, *rest = outcome.stats
    assert (first.predicted_seconds, first.predicted_peak_bytes) == (None, None)
    assert (first.keep, first.swap, first.recompute) == (0, 0, 0)
    for each in rest:
        assert each.swapped_in_bytes <= each.swapped_out_bytes  # a copy may be read twice while recording only
        assert each.predicted_seconds > 0 and each.predicted_peak_bytes > 0
        assert each.keep + each.swap > 0 and each.recompute == 0
        assert (each.swap == 0) == (policy == 'keep')


@pytest.mark.parametrize('policy', POLICIES)
def test_stats_are_frozen(policy):
    last = train('old', policy).stats[-1]
    with pytest.raises(dataclasses.FrozenInstanceError):
        last.faults = 0


@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('network', ['residual', 'hidden', 'views'])
def test_plan_trace_and_stats_count_the_same_maps(network, policy):
    training = Training(network)
    with ooc(policy, min_bytes=2000):
        training.iterate(3)
        plan, trace, last = chainer_ooc.plan(), chainer_ooc.trace(), chainer_ooc.stats()
    assert (plan.policy, plan.budget_bytes) == (policy, last.budget_bytes)
    assert len(plan.verdicts) == len(trace.maps)
    assert (plan.count(Verdict.KEEP), plan.count(Verdict.SWAP)) == (last.keep, last.swap)
    assert (plan.peak_bytes, plan.seconds) == (last.predicted_peak_bytes, last.predicted_seconds)
    swapped = [each for each, verdict in zip(trace.maps, plan.verdicts, strict=True) if verdict is Verdict.SWAP]
    assert all(each.nbytes >= 2000 for each in swapped)
    assert sorted(each.map for each in plan.swap_ins) == [each.id for each in swapped if each.backward_uses]
    starts = [each.start for each in plan.swap_ins]
    assert starts == sorted(starts)
    assert all(trace.backward_start <= each.start <= each.use < trace.positions for each in plan.swap_ins)
    assert last.swapped_out_bytes <= sum(each.nbytes for each in swapped)


def test_the_plan_is_that_of_the_latest_iteration(monkeypatch):
    monkeypatch.setattr(Times, 'note', lambda self, timing: False)  # no plan is made anew
    training = Training('residual')
    policies = ['swap-all', 'keep', 'swap-all', 'swap-all-naive', 'keep']
    found = []
    for policy in policies:
        with ooc(policy, budget=10**7):
            training.iterate(2)
            found.append(chainer_ooc.plan().policy)
    assert found == policies


def test_a_plan_is_there_until_the_next_one_is_made(monkeypatch):
    monkeypatch.setattr(Times, 'note', lambda self, timing: True)  # each iteration has the next one planned anew
    training = Training('residual')
    with ooc('swap-all'):
        for number in range(4):
            training.iterate()
            chainer_ooc.trace()  # ends the iteration
            assert (chainer_ooc.plan() is None) == (number == 0)


@pytest.mark.parametrize('network', NETWORKS)
def test_trace_loads_back_equal(network):
    training = Training(network)
    with ooc('swap-all'):
        training.iterate(2)
        trace = chainer_ooc.trace()
    again = Trace.from_json(trace.to_json())
    assert again == trace
    assert again.to_json() == trace.to_json()
    assert again.fingerprint == trace.fingerprint


@pytest.mark.parametrize('network', ['residual', 'hidden', 'views'])
def test_traces_of_all_policies_describe_one_graph(network):
    traces = {}
    for policy in POLICIES:
        chainer_ooc.reset()
        training = Training(network)
        with ooc(policy):
            training.iterate(2)
            traces[policy] = chainer_ooc.trace()
    assert len({each.fingerprint for each in traces.values()}) == 1
    shape = {tuple((each.nbytes, each.producer, each.hidden, each.retained, each.last_forward_use, each.backward_uses)
                   for each in trace.maps) for trace in traces.values()}
    assert len(shape) == 1


@pytest.mark.parametrize('text', ['', '[]', '{}', 'null', '{"format": "chainer_ooc trace"}'])
def test_other_texts_are_no_trace(text):
    with pytest.raises(TraceFormatError):
        Trace.from_json(text)


def test_damaged_trace_is_refused():
    training = Training('old')
    with ooc('keep'):
        training.iterate()
        text = chainer_ooc.trace().to_json()
    for damaged in (
            text.replace('"calls"', '"colls"'), text[:len(text) // 2],
            text.replace(f'"version": {VERSION}', '"version": 99')):
        with pytest.raises(TraceFormatError):
            Trace.from_json(damaged)


def test_reset_forgets():
    training = Training('old')
    with ooc('swap-all'):
        training.iterate(2)
        assert chainer_ooc.plan() is not None
        chainer_ooc.reset()
        assert (chainer_ooc.stats(), chainer_ooc.plan(), chainer_ooc.trace()) == (None, None, None)
        training.iterate()
        assert chainer_ooc.stats().phase == 'profile'


def test_policies_have_a_line_each():
    for name, line in chainer_ooc.policies().items():
        assert name == name.lower()
        assert line and '\n' not in line
    assert set(chainer_ooc.policies()) >= set(POLICIES)


@pytest.mark.parametrize('policy', SWAPPING)
@pytest.mark.parametrize('network', ['residual', 'hidden', 'views', 'inception'])
def test_no_faults_once_the_plan_runs(network, policy):
    outcome = train(network, policy, iterations=5)
    assert [each.faults for each in outcome.stats[2:]] == [0, 0, 0]


def test_swapped_maps_move_once_each_way():
    training = Training('residual')
    with ooc('swap-all-naive', min_bytes=2000):
        training.iterate(4)
        trace, plan = chainer_ooc.trace(), chainer_ooc.plan()
    verdicts = zip(trace.maps, plan.verdicts, strict=True)
    nbytes = sum(each.nbytes for each, verdict in verdicts if verdict is Verdict.SWAP)
    assert nbytes * 0.5 < training.outcome.stats[-1].swapped_out_bytes <= nbytes


def test_the_gap_costs_nothing_before_it_is_asked_for(monkeypatch):
    bounds = []
    monkeypatch.setattr(gap, 'known_bound', lambda problem: bounds.append(problem) or Bound(0.5, 0.5, 0))
    training = Training('residual')
    with ooc('swap-all', log='INFO'):
        training.iterate(4)
        plan, trace, last = chainer_ooc.plan(), chainer_ooc.trace(), chainer_ooc.stats()
    assert bounds == []
    assert last.gap == plan.gap == plan.seconds / 0.5 - 1
    (problem,) = bounds
    assert (problem.trace, problem.budget_bytes) == (trace, last.budget_bytes)
    assert training.outcome.stats[0].gap is None


def test_the_gap_of_a_plan_is_that_of_its_problem():
    training = Training('residual')
    with ooc('swap-all', min_bytes=2000):
        training.iterate(3)
        assert chainer_ooc.stats().gap == chainer_ooc.plan().gap >= 0


def test_a_plan_that_moves_nothing_has_its_gap_too():
    training = Training('residual')
    with ooc('keep'):
        training.iterate(3)
        last = chainer_ooc.stats()
        assert last.phase == 'run' and last.gap is not None
        assert last.gap == chainer_ooc.plan().gap


def test_the_plan_is_that_of_the_graph_that_ran_last():
    """It was another graph's, until something had ended the iteration."""
    layers = L.Linear(16, 16), L.Linear(16, 16)

    def step(depth):
        h = np.ones((64, 16), 'f')
        for layer in layers[:depth]:
            h = F.relu(layer(h))
        F.sum(h).backward()
    with ooc('swap-all'):
        for _ in range(3):
            step(1)
            step(2)
        found = chainer_ooc.plan()
        assert found is not None
        chainer_ooc.trace()  # ends the iteration
        assert chainer_ooc.plan() is found
