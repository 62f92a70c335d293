"""The Trainer's extension: entries of the log, and a line at the end of a training."""
import importlib.util
import io
import json
import subprocess
import sys

import chainer_ooc  # before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training import extensions

from chainer_ooc.execute import sessions
from chainer_ooc.execute.tally import IterationStats
from chainer_ooc.extensions import OutOfCore, report_to
from chainer_ooc.extensions.out_of_core import MOST_PLANS, TrainingTotals
from support.trainings.ooc_training import ooc

ENTRIES = {'ooc/peak', 'ooc/swapped_out', 'ooc/stall', 'ooc/recomputed'}
NO_SCIPY = importlib.util.find_spec('scipy') is None


def trainer_of(out, iterations=4, seed=0):
    np.random.seed(seed)
    model = L.Classifier(chainer.Sequential(*[layer for _ in range(4) for layer in (L.Linear(16, 16), F.relu)]))
    pairs = chainer.datasets.TupleDataset(np.random.rand(32, 16).astype('f'), np.zeros(32, 'i'))
    optimizer = chainer.optimizers.MomentumSGD().setup(model)
    updater = chainer.training.StandardUpdater(chainer.iterators.SerialIterator(pairs, 8), optimizer)
    trainer = chainer.training.Trainer(updater, (iterations, 'iteration'), str(out))
    trainer.extend(extensions.LogReport(trigger=(1, 'iteration')))
    return trainer


def log_of(out):
    return json.loads((out / 'log').read_text())


def of_ours(row):
    return {name for name in row if name.startswith('ooc/')}


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch'])
def test_each_iteration_has_its_entries(tmp_path, capsys, policy):
    trainer = trainer_of(tmp_path)
    trainer.extend(chainer_ooc.extensions.OutOfCore(gap=False))
    with ooc(policy):
        trainer.run()
        stats = chainer_ooc.stats()
    rows = log_of(tmp_path)
    assert of_ours(rows[0]) == ENTRIES
    assert all(of_ours(row) == ENTRIES | {'ooc/overhead'} for row in rows[1:])
    last = rows[-1]
    assert (last['ooc/peak'], last['ooc/swapped_out'], last['ooc/stall'], last['ooc/recomputed']) == (
        stats.peak_bytes, stats.swapped_out_bytes, stats.stall_seconds, stats.recomputed_calls)
    assert policy != 'keep' or last['ooc/swapped_out'] == 0
    line = capsys.readouterr().out
    assert line.startswith('out-of-core: peak ') and line.count('\n') == 1
    assert ', in-core ' in line and 'in each of 3 iterations' in line


def test_overhead_is_measured_time_beside_predicted_in_core(tmp_path, capsys):
    trainer = trainer_of(tmp_path, 3)
    extension = report_to(trainer)
    assert trainer.get_extension('OutOfCore') is extension
    seen = []
    trainer.extend(lambda trainer: seen.append(trainer.observation.get('ooc/overhead')), trigger=(1, 'iteration'),
                   name='look')
    with ooc('swap-all'):
        trainer.run()
        stats, trace = chainer_ooc.stats(), chainer_ooc.trace()
    in_core_seconds = sum(each.seconds for each in (*trace.calls, *trace.steps))
    assert seen[0] is None
    assert seen[-1] == pytest.approx(stats.seconds / in_core_seconds - 1)
    totals = extension.totals
    assert (totals.recorded, totals.planned) == (1, 2)
    assert totals.in_core_seconds == pytest.approx(2 * in_core_seconds)
    assert 0 < totals.peak_bytes <= totals.in_core_peak_bytes  # swap-outs may end too late to free anything
    assert totals.in_core_peak_bytes < trace.standing_forward_bytes + sum(
        each.nbytes for each in trace.maps) + max(trace.computing_bytes)


