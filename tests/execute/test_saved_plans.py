"""chainer.config.ooc_plan: a plan outlives its process, saves the recorded iteration, and changes no bit.

A new process is played by `chainer_ooc.reset()`, which forgets all graphs and plans.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc import cli
from chainer_ooc.backends.host.meter import HostMeter
from chainer_ooc.errors import InfeasibleBudgetError, PlanFormatError, PlanMismatchError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.plans.saved import read_plans
from support.trainings.ooc_training import SWAPPING, Training, assert_same_bits, ooc, plain, train, train_at_the_floor
from support.trainings.verdict_mixes import MAPPED, MIXES

BUDGET = 10**9
HERE = Path(__file__).resolve().parent


@pytest.fixture
def file(tmp_path):
    return tmp_path / 'plans.json'


def save(file, network='residual', policy='swap-all', **entries):
    """Trains as a first process, which leaves its plans in the file."""
    outcome = train(network, policy, plan=file, **{'budget': BUDGET, **entries})
    chainer_ooc.reset()
    return outcome


def phases(outcome):
    return [each.phase for each in outcome.stats]


@pytest.mark.parametrize('policy', SWAPPING)
@pytest.mark.parametrize('network', ['residual', 'hidden', 'views'])
def test_a_loaded_plan_runs_from_the_first_iteration_on_with_the_same_bits(file, network, policy):
    assert phases(save(file, network, policy)) == ['profile', 'run', 'run', 'run']
    (saved,) = read_plans(str(file))
    outcome = train(network, policy, plan=file, budget=BUDGET)
    assert phases(outcome) == ['run'] * 4
    assert chainer_ooc.plan() == saved.plan
    assert outcome.stats[0].predicted_peak_bytes == saved.plan.peak_bytes
    assert outcome.stats[0].swapped_out_bytes > 0
    assert_same_bits(outcome, plain(network))


@pytest.mark.parametrize('budget', [900_000, 1_300_000])
def test_a_map_may_leave_in_backward_by_a_plan_that_is_read_again(file, budget):
    """Memory is short for the first time when gradients come: `tensor-cache` has maps leave no earlier."""
    def iterate():
        h = np.ones((512, 64), np.float32)
        for layer in layers:
            h = F.relu(layer(h))
        layers.cleargrads()
        F.sum(h * h).backward()
        return [each.grad.tobytes() for each in layers.params()]

    layers = chainer.ChainList(*(L.Linear(64, 64) for _ in range(6)))
    expected = iterate()
    for _ in range(2):
        with ooc('tensor-cache', min_bytes=10_000, budget=budget, plan=file):
            assert [iterate() for _ in range(3)] == [expected] * 3
            assert max(chainer_ooc.plan().leaves) >= len(chainer_ooc.trace().calls)
        chainer_ooc.reset()


@pytest.mark.parametrize('policy', MIXES)
def test_a_loaded_plan_recomputes_with_the_same_bits(file, verdict_mixes, policy):
    save(file, 'hidden', policy)
    outcome = train('hidden', policy, plan=file, budget=BUDGET)
    assert phases(outcome) == ['run'] * 4
    assert outcome.stats[0].recompute > 0
    assert_same_bits(outcome, plain('hidden'))


@pytest.mark.parametrize('policy', MAPPED)
def test_a_loaded_plan_maps_with_the_same_bits(file, verdict_mixes, policy):
    save(file, 'residual', policy)
    assert read_plans(str(file))[0].plan.mapped
    outcome = train('residual', policy, plan=file, budget=BUDGET)
    assert phases(outcome) == ['run'] * 4
    assert outcome.stats[0].swapped_out_bytes > 0 == outcome.stats[0].swapped_in_bytes
    assert_same_bits(outcome, plain('residual'))


def test_nothing_is_recorded_and_nothing_written_under_a_loaded_plan(file, monkeypatch):
    save(file)
    before = file.read_bytes(), os.stat(file).st_mtime_ns
    monkeypatch.setattr(HostMeter, 'start', lambda self: pytest.fail('an iteration was recorded'))
    train('residual', 'swap-all', plan=file, budget=BUDGET)
    assert (file.read_bytes(), os.stat(file).st_mtime_ns) == before


def test_a_loaded_plan_keeps_within_a_budget_at_its_floor(file):
    with chainer.using_config('ooc_plan', file):
        _, floor = train_at_the_floor('residual', 'swap-all')
    chainer_ooc.reset()
    outcome = train('residual', 'swap-all', plan=file, budget=floor)
    assert phases(outcome) == ['run'] * 4
    assert max(each.peak_bytes for each in outcome.stats) <= floor
    assert_same_bits(outcome, plain('residual'))


def test_without_a_budget_a_plan_serves_again(file):
    save(file, budget=None)
    assert phases(train('residual', 'swap-all', plan=file)) == ['run'] * 4


def test_a_larger_budget_takes_the_plan_as_it_is(file):
    save(file)
    train('residual', 'swap-all', plan=file, budget=2 * BUDGET)
    assert chainer_ooc.plan().budget_bytes == BUDGET


def test_another_graph_is_recorded_planned_and_added(file):
    save(file, 'residual')
    outcome = train('hidden', 'swap-all', plan=file, budget=BUDGET)
    assert 'profile' in phases(outcome)
    assert phases(outcome)[-1] == 'run'
    assert_same_bits(outcome, plain('hidden'))
    chainer_ooc.reset()
    assert len(read_plans(str(file))) == 2
    for network in ('residual', 'hidden'):
        assert phases(train(network, 'swap-all', plan=file, budget=BUDGET)) == ['run'] * 4
        chainer_ooc.reset()


def test_a_file_that_is_named_later_gets_the_plan_in_force(file):
    training = Training('residual')
    with ooc('swap-all', budget=BUDGET):
        training.iterate(3)
    with ooc('swap-all', budget=BUDGET, plan=file):
        training.iterate()
    assert [each.plan for each in read_plans(str(file))] == [chainer_ooc.plan()]


def test_a_plan_that_is_made_anew_takes_the_place_of_the_old_one(file):
    save(file)
    training = Training('residual')
    with ooc('swap-all', budget=BUDGET, plan=file):
        training.iterate()
        sessions.current()._graphs.latest().learn(reused=[0])
        training.iterate()
    (saved,) = read_plans(str(file))
    assert saved.trace.maps[0].reused
    assert saved.plan == chainer_ooc.plan()


def test_what_was_learnt_of_a_graph_is_loaded_with_its_plan(file):
    training = Training('residual')
    with ooc('swap-all', budget=BUDGET, plan=file):
        training.iterate()
        chainer_ooc.trace()
        sessions.current()._graphs.latest().learn(reused=[0])
        sessions.current()._graphs.latest().learn(held=[1])
        training.iterate()
        chainer_ooc.reset()
        before = file.read_bytes()
        training.iterate()
        plan = chainer_ooc.plan()
        sessions.current()._graphs.latest().learn(reused=[0])
        sessions.current()._graphs.latest().learn(held=[1])
        training.iterate()
    assert chainer_ooc.plan() is plan
    assert file.read_bytes() == before


def test_another_file_in_the_middle_gets_the_loaded_plan_and_new_ones(file, tmp_path):
    save(file)
    training = Training('residual')
    with ooc('swap-all', budget=BUDGET, plan=file):
        training.iterate()
    with ooc('swap-all', budget=BUDGET, plan=tmp_path / 'other.json'):
        training.iterate()
    assert read_plans(str(tmp_path / 'other.json')) == read_plans(str(file))
    with ooc('swap-all', budget=BUDGET // 2, plan=tmp_path / 'other.json'):
        training.iterate()
    assert chainer_ooc.plan().budget_bytes == BUDGET // 2
    assert phases(training.outcome) == ['run'] * 3


def test_parameters_count_before_the_first_of_them_is_seen(file, monkeypatch):
    save(file)
    standing, make_room = [], Residency.make_room

    def noting(residency, need_bytes, thorough=False):
        standing.append(residency.beside_bytes)
        return make_room(residency, need_bytes, thorough)
    monkeypatch.setattr(Residency, 'make_room', noting)
    train('residual', 'swap-all', iterations=1, plan=file, budget=BUDGET)
    assert standing[0] == read_plans(str(file))[0].trace.standing_backward_bytes > 0


@pytest.mark.parametrize(('entries', 'what'), [
    ({'budget': BUDGET - 1}, 'budget'), ({'min_bytes': 64}, 'ooc_min_bytes')])
def test_a_plan_under_other_settings_is_refused_before_anything_runs(file, entries, what):
    save(file)
    with pytest.raises(PlanMismatchError) as refused:
        train('residual', 'swap-all', plan=file, **{'budget': BUDGET, **entries})
    assert refused.value.what == what
    assert chainer_ooc.stats() is None


def test_a_plan_of_another_policy_is_refused(file):
    save(file)
    with pytest.raises(PlanMismatchError, match="another policy: made for 'swap-all', here it is 'keep'"):
        train('residual', 'keep', plan=file, budget=BUDGET)


def test_a_plan_of_another_machine_is_refused(file, backend_class, monkeypatch):
    save(file)
    monkeypatch.setattr(backend_class, 'machine', lambda self: 'a larger one')
    with pytest.raises(PlanMismatchError, match=r"another machine: made for .+, here it is 'a larger one'; delete"):
        train('residual', 'swap-all', plan=file, budget=BUDGET)


def test_after_a_refusal_deleting_the_file_has_the_graph_planned_anew(file):
    save(file)
    training = Training('residual')
    with ooc('keep', budget=BUDGET, plan=file):
        with pytest.raises(PlanMismatchError):
            training.iterate()
        with pytest.raises(PlanMismatchError):  # it is still there
            training.iterate()
        file.unlink()
        training.iterate(2)
        assert [each.phase for each in training.outcome.stats] == ['profile', 'run']
        assert read_plans(str(file))[0].plan.policy == 'keep'
        file.unlink()  # nothing was refused since: what is known stays
        training.iterate()
        assert training.outcome.stats[-1].phase == 'run'


def test_after_a_refusal_training_goes_on_without_the_file(file):
    save(file)
    training = Training('residual')
    with ooc('swap-all', budget=BUDGET - 1, plan=file), pytest.raises(PlanMismatchError):
        training.iterate()
    chainer_ooc.reset()
    outcome = train('residual', 'swap-all', budget=BUDGET - 1)
    assert_same_bits(outcome, plain('residual'))


def test_a_damaged_file_is_refused_with_its_path_and_line(file):
    save(file)
    file.write_text(file.read_text()[:500])
    with pytest.raises(PlanFormatError) as refused:
        train('residual', 'swap-all', plan=file, budget=BUDGET)
    assert str(file) in str(refused.value)
    assert 'line ' in str(refused.value) and 'column ' in str(refused.value)


@pytest.mark.parametrize('table', ['calls', 'steps'])
def test_a_refusal_for_inflated_bytes_in_a_file_names_the_file(file, table):
    save(file)
    content = json.loads(file.read_text())
    heading, *rows = content['plans'][0]['trace'][table]
    for row in rows:
        row[heading.index('other_bytes')] += 10**12
    file.write_text(json.dumps(content))
    with pytest.raises(InfeasibleBudgetError) as caught:
        save(file)
    assert f'read from the file {file} (chainer.config.ooc_plan): delete that' in caught.value.doubt
    assert caught.value.doubt in str(caught.value)
    file.unlink()
    chainer_ooc.reset()
    save(file)


def test_a_plan_for_other_maps_than_its_trace_has_is_refused(file):
    save(file)
    read = json.loads(file.read_text())
    read['plans'][0]['plan']['maps'].pop()
    file.write_text(json.dumps(read))
    with pytest.raises(PlanFormatError, match='maps: verdicts for 24 feature maps, and the trace has 25'):
        train('residual', 'swap-all', plan=file, budget=BUDGET)


def test_a_file_that_cannot_be_written_costs_a_warning_and_no_training(file, monkeypatch):
    def full(*_):
        raise OSError(28, 'No space left on device')
    monkeypatch.setattr(os, 'fsync', full)
    with pytest.warns(RuntimeWarning, match=r'could not be written to .+plans.json.+No space left') as warned:
        outcomes = [train(network, 'swap-all', plan=file, budget=BUDGET) for network in ('residual', 'hidden')]
    assert len(warned) == 1
    assert phases(outcomes[0]) == ['profile', 'run', 'run', 'run']
    for network, outcome in zip(('residual', 'hidden'), outcomes, strict=True):
        assert_same_bits(outcome, plain(network))
    assert os.listdir(file.parent) == []


def test_a_trace_tells_what_stands_and_where_it_was_recorded(backend_class):
    training = Training('residual')
    with ooc('swap-all', budget=BUDGET, workspace='1MB'):
        training.iterate(2)
        trace = chainer_ooc.trace()
    parameters = [each for each in training.model.params() if each.array is not None]
    gradient_bytes = sum(each.grad.nbytes for each in parameters)
    steady_bytes = sum(each.array.nbytes + each.update_rule.state['v'].nbytes for each in parameters)
    assert trace.standing_backward_bytes == steady_bytes
    assert trace.standing_forward_bytes == steady_bytes + gradient_bytes
    assert trace.workspace_bytes == 10**6
    assert trace.versions['chainer_ooc'] == chainer_ooc.__version__


def test_a_plan_of_the_command_line_runs_too(file, tmp_path, capsys):
    train('residual', 'swap-all', iterations=2, budget=BUDGET)
    (tmp_path / 'trace.json').write_text(chainer_ooc.trace().to_json())
    chainer_ooc.reset()
    arguments = ['--policy', 'swap-all', '--budget', str(BUDGET), '--min-bytes', '0', '--save', str(file)]
    assert cli.main(['plan', str(tmp_path / 'trace.json'), *arguments]) == 0
    capsys.readouterr()
    outcome = train('residual', 'swap-all', plan=file, budget=BUDGET)
    assert phases(outcome) == ['run'] * 4
    assert_same_bits(outcome, plain('residual'))


PROCESS = """
import chainer_ooc
import chainer
import sys
sys.path.insert(0, sys.argv[1])
from support.trainings.ooc_training import train
outcome = train('residual', 'swap-all', iterations=2, plan=sys.argv[2], budget=10**9)
print([each.phase for each in outcome.stats])
"""


@pytest.mark.host
def test_the_next_process_runs_under_the_plan_at_once(file):
    said = [subprocess.run([sys.executable, '-c', PROCESS, str(HERE.parent), str(file)], cwd=HERE.parents[1], text=True,
                           capture_output=True) for _ in range(2)]
    assert [each.stdout for each in said] == ["['profile', 'run']\n", "['run', 'run']\n"], said
