"""Warnings name the program's line, from wherever below Chainer they come."""
import sys
import warnings

import chainer_ooc  # before chainer

# isort: split
import chainer
import chainer.functions as F
import numpy as np
import pytest

from chainer_ooc.backends.spill import filesystem
from chainer_ooc.backends.spill.spill_file import SpillWarning
from chainer_ooc.warning import warn


@pytest.fixture
def ram_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem, 'is_ram_disk', lambda folder: True)
    with chainer.using_config('ooc', 'swap-all'), chainer.using_config('ooc_spill_dir', str(tmp_path)):
        yield
    chainer_ooc.reset()


class Updater(chainer.training.StandardUpdater):
    def update_core(self):
        batch = self.get_iterator('main').next()
        self.get_optimizer('main').update(lambda: F.sum(self.get_optimizer('main').target(np.stack(batch))))


def train_with_a_trainer():
    model = chainer.links.Linear(3, 2)
    optimizer = chainer.optimizers.SGD().setup(model)
    batches = chainer.iterators.SerialIterator([np.ones(3, 'f')] * 2, 2)
    chainer.training.Trainer(Updater(batches, optimizer), (1, 'iteration')).run()


def apply_a_function():
    F.relu(chainer.Variable(np.ones((2, 3), 'f')))


@pytest.mark.host
@pytest.mark.parametrize(('train', 'line'), [
    (apply_a_function, apply_a_function.__code__.co_firstlineno + 1),
    (train_with_a_trainer, Updater.update_core.__code__.co_firstlineno + 2)])
def test_the_warning_of_a_ram_disk_names_the_line_that_applies_the_first_function(ram_disk, train, line):
    with pytest.warns(SpillWarning, match='is a RAM disk') as seen:
        train()
    assert [(each.filename, each.lineno) for each in seen] == [(__file__, line)]


def test_a_warning_is_said_once_for_a_line_as_pythons_are():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('default')
        for _ in range(2):
            warn('twice from here', UserWarning)
        warn('and from here', UserWarning)
    assert [str(each.message) for each in seen] == ['twice from here', 'and from here']
    assert seen[1].lineno == sys._getframe().f_lineno - 2


def test_without_a_line_of_the_programs_the_caller_is_named(monkeypatch):
    monkeypatch.setattr('chainer_ooc.warning.is_the_programs', lambda filename: False)
    with pytest.warns(UserWarning, match='nobody else') as seen:
        warn('nobody else', UserWarning)
    assert (seen[0].filename, seen[0].lineno) == (__file__, sys._getframe().f_lineno - 1)