@pytest.mark.skipif(NO_SCIPY, reason='needs SciPy')
def test_the_gap_is_that_of_a_plan_that_was_followed_before(tmp_path, capsys):
    trainer = trainer_of(tmp_path, 5)
    report_to(trainer)
    with ooc('swap-all'):
        trainer.run()
        gap = chainer_ooc.stats().gap
    rows = log_of(tmp_path)
    assert [row for row in rows[:2] if 'ooc/gap' in row] == []
    assert gap is not None and rows[-1].get('ooc/gap', gap) == gap
    assert any('ooc/gap' in row for row in rows[2:])


def test_without_out_of_core_nothing_is_reported(tmp_path, capsys):
    trainer = trainer_of(tmp_path)
    report_to(trainer)
    trainer.run()
    assert all(of_ours(row) == set() for row in log_of(tmp_path))
    assert capsys.readouterr().out == 'out-of-core: off, as chainer.config.ooc is None\n'


def test_a_training_that_fails_in_its_first_iteration_was_not_off(tmp_path, capsys):
    trainer = trainer_of(tmp_path)
    trainer.updater.get_optimizer('main').target.lossfun = None
    report_to(trainer)
    with ooc('swap-all'), pytest.raises(TypeError):
        trainer.run()
    assert 'out-of-core: on, but no iteration has ended\n' in capsys.readouterr().out


def test_an_updater_may_set_ooc_for_itself_alone(tmp_path, capsys):
    class Setting(chainer.training.StandardUpdater):
        def update_core(self):
            with ooc('swap-all'):
                super().update_core()
    trainer = trainer_of(tmp_path, 3)
    report_to(trainer)
    trainer.updater.__class__ = Setting
    chainer.config.ooc = None
    try:
        trainer.run()
    finally:
        del chainer.config.ooc
        chainer_ooc.reset()
    assert all('ooc/peak' in row for row in log_of(tmp_path))
    assert 'in each of 2 iterations' in capsys.readouterr().out


def test_what_another_training_took_is_not_reported(tmp_path, capsys):
    class Skipping(chainer.training.StandardUpdater):
        def update_core(self):
            if self.iteration:
                super().update_core()
    with ooc('swap-all'):
        first = trainer_of(tmp_path / 'first', 1)
        report_to(first)
        first.run()
        trainer = trainer_of(tmp_path / 'second', 2)
        report_to(trainer)
        trainer.updater.__class__ = Skipping
        trainer.run()
    assert [len(of_ours(row)) > 0 for row in log_of(tmp_path / 'second')] == [False, True]


def test_what_was_reported_already_is_not_reported_again(tmp_path, capsys):
    trainer = trainer_of(tmp_path, 3)
    report_to(trainer)

    @chainer.training.make_extension(trigger=(1, 'iteration'))
    def switch(trainer):
        if trainer.updater.iteration == 2:
            chainer.global_config.ooc = None
    trainer.extend(switch)
    chainer.global_config.ooc = 'swap-all'
    try:
        trainer.run()
    finally:
        chainer.global_config.ooc = None
    assert [bool(of_ours(row)) for row in log_of(tmp_path)] == [True, True, False]


def test_print_report_and_plot_report_show_the_entries(tmp_path, capsys):
    shown = io.StringIO()
    trainer = trainer_of(tmp_path, 3)
    report_to(trainer)
    trainer.extend(extensions.PrintReport(['iteration', 'ooc/peak', 'ooc/overhead'], out=shown), trigger=(
        1, 'iteration'))
    seen = []

    class Plot(extensions.PlotReport):
        """Draws nothing; what it would draw is enough."""

        def __call__(self, trainer):
            seen.append({key: trainer.observation.get(key) for key in self._y_keys})
    with_plot = Plot.__new__(Plot)
    with_plot._y_keys = ['ooc/stall']
    with_plot.trigger = (1, 'iteration')
    trainer.extend(with_plot, name='plot')
    with ooc('swap-all'):
        trainer.run()
    assert all(each['ooc/stall'] is not None for each in seen)
    lines = [line for line in shown.getvalue().splitlines() if line.strip()]
    assert lines[0].split() == ['iteration', 'ooc/peak', 'ooc/overhead']
    assert [len(line.split()) for line in lines[1:]] == [2, 3, 3]


