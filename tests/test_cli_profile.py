"""``profile MODULE:ATTRIBUTE`` of a user's own training, and of a model with the user's own batch."""
import os
import sys
import time
import types

import chainer_ooc  # before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_ooc.trace import Trace
from support.command_line import run, run_json
from support.trainings import several_graphs
from support.trainings.ooc_training import ooc


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(None, 4, 3, pad=1)
            self.fc = L.Linear(None, 3)

    def forward(self, x):
        return self.fc(F.relu(self.conv(x)))


class Words(chainer.Chain):
    def __init__(self):
        super().__init__(embed=L.EmbedID(10, 4), rnn=L.NStepLSTM(1, 4, 5, 0.5), out=L.Linear(5, 10))

    def forward(self, xs, ts):
        _, _, hs = self.rnn(None, None, [self.embed(each) for each in xs])
        return F.softmax_cross_entropy(self.out(F.concat(hs, axis=0)), np.concatenate(ts))


class Named(chainer.Chain):
    def __init__(self):
        super().__init__(fc=L.Linear(None, 1))

    def forward(self, left, right):
        return F.mean((self.fc(left) - self.fc(right)) ** 2)


class Three(Net):
    def forward(self, images, labels, more):
        return super().forward(images)


def batch():
    return np.ones((4, 2, 8, 8), 'f'), np.zeros(4, 'i')


def updater():
    pairs = chainer.datasets.TupleDataset(np.ones((9, 2, 8, 8), 'f'), np.zeros(9, 'i'))
    optimizer = chainer.optimizers.MomentumSGD().setup(L.Classifier(Net()))
    return chainer.training.StandardUpdater(chainer.iterators.SerialIterator(pairs, 4), optimizer)


def words():
    return [np.arange(length, dtype='i') for length in (3, 5, 2)]


def failing(act):
    """A model with a batch, that does something else."""
    class Failing(Net):
        def forward(self, x):
            return act(super().forward(x))
    return lambda: (Failing(), batch()[0])


def look_up(scores):
    return {}['nothing']


def run_out(scores):
    raise MemoryError


def raise_while_made():
    raise OSError('no pictures here')


class Ending(chainer.training.updaters.StandardUpdater):
    def update_core(self):
        sys.exit('no more data')


def ending():
    made = updater()
    return Ending(made.get_iterator('main'), made.get_optimizer('main'))


@pytest.fixture
def mine(monkeypatch):
    """A module that can be imported by the name ``mine``."""
    module = types.ModuleType('mine')
    module.updater, module.Net, module.Three, module.number = updater, Net, Three, 7
    module.trainer = lambda: chainer.training.Trainer(updater(), (3, 'iteration'))
    module.there, module.ready = updater(), L.Classifier(Net())
    module.classifier = lambda: L.Classifier(Net())
    module.named_labels = lambda: L.Classifier(Net(), label_key='t')
    module.pair, module.several = lambda: (L.Classifier(Net()), batch()), lambda: (L.Classifier(Net()), *batch())
    module.words, module.named = lambda: (Words(), (words(), words())), lambda: (Named(), {
        'left': np.ones((4, 6), 'f'), 'right': np.zeros((4, 6), 'f')})
    module.one = lambda: (chainer.Sequential(Net(), F.sum), batch()[0])
    module.scores = lambda: (Net(), batch()[0])
    module.Linear, module.nothing, module.raising = L.Linear, lambda: None, raise_while_made
    module.failing, module.large = failing(look_up), failing(run_out)
    module.tight = failing(lambda scores: run_out(scores) if chainer.config.ooc == 'keep' else F.sum(scores))
    module.ending = ending
    monkeypatch.setitem(sys.modules, 'mine', module)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    return module


CLASSIFIED = ['Convolution2DFunction', 'ReLU', 'Reshape', 'LinearFunction', 'SoftmaxCrossEntropy']


@pytest.mark.parametrize(('name', 'labels', 'batchsize'), [
    *((name, CLASSIFIED, 4) for name in ('updater', 'trainer', 'there', 'pair', 'several')),
    ('words', ['EmbedIDFunction'] * 3, 3), ('named', ['LinearFunction', 'LinearFunction', 'Sub'], 4),
    ('one', [*CLASSIFIED[:4], 'Sum'], 4)])
def test_a_training_and_a_model_with_any_batch_are_profiled(capsys, mine, tmp_path, name, labels, batchsize):
    file = tmp_path / 'trace.json'
    found = run_json(capsys, 'profile', f'mine:{name}', '--save', str(file))
    trace = Trace.from_json(file.read_text())
    assert [each.label for each in trace.calls][:len(labels)] == labels
    assert (found['batchsize'], found['insize'], found['policy']) == (batchsize, None, 'keep')
    assert found['maps'] == len(trace.maps)


