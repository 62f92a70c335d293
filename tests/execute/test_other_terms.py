"""A setting that decides how functions compute changes while a program trains: its iterations are measured anew."""
import chainer
import pytest

import chainer_ooc
from chainer_ooc.backends.host import onednn
from chainer_ooc.errors import PlanMismatchError
from chainer_ooc.plans.file import read_plans
from support.trainings.ooc_training import Training, ooc, train

BUDGET = 10**9


@pytest.fixture(autouse=True)
def version(monkeypatch):
    """OneDNN is installed, as far as plans know."""
    monkeypatch.setattr(onednn, 'version_under', lambda use_ideep: '' if use_ideep == 'never' else '3.9.0')


def under(training, use_ideep='never', count=2, **entries):
    """Phases of the next iterations under a setting."""
    with ooc('swap-all', budget=BUDGET, **entries), chainer.using_config('use_ideep', use_ideep):
        return [each.phase for each in training.iterate(count).stats[-count:]]


@pytest.mark.parametrize('other', [{'use_ideep': 'auto'}, {'workspace': '1MB'}])
def test_a_change_between_iterations_is_recorded_and_a_change_back_is_known(backend_class, other):
    training = Training('hidden')
    known = ['run', 'run'] if backend_class.name == 'cuda' and 'use_ideep' in other else ['profile', 'run']
    assert under(training) == ['profile', 'run']
    assert under(training, **other) == known
    assert under(training) == ['run', 'run']
    assert under(training, **other) == ['run', 'run']


def test_settings_that_choose_the_same_library_are_one(backend_class):
    training = Training('hidden')
    assert under(training, 'auto') == ['profile', 'run']
    assert under(training, 'always') == ['run', 'run']


def test_a_saved_plan_of_another_onednn_is_refused(tmp_path):
    file = tmp_path / 'plans.json'
    train('residual', 'swap-all', plan=file, budget=BUDGET)
    chainer_ooc.reset()
    assert read_plans(str(file))[0].terms.onednn == ''
    with chainer.using_config('use_ideep', 'auto'):
        with pytest.raises(PlanMismatchError, match=r"another oneDNN: made for none, here it is '3\.9\.0'"):
            train('residual', 'swap-all', plan=file, budget=BUDGET)
        chainer_ooc.reset()
        file.unlink()
        train('residual', 'swap-all', plan=file, budget=BUDGET)
        chainer_ooc.reset()
        assert read_plans(str(file))[0].terms.onednn == '3.9.0'
        assert train('residual', 'swap-all', plan=file, budget=BUDGET).stats[0].phase == 'run'


def test_a_plan_of_other_terms_in_the_file_is_replaced_when_a_setting_changes(tmp_path):
    file, training = tmp_path / 'plans.json', Training('residual')
    assert under(training, plan=file) == ['profile', 'run']
    assert under(training, 'auto', plan=file) == ['profile', 'run']
    assert [each.terms.onednn for each in read_plans(str(file))] == ['3.9.0']
