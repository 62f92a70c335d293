"""A setting that decides how functions compute changes while a program trains: its iterations are measured anew.

A new process is played by `chainer_ooc.reset()`, which forgets all graphs and plans.
"""
import chainer
import pytest

import chainer_ooc
from chainer_ooc.backends.host import onednn
from chainer_ooc.errors import PlanMismatchError
from chainer_ooc.plans.saved import read_plans
from support.trainings.ooc_training import Training, ooc

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


OTHERS = pytest.mark.parametrize('other', [{'use_ideep': 'auto'}, {'workspace': '1MB'}])


@OTHERS
def test_a_plan_of_other_terms_is_left_in_its_file_and_another_is_recorded(tmp_path, other):
    file = tmp_path / 'plans.json'
    for entries, phases in (({}, ['profile', 'run']), (other, ['profile', 'run']), ({}, ['run', 'run']),
                            (other, ['run', 'run'])):
        assert under(Training('residual'), plan=file, **entries) == phases
        chainer_ooc.reset()
    found = [(each.terms.onednn, each.terms.workspace_bytes) for each in read_plans(str(file))]
    assert found == [('', None), ('3.9.0', None) if 'use_ideep' in other else ('', 10**6)]


@OTHERS
def test_a_program_that_changes_a_setting_finds_all_of_its_plans_in_its_file(tmp_path, other):
    file = tmp_path / 'plans.json'
    for phases in (['profile', 'profile', 'run', 'run'], ['run'] * 4):
        training = Training('residual')
        found = [under(training, count=1, plan=file, **entries) for entries in ({}, other) * 2]
        assert found == [[each] for each in phases]
        chainer_ooc.reset()


@OTHERS
def test_deleting_the_file_has_all_of_its_plans_made_anew(tmp_path, other):
    file, training = tmp_path / 'plans.json', Training('residual')
    for entries in ({}, other):
        under(training, plan=file, **entries)
    chainer_ooc.reset()
    for entries in ({}, other):
        assert under(training, count=1, plan=file, **entries) == ['run']
    with pytest.raises(PlanMismatchError, match='another ooc_min_bytes'):
        under(training, plan=file, min_bytes=64)
    file.unlink()
    for entries in ({}, other):
        assert under(training, plan=file, **entries) == ['profile', 'run']
