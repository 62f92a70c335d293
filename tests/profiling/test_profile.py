"""chainer_ooc.profile: the trace of a training as it is, which is afterwards as it was before."""
import functools
import multiprocessing.heap
import multiprocessing.resource_tracker
import random
import sys

import chainer_ooc  # before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_ooc import cli
from chainer_ooc.errors import ProfileError
from chainer_ooc.execute import sessions


@pytest.fixture(scope='module', autouse=True)
def tracker_of_semaphores():
    """From Python 3.14 on a pool of threads has one started, a process that stays."""
    if sys.version_info >= (3, 14):
        multiprocessing.resource_tracker.ensure_running()


class Net(chainer.Chain):
    """Lazily made parameters, running statistics, dropout, and an attribute that each call changes."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen = 0, []
        self.noise = np.random.RandomState(7)
        with self.init_scope():
            self.conv = L.Convolution2D(None, 4, 3, pad=1)
            self.norm = L.BatchNormalization(4)
            self.fc = L.Linear(None, 3)

    def forward(self, x):
        self.calls += 1
        self.seen.append(len(x))
        h = F.dropout(F.relu(self.norm(self.conv(x))))
        return self.fc(h + self.noise.randn() * 1e-3)


def images(count=20, seed=0):
    stream = np.random.RandomState(seed)
    pictures = stream.randn(count, 2, 8, 8).astype('f')
    return chainer.datasets.TupleDataset(pictures, (np.arange(count) % 3).astype('i'))


def updater_of(iterator=None, optimizer=None, model=None):
    np.random.seed(0)
    random.seed(0)
    optimizer = (optimizer or chainer.optimizers.Adam()).setup(model or L.Classifier(Net()))
    iterator = iterator or chainer.iterators.SerialIterator(images(), 8)
    return chainer.training.StandardUpdater(iterator, optimizer)


def state_of(updater):
    """All that a training has, as values that can be compared."""
    optimizer, iterator = updater.get_optimizer('main'), updater.get_iterator('main')
    bits = {}
    for name, each in optimizer.target.namedparams():
        rule = each.update_rule
        grad = each.grad if each.is_initialized else None
        state = None if rule.state is None else {key: np.array(value).tobytes() for key, value in rule.state.items()}
        bits[name] = (id(each.array), *(None if array is None else array.tobytes() for array in (each.array, grad)),
                      rule.t, state, each.node.shape)
    for name, link in optimizer.target.namedlinks():
        bits[name] = [(key, value.tobytes() if isinstance(value, np.ndarray) else repr(value))
                      for key, value in sorted(vars(link).items()) if not isinstance(value, np.random.RandomState)]
    generators = np.random.get_state(), optimizer.target.predictor.noise.get_state()
    streams = random.getstate(), [(keys.tolist(), position) for _, keys, position, *_ in generators]
    return (bits, repr(streams), updater.iteration, optimizer.t, optimizer.epoch, repr(vars(optimizer.hyperparam)),
            updater.get_iterator('main') is iterator, iterator.current_position, iterator.epoch,
            repr(iterator._state.order), iterator.previous_epoch_detail)


def finish(updater, iterations=4):
    """The bits of what a training comes to from here."""
    for _ in range(iterations):
        updater.update()
    arrays = [each.array for each in updater.get_optimizer('main').target.params()]
    return [None if each is None else each.tobytes() for each in arrays], np.random.rand()


@pytest.mark.parametrize('iterations', [0, 2])
@pytest.mark.parametrize('optimizer', [chainer.optimizers.Adam, chainer.optimizers.MomentumSGD])
def test_a_training_is_as_it_was(iterations, optimizer):
    updater = updater_of(optimizer=optimizer())
    finish(updater, iterations)
    before = state_of(updater)
    chainer_ooc.profile(updater)
    assert state_of(updater) == before
    assert chainer.config.ooc is None and chainer_ooc.trace() is None
    found = finish(updater)
    alone = updater_of(optimizer=optimizer())
    finish(alone, iterations)
    assert found == finish(alone)


def test_a_training_is_as_it_was_after_an_error_of_its_own():
    class Failing(Net):
        def forward(self, x):
            if self.calls == 1:
                raise LookupError('no such picture')
            return super().forward(x)

    updater = updater_of(model=L.Classifier(Failing()))
    before = state_of(updater)
    with pytest.raises(LookupError, match='no such picture'):
        chainer_ooc.profile(updater)
    assert state_of(updater) == before
    assert sessions.current() is None


@pytest.mark.parametrize('make', [chainer.iterators.MultithreadIterator, chainer.iterators.SerialIterator])
@pytest.mark.parametrize('drawn', [0, 1])
def test_iterators_go_on_where_they_stood(make, drawn):
    def batches(profiled):
        np.random.seed(1)
        iterator = make(images(), 8)
        updater = updater_of(iterator)
        finish(updater, drawn)
        if profiled:
            chainer_ooc.profile(updater)
        found = [np.stack([picture for picture, _ in iterator.next()]).tobytes() for _ in range(4)]
        iterator.finalize()
        return found
    assert batches(True) == batches(False)


def test_iterators_that_define_how_they_are_copied_are_not_asked_themselves():
    copies = []

    class Worker(chainer.iterators.SerialIterator):
        """As a MultiprocessIterator, whose processes no copy of its attributes would have."""

        def __copy__(self):
            copies.append(Worker(self.dataset, self.batch_size, shuffle=False))
            return copies[-1]

        def finalize(self):
            self.is_over = True

    iterator = Worker(images(), 8, shuffle=False)
    before = dict(vars(iterator))
    updater = updater_of(iterator)
    chainer_ooc.profile(updater)
    assert updater.get_iterator('main') is iterator and vars(iterator) == before
    assert [each.current_position for each in copies] == [8, 8]
    assert all(each.is_over for each in copies)


def test_an_order_with_random_numbers_of_its_own_stays():
    def order(profiled):
        sampler = chainer.iterators.ShuffleOrderSampler(np.random.RandomState(3))
        iterator = chainer.iterators.SerialIterator(images(9), 8, order_sampler=sampler)
        updater = updater_of(iterator)
        iterator.next()  # the next batch begins another epoch
        if profiled:
            chainer_ooc.profile(updater)
        return [picture.sum() for _ in range(3) for picture, _ in iterator.next()]
    assert order(True) == order(False)


def test_an_order_that_processes_draw_ahead_stays(monkeypatch):
    monkeypatch.setattr(multiprocessing.heap.BufferWrapper, '_heap', multiprocessing.heap.Heap())  # keeps all

    def order(profiled):
        sampler = chainer.iterators.ShuffleOrderSampler(np.random.RandomState(3))
        iterator = chainer.iterators.MultiprocessIterator(
            images(20), 8, shuffle=None, n_processes=1, n_prefetch=2, order_sampler=sampler)
        try:
            if profiled:
                chainer_ooc.profile(updater_of(iterator))
            return [picture.sum() for _ in range(8) for picture, _ in iterator.next()]
        finally:
            iterator.finalize()
    assert order(True) == order(False)


def test_what_cannot_be_copied_goes_on_by_two_batches():
    class Endless(chainer.dataset.Iterator):
        batch_size, epoch, is_new_epoch = 8, 0, False

        def __init__(self):
            self.drawn = ((images(8, seed)[:], seed) for seed in range(9))

        def __next__(self):
            batch, self.last = next(self.drawn)
            return batch
    iterator = Endless()
    chainer_ooc.profile(updater_of(iterator))
    assert not hasattr(iterator, 'last')
    iterator.next()
    assert iterator.last == 2


def phases_with(trace, tmp_path, train, policy='swap-all', min_bytes=0):
    """The phase of each iteration of a training that has a plan, made from a trace by the command line."""
    (tmp_path / 'trace.json').write_text(trace.to_json())
    file = tmp_path / 'plans.json'
    arguments = ['--policy', policy, '--budget', '1GB', '--min-bytes', str(min_bytes), '--save', str(file)]
    assert cli.main(['plan', str(tmp_path / 'trace.json'), *arguments]) == 0
    found = []
    entries = {'ooc_plan': file, 'ooc_budget': '1GB', 'ooc': policy}
    for name, value in entries.items():
        setattr(chainer.config, name, value)
    try:
        for _ in range(3):
            train()
            found.append(chainer_ooc.stats().phase)
    finally:
        for name in entries:
            delattr(chainer.config, name)
    return found


@pytest.fixture
def no_threshold():
    with chainer.using_config('ooc_min_bytes', 0):
        yield


def test_a_plan_from_it_runs_from_the_first_iteration_on(tmp_path, no_threshold, capsys):
    updater = updater_of()
    trace = chainer_ooc.profile(updater)
    state_bytes = sum(2 * each.array.nbytes for each in trained().params())
    assert trace.standing_backward_bytes == 3 * state_bytes // 2  # Adam's, and the parameters'
    assert phases_with(trace, tmp_path, updater.update) == ['run'] * 3
    assert chainer_ooc.stats().swapped_out_bytes > 0


def trained():
    updater = updater_of()
    updater.update()
    return updater.get_optimizer('main').target


def test_a_plan_of_a_classifier_and_its_batch_runs_from_the_first_iteration_on(tmp_path, no_threshold, capsys):
    model = L.Classifier(Net())
    x, t = chainer.dataset.concat_examples(images(8))
    trace = chainer_ooc.profile(model, x, t)
    assert not model.predictor.conv.W.is_initialized
    optimizer = chainer.optimizers.Adam().setup(model)
    assert phases_with(trace, tmp_path, lambda: optimizer.update(model, x, t)) == ['run'] * 3


class Sequences(chainer.Chain):
    """Reads a list of sequences, of any lengths."""

    def __init__(self):
        super().__init__(embed=L.EmbedID(10, 4), rnn=L.NStepLSTM(1, 4, 5, 0.5), out=L.Linear(5, 10))

    def forward(self, xs, ts):
        _, _, hs = self.rnn(None, None, [self.embed(each) for each in xs])
        return F.softmax_cross_entropy(self.out(F.concat(hs, axis=0)), np.concatenate(ts))


def sequences():
    return [np.arange(length, dtype='i') for length in (3, 5, 2)]


class Named(chainer.Chain):
    """Is called with a dict."""

    def __init__(self):
        super().__init__(fc=L.Linear(None, 1))

    def forward(self, left, right):
        return F.mean((self.fc(left) - self.fc(right)) ** 2)


def halves():
    return {'left': np.ones((4, 6), 'f'), 'right': np.zeros((4, 6), 'f')}


def test_a_batch_may_have_any_form():
    trace = chainer_ooc.profile(Sequences(), sequences(), sequences())
    assert len([each for each in trace.calls if each.label == 'EmbedIDFunction']) == 3
    model = Named()
    assert chainer_ooc.profile(model, **halves()).fingerprint == chainer_ooc.profile(
        model, *halves().values()).fingerprint
    inner = Net()

    class Loss:
        net = inner

        def of(self, x):
            return F.sum(self.net(x))
    before = inner.calls
    chainer_ooc.profile(Loss().of, images(4)[:][0][0][None])
    assert inner.calls == before + 2  # no link of the method's own: it cannot be put back


def test_a_trainer_and_a_method_of_a_link_are_trainings_too():
    updater = updater_of()
    trainer = chainer.training.Trainer(updater, (3, 'iteration'))
    found = chainer_ooc.profile(trainer)
    assert found.fingerprint == chainer_ooc.profile(updater).fingerprint
    model = Named()
    assert chainer_ooc.profile(model.forward, **halves()).fingerprint == chainer_ooc.profile(
        model, **halves()).fingerprint
    assert model.fc.W.array is None


class Pair(chainer.training.updaters.StandardUpdater):
    """Trains two networks in turn, of which the second is larger."""

    def update_core(self):
        batch = self.converter(self.get_iterator('main').next(), self.device)[0]
        for name in ('one', 'two'):
            optimizer = self.get_optimizer(name)
            optimizer.update(lambda optimizer=optimizer: F.sum(optimizer.target(F.flatten(batch)[None]) ** 2))


MODEL = Named()


def test_the_links_that_a_loss_function_names_stay_too():
    model = Net()
    x = np.ones((2, 2, 8, 8), 'f')
    for function in (lambda x: F.sum(model(x)), functools.partial(lambda net, x: F.sum(net(x)), model)):
        chainer_ooc.profile(function, x)
        assert model.calls == 0 and model.conv.W.array is None
    chainer_ooc.profile(lambda batch: MODEL(**batch), halves())
    assert MODEL.fc.W.array is None
    updater = updater_of()
    updater.loss_func = lambda x, t: F.sum(model(x)) + F.sum(updater.get_optimizer('main').target.predictor(x))
    chainer_ooc.profile(updater)
    assert model.calls == 0


def test_a_plan_that_is_there_already_does_not_stand_in_for_a_recording(tmp_path, no_threshold, capsys):
    updater = updater_of()
    trace = chainer_ooc.profile(updater)
    phases_with(trace, tmp_path, updater.update)
    before = (tmp_path / 'plans.json').read_bytes()
    chainer_ooc.reset()
    with chainer.using_config('ooc_plan', tmp_path / 'plans.json'):
        again = chainer_ooc.profile(updater)
    assert again.fingerprint == trace.fingerprint and again.seconds != trace.seconds
    assert (tmp_path / 'plans.json').read_bytes() == before


def test_of_several_graphs_the_largest_is_given():
    networks = {'one': chainer.Sequential(L.Linear(None, 2)), 'two': chainer.Sequential(L.Linear(None, 300), F.relu)}
    optimizers = {name: chainer.optimizers.Adam().setup(each) for name, each in networks.items()}
    updater = Pair(chainer.iterators.SerialIterator(images(), 8), optimizers)
    trace = chainer_ooc.profile(updater)
    assert 'ReLU' in {each.label for each in trace.calls}
    assert all(each.array is None for model in networks.values() for each in model.params() if each.name == 'W')


def test_a_training_that_goes_on_keeps_its_plan_and_figures():
    updater = updater_of()
    with chainer.using_config('ooc', 'swap-all'), chainer.using_config('ooc_min_bytes', 0):
        finish(updater, 3)
        session, plan, stats = sessions.current(), chainer_ooc.plan(), chainer_ooc.stats()
        trace = chainer_ooc.profile(updater)
        assert (sessions.current(), chainer_ooc.plan(), chainer_ooc.stats()) == (session, plan, stats)
        assert trace.fingerprint == chainer_ooc.trace().fingerprint
        updater.update()
        assert chainer_ooc.stats().phase == 'run'
        found = finish(updater, 2)
    alone = updater_of()
    finish(alone, 3)
    alone.update()
    assert found == finish(alone, 2)


def test_reports_reach_nobody():
    updater = updater_of()
    reporter = chainer.Reporter()
    with reporter:
        chainer_ooc.profile(updater)
    assert reporter.observation == {}


def test_where_keep_does_not_fit_maps_are_swapped():
    def loss(x):
        if chainer.config.ooc == 'keep':
            raise MemoryError
        return F.sum(F.relu(chainer.Variable(x) * 2))
    assert chainer_ooc.profile(loss, np.ones((4, 4), 'f')).calls
    with chainer.using_config('ooc', 'keep'), pytest.raises(MemoryError):
        chainer_ooc.profile(loss, np.ones((4, 4), 'f'))


def test_a_budget_is_no_obstacle_as_nothing_is_planned():
    with chainer.using_config('ooc_budget', 1000), chainer.using_config('ooc', 'keep'):
        assert chainer_ooc.profile(updater_of()).calls


@pytest.mark.parametrize(('program', 'batch', 'said'), [
    (7, (), 'a value of type int cannot be profiled; give an Updater, a Trainer, or a model and its batch'),
    (Named(), (), r'a Named is called with a batch; give that too: chainer_ooc.profile\(model, x, t\)'),
    (updater_of(), (1,), 'a StandardUpdater draws its batch itself; profile it alone'),
    (L.Linear(3), (np.ones((2, 2), 'f'),), r'gave a Variable of float32 and shape \(2, 3\), not a loss'),
    (lambda x: x, (np.ones((2, 2), 'f'),), 'gave a ndarray, not a loss'),
    (lambda x: F.sum(chainer.Variable(x)).reshape(()).array, (np.ones(2, 'f'),), 'not a loss'),
    (lambda x: chainer.Variable(x), (np.ones((), 'f'),), 'no backward pass has reached a function; profile an'),
])
def test_what_is_no_training_is_said_with_the_next_step(program, batch, said):
    with pytest.raises(ProfileError, match=said):
        chainer_ooc.profile(program, *batch)