@pytest.mark.parametrize('name', ['classifier', 'ready'])
def test_a_classifier_alone_is_run_on_images_and_labels(capsys, mine, name):
    found = run_json(capsys, 'profile', f'mine:{name}', '--batchsize', '2', '--insize', '16')
    assert (found['batchsize'], found['insize']) == (2, 16)
    assert found['calls'] == 6  # the loss among them, and the accuracy


@pytest.mark.parametrize('name', ['updater', 'pair'])
def test_the_plan_of_a_profile_runs_from_the_first_iteration_on(capsys, mine, tmp_path, name):
    trace, plans = str(tmp_path / 'trace.json'), str(tmp_path / 'plans.json')
    optimizer = [] if name == 'updater' else ['--optimizer', 'MomentumSGD']
    with chainer.using_config('ooc_min_bytes', 0):
        assert run(capsys, 'profile', f'mine:{name}', *optimizer, '--workspace', '1MB', '--save', trace)[0] == 0
    assert run(capsys, 'plan', trace, '--policy', 'swap-all', '--budget', '100MB', '--min-bytes', '0',
               '--save', plans)[0] == 0
    training, phases = updater(), []
    entries = {'ooc_plan': plans, 'ooc_min_bytes': 0, 'ooc_workspace': '1MB', 'ooc_budget': '100MB', 'ooc': 'swap-all'}
    for entry, value in entries.items():
        setattr(chainer.config, entry, value)
    try:
        for _ in range(2):
            training.update()
            phases.append(chainer_ooc.stats().phase)
    finally:
        for entry in entries:
            delattr(chainer.config, entry)
    assert phases == ['run', 'run']


def test_options_reach_the_run(capsys, mine, tmp_path):
    def standing_bytes(*options):
        file = tmp_path / 'trace.json'
        assert run(capsys, 'profile', 'mine:pair', '--save', str(file), *options)[0] == 0
        return Trace.from_json(file.read_text())
    plain, with_state = standing_bytes(), standing_bytes('--optimizer', 'Adam', '--workspace', '2MB')
    assert with_state.standing_backward_bytes == 3 * plain.standing_backward_bytes
    assert (plain.workspace_bytes, with_state.workspace_bytes) == (None, 2000000)
    budgets = []
    mine.seen = lambda: (lambda model: (model, batch()[0]))(Noting(budgets))
    assert run(capsys, 'profile', 'mine:seen', '--budget', '70MB')[0] == 0
    assert budgets == ['70000000'] * 2
    assert chainer.config.ooc_budget is None


@pytest.mark.parametrize(('arguments', 'beside'), [
    (['mine:pair'], 'with parameters and gradients'), (['mine:updater'], 'with parameters, gradients and optimizer'),
    (['mine:pair', '--optimizer', 'Adam'], 'with parameters, gradients and optimizer')])
def test_what_is_counted_beside_maps_is_said(capsys, mine, arguments, beside):
    _, out, _ = run(capsys, 'profile', *arguments)
    assert [each.rpartition(', with ')[2] for each in out.splitlines() if ', with ' in each] == [beside[5:]] * 2


@pytest.mark.parametrize('arguments', [['mine:pair'], ['googlenet', '--batchsize', '1', '--insize', '64']])
def test_a_budget_below_the_smallest_is_said(capsys, mine, arguments):
    assert 'is below the smallest' not in run(capsys, 'profile', *arguments, '--budget', '200MB')[1]
    status, out, _ = run(capsys, 'profile', *arguments, '--budget', '100')
    assert status == 0
    assert ('the budget of 100 bytes is below the smallest: a training with it is refused once its first iterations '
            'are recorded') in ' '.join(out.split())


class Noting(Net):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def forward(self, x):
        self.seen.append(str(chainer.config.ooc_budget))
        return F.sum(super().forward(x))


def test_what_does_not_fit_under_keep_is_swapped(capsys, mine):
    status, out, _ = run(capsys, 'profile', 'mine:tight')
    assert status == 0
    assert out.endswith('recorded under swap-all, since it does not fit into memory under keep\n')
    assert run(capsys, 'profile', 'mine:large') == (
        1, '', 'error: mine:large needs more memory than there is; make its batch smaller\n')
    assert run(capsys, 'profile', 'mine:large', '--policy', 'keep')[2].endswith(
        'make its batch smaller, or --policy swap-all\n')


RESULTS = 'a Trainer, an Updater, a chainer.Chain, or a chain together with its batch: (model, (x, t))'
RETURNS = f'returns {RESULTS}'
WITH_BATCH = 'have it return the model together with its batch: (model, (x, t)), or (model, {name: array})'