def test_a_resumed_training_goes_on_with_its_sums(tmp_path, capsys):
    trainer = trainer_of(tmp_path, 3)
    first = report_to(trainer)
    with ooc('swap-all'):
        trainer.run()
    chainer.serializers.save_npz(str(tmp_path / 'snapshot'), trainer)
    resumed = trainer_of(tmp_path, 5)
    extension = report_to(resumed)
    chainer.serializers.load_npz(str(tmp_path / 'snapshot'), resumed)
    assert extension.totals == first.totals
    chainer_ooc.reset()
    with ooc('swap-all'):
        resumed.run()
    assert (extension.totals.recorded, extension.totals.planned) == (2, 3)


def test_a_snapshot_from_before_it_was_added_can_be_resumed(tmp_path, capsys):
    trainer = trainer_of(tmp_path, 2)
    trainer.run()
    chainer.serializers.save_npz(str(tmp_path / 'snapshot'), trainer)
    resumed = trainer_of(tmp_path, 3)
    extension = report_to(resumed)
    with pytest.warns(UserWarning, match='The previous value of'):  # Chainer's, of the triggers of all extensions
        chainer.serializers.load_npz(str(tmp_path / 'snapshot'), resumed)
    assert extension.totals == TrainingTotals()


def test_the_line_says_what_it_cost_and_saved():
    stats = IterationStats('auto', 'run', 0, 1078 << 20, 755 << 20, 755 << 20, 3, 0, 0.5, 8.0, 1.0, 1, 0, 0, 0)
    totals = TrainingTotals()
    totals.add(stats, 10.0, 2156 << 20)
    totals.add(stats, 10.0, 2156 << 20)
    assert totals.line(True) == (
        'out-of-core: peak 1.13 GB, in-core 2.26 GB (-50.0 %); 8.00 s an iteration, in-core by '
        'simulation 10.0 s (-20.0 %), of which 0.500 s stalled; 791.7 MB swapped out and 3 calls recomputed in each '
        'of 2 iterations')
    assert TrainingTotals(recorded=1).line(True) == 'out-of-core: 1 iteration recorded, none under a plan yet'


def test_plans_that_are_remembered_are_not_more_and_more():
    extension = OutOfCore()
    for number in range(2 * MOST_PLANS):
        extension._gap_of(IterationStats('keep', 'run', number, 0, 0, 0, 0, 0, 0.0, 1.0, 1.0, 1, 0, 0, 0))
    assert len(extension._followed) <= MOST_PLANS


def test_extensions_are_there_without_an_import_of_their_own():
    code = ("import chainer_ooc, sys; assert 'chainer' not in sys.modules; chainer_ooc.extensions.OutOfCore();"
            "print(hasattr(chainer_ooc, 'no_such'))")
    done = subprocess.run([sys.executable, '-c', code], text=True, capture_output=True)
    assert (done.stdout, done.stderr) == ('False\n', '')


def test_what_other_models_have_is_in_memory_in_core_too():
    models = [chainer.Sequential(*(chainer.Sequential(L.Linear(32, 32), F.tanh) for _ in range(5))) for _ in range(2)]
    optimizers = [chainer.optimizers.Adam().setup(each) for each in models]
    with ooc('swap-all', min_bytes=1000, budget=300_000):
        for number in (0, 1, 0, 1, 0, 1, 0):
            models[number].cleargrads()
            F.sum(models[number](np.ones((64, 32), np.float32))).backward()
            optimizers[number].update()
        assert sessions.current().finished.in_core().peak_bytes >= chainer_ooc.stats().predicted_peak_bytes


def test_what_is_no_trainer_is_said_to_be_none():
    with pytest.raises(TypeError, match='was given a value of type int'):
        report_to(5)
