"""The picture of memory over an iteration, drawn while a training goes on."""
import chainer_ooc  # before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_ooc.execute import sessions
from chainer_ooc.extensions import MemoryPlot
from chainer_ooc.report import figure, still
from chainer_ooc.report.contents import report_of
from support.trainings.ooc_training import ooc

pytestmark = pytest.mark.usefixtures('matplotlib')


def trainer_of(out, iterations):
    model = L.Classifier(chainer.Sequential(*[layer for _ in range(4) for layer in (L.Linear(16, 16), F.relu)]))
    pairs = chainer.datasets.TupleDataset(np.random.rand(32, 16).astype('f'), np.zeros(32, 'i'))
    optimizer = chainer.optimizers.MomentumSGD().setup(model)
    updater = chainer.training.StandardUpdater(chainer.iterators.SerialIterator(pairs, 8), optimizer)
    return chainer.training.Trainer(updater, (iterations, 'iteration'), str(out))


@pytest.fixture
def drawn(monkeypatch):
    """The reports that were drawn."""
    found, draw = [], still.draw
    monkeypatch.setattr(still, 'draw', lambda report, path: (found.append(report), draw(report, path)))
    return found


@pytest.mark.parametrize('policy', ['swap-all', 'pooch', 'sublinear', 'unified'])
def test_each_epoch_has_its_picture(tmp_path, drawn, policy):
    trainer = trainer_of(tmp_path, 8)
    trainer.extend(MemoryPlot('memory-{.updater.iteration}.png'))
    with ooc(policy):
        trainer.run()
        run = chainer_ooc.last_run()
    assert [each.name for each in sorted(tmp_path.glob('*.png'))] == ['memory-4.png', 'memory-8.png']
    assert all(each.read_bytes().startswith(b'\x89PNG') for each in tmp_path.glob('*.png'))
    last = drawn[-1]
    assert (last.title, last.policy, last.measured) == ('iteration 8', policy, run.timeline)
    assert (last.course.plan.budget_bytes, last.course.plan.verdicts) == (run.plan.budget_bytes, run.plan.verdicts)
    assert [max(column) for column in zip(*(each.nbytes for each in last.course.kinds), strict=True)]


def test_a_training_shorter_than_an_epoch_has_its_picture_at_the_end(tmp_path, drawn):
    trainer = trainer_of(tmp_path, 3)
    trainer.extend(MemoryPlot())
    with ooc('swap-all'):
        trainer.run()
    assert [each.title for each in drawn] == ['iteration 3']
    assert (tmp_path / 'memory.png').read_bytes().startswith(b'\x89PNG')


def test_of_a_recorded_iteration_and_of_plain_chainer_nothing_is_drawn(tmp_path, drawn):
    trainer = trainer_of(tmp_path, 2)
    trainer.extend(MemoryPlot(), trigger=(1, 'iteration'))
    with ooc('swap-all', profile_iterations=2):
        trainer.run()
    chainer_ooc.reset()
    trainer = trainer_of(tmp_path, 2)
    trainer.extend(MemoryPlot(), trigger=(1, 'iteration'))
    trainer.run()
    assert drawn == []
    assert sessions.current() is None


def test_without_matplotlib_it_says_so_at_once(monkeypatch):
    def missing(*sizes):
        raise ImportError('drawing needs matplotlib')
    monkeypatch.setattr('chainer_ooc.extensions.memory_plot.new_figure', missing)
    with pytest.raises(ImportError, match='matplotlib'):
        MemoryPlot()
    assert figure.new_figure is not missing


@pytest.mark.usefixtures('matplotlib')
@pytest.mark.parametrize('name', ['memory.xyz', 'memory', ''])
def test_a_format_that_is_not_known_is_said_at_once(name):
    with pytest.raises(ValueError, match=r"cannot be drawn into '.*': give it one of the suffixes .*pdf, .*png"):
        chainer_ooc.extensions.MemoryPlot(name)


def test_a_report_of_a_run_alone_has_its_plan_and_nothing_else(tmp_path):
    with ooc('pooch'):
        trainer_of(tmp_path, 4).run()
        run = chainer_ooc.last_run()
    report = report_of('', run)
    assert len(report.courses) == 1
    assert (report.course.bound_seconds, report.course.reasons) == (None, ())
    assert report.course.timeline.peak_bytes <= run.plan.budget_bytes