@pytest.mark.parametrize(('arguments', 'message'), [
    (['nowhere:Model'], "cannot import nowhere for nowhere:Model: No module named 'nowhere'; run this where it can be"),
    (['mine:Missing'], 'mine has no Missing; it has: '),
    (['mine:updater.nothing'], 'mine.updater has no nothing; it has: nothing that can be called'),
    (['mine:number'], f'mine:number is of type int, which cannot be called; name a class or function that {RETURNS}'),
    (['mine:Linear'], 'mine:Linear cannot be called without arguments'),
    (['mine:nothing'], f'mine:nothing returns a value of type NoneType; have it return {RESULTS}'),
    (['builtins:dict'], f'builtins:dict returns a value of type dict; have it return {RESULTS}'),
    (['mine:Three'], f'mine:Three takes 3 arguments, not images, or images and labels; {WITH_BATCH}'),
    (['mine:named_labels'], f"mine:named_labels is a Classifier that is given its labels as 't'; {WITH_BATCH}"),
    (['mine:scores'], 'mine:scores cannot be profiled: the model gave a Variable of float32 and shape (4, 3), not a'),
    (['mine:updater', '--optimizer', 'Adam'], 'mine:updater is a StandardUpdater, which has its optimizer; leave'),
    (['mine:updater', '--batchsize', '4'], 'mine:updater brings its own batch and device; leave --batch'),
    (['mine:pair', '--device', '@numpy'], 'mine:pair brings its own batch and device; leave --device out'),
    (['mine:pair', '--optimizer', 'Adm'], "there is no optimizer 'Adm'; did you mean 'Adam'?"),
])
def test_what_cannot_be_profiled_is_said_in_one_line_with_the_next_step(capsys, mine, arguments, message):
    status, out, err = run(capsys, 'profile', *arguments)
    assert (status, out) == (2, '')
    assert err.startswith(f'error: {message}')
    assert err.count('\n') == 1


@pytest.mark.parametrize(('name', 'status', 'error', 'innermost', 'said'), [
    ('raising', 2, 'OSError: no pictures here', 'raise_while_made', 'cannot be made'),
    ('failing', 1, "KeyError: 'nothing'", 'look_up', 'cannot be trained'),
    ('ending', 1, 'SystemExit: no more data', 'update_core', 'cannot be trained')])
def test_an_error_of_the_users_own_is_its_own_traceback_and_a_line(capsys, mine, name, status, error, innermost, said):
    found, out, err = run(capsys, 'profile', f'mine:{name}')
    assert (found, out) == (status, '')
    lines = err.splitlines()
    assert lines[0] == 'Traceback (most recent call last):'
    assert lines[-2] == error
    assert lines[-1] == f'error: mine:{name} {said}: {error}; the traceback above is that of its own code'
    files = [line for line in lines if line.startswith('  File ')]
    assert files[-1].endswith(f'in {innermost}')
    assert all(os.path.basename(__file__) in line for line in files)


def test_a_training_is_recommended_for(capsys, mine):
    found = run_json(capsys, 'recommend', 'mine:updater', '--budget', '1GB')
    assert (found['batch'], found['ooc']) == (4, 'keep')


def test_what_a_model_alone_does_for_the_first_time_is_in_no_figure(capsys, mine):
    """It was the recording: with a workspace, 20 ms of 25."""
    delays = [0.5]

    class Slow(chainer.FunctionNode):
        def forward(self, inputs):
            time.sleep(delays.pop() if delays else 0)
            return inputs[0] * 1,

        def backward(self, indexes, gradients):
            return gradients

    class SlowAtFirst(Net):
        def forward(self, x):
            return super().forward(Slow().apply((x,))[0])

    mine.slow = SlowAtFirst
    assert run_json(capsys, 'profile', 'mine:slow', '--insize', '16')['forward_seconds'] < 0.5
    assert delays == []


@pytest.mark.parametrize('command', ['profile', 'recommend'])
def test_why_the_other_graphs_of_a_training_may_need_more_is_said(capsys, mine, command):
    mine.penalised = lambda: several_graphs.updater_of(several_graphs.Penalised)
    mine.in_turn = lambda: several_graphs.updater_of(several_graphs.InTurn)
    assert 'double backprop' in run(capsys, command, 'mine:penalised')[1]
    assert 'double backprop' not in run(capsys, command, 'mine:in_turn')[1]


def test_what_is_recommended_is_enough_for_the_other_graphs_too(capsys, mine, tmp_path):
    mine.penalised = lambda: several_graphs.updater_of(several_graphs.Penalised)
    file = tmp_path / 'trace.json'
    with chainer.using_config('ooc_min_bytes', 0):
        floor_bytes = run_json(capsys, 'profile', 'mine:penalised', '--save', str(file))['floor_bytes']
    recommend = 'recommend', str(file), '--min-bytes', '0', '--budget'
    status, _, err = run(capsys, *recommend, str(floor_bytes - 1))
    assert status == 1
    assert 'needed as far as is known' in err and 'double backprop' in err
    found = run_json(capsys, *recommend, str(int(1.02 * floor_bytes)))
    updater = mine.penalised()
    with ooc(found['ooc'], budget=found['ooc_budget']):
        for _ in range(3):
            updater.update()
