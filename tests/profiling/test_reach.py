"""What a training reaches is as it was after a profile, wherever it lies; so later iterations have the same bits."""
import array
import collections
import random
import tracemalloc

import chainer_ooc  # before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_ooc.errors import ProfileError
from chainer_ooc.profiling import untouched
from support.trainings.ooc_training import ooc


def pairs(count=24):
    stream = np.random.RandomState(4)
    return chainer.datasets.TupleDataset(stream.randn(count, 6).astype('f'), stream.randn(count, 1).astype('f'))


class Model(chainer.Chain):
    """Gives a loss; derived ones change what they have beside parameters."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.fc = L.Linear(6, 6)
            self.out = L.Linear(6, 1)

    def forward(self, x, t):
        return F.mean_squared_error(self.out(F.tanh(self.fc(x))), t)


class Stepping(chainer.training.updaters.StandardUpdater):
    """A training loop as programs have it, with gradients that are cleared before forward."""

    def update_core(self):
        x, t = self.converter(self.get_iterator('main').next(), self.device)
        optimizer = self.get_optimizer('main')
        optimizer.target.cleargrads()
        optimizer.target(x, t).backward()
        optimizer.update()


def bits_of(make, profiled=(), updater_class=Stepping, iterator=None):
    """The parameters after each of some iterations, with profiles before those that are named."""
    np.random.seed(0)
    random.seed(0)
    model = make()
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    updater = updater_class(iterator() if iterator else chainer.iterators.SerialIterator(pairs(), 4), optimizer)
    found = []
    for iteration in range(6):
        if iteration in profiled:
            chainer_ooc.profile(updater)
        updater.update()
        found.append([each.array.tobytes() for each in model.params()])
    return found


class Perturbed(Model):
    """Has a Variable that is no parameter, whose gradient it uses."""

    def __init__(self):
        super().__init__()
        self.delta = chainer.Variable(np.zeros((1, 6), 'f'))

    def forward(self, x, t):
        if self.delta.grad is not None:
            self.delta.array += 0.1 * np.sign(self.delta.grad)
        return super().forward(x + F.broadcast_to(self.delta, x.shape), t)


class Windowed(Model):
    """Back-propagates through its last three states, and cuts off older ones."""

    def __init__(self, cut):
        super().__init__()
        self.cut, self.h, self.former = cut, None, collections.deque()

    def forward(self, x, t):
        z = self.fc(x)
        self.h = F.tanh(z if self.h is None else z + self.h)
        self.former.append(self.h)
        if len(self.former) > 3:
            getattr(self.former.popleft(), self.cut)()
        return F.mean_squared_error(self.out(self.h), t)


class Taught(Model):
    """Has links that are no children: a mean teacher, and another in a list of dicts."""

    def __init__(self):
        super().__init__()
        self.teacher, self.others = self.fc.copy('copy'), [{'other': self.fc.copy('copy')}]

    def forward(self, x, t):
        other = self.others[0]['other']
        for link in (self.teacher, other):
            for own, mean in zip(self.fc.params(), link.params(), strict=True):
                mean.array[...] = 0.5 * mean.array + 0.5 * own.array
        return super().forward(x, t) + F.mean((self.fc(x) - self.teacher(x).array - other(x).array) ** 2)


@pytest.mark.parametrize('make', [
    Perturbed, Taught, lambda: Windowed('unchain'), lambda: Windowed('unchain_backward')],
    ids=['gradient of a Variable', 'links as attributes', 'unchain', 'unchain_backward'])
@pytest.mark.parametrize('policy', [None, 'swap-all'])
def test_later_iterations_have_the_same_bits(make, policy):
    if policy is None:
        assert bits_of(make, (0, 2, 5)) == bits_of(make)
        return
    with ooc(policy):
        assert bits_of(make, (2, 5)) == bits_of(make)


class Ordered(chainer.dataset.Iterator):
    """Takes examples in an order that it changes in place, as `change` does."""

    epoch, is_new_epoch, epoch_detail = 0, False, 0.0

    def __init__(self, order, change):
        self.data, self.order, self.change = pairs(), order, change
        self.streams = {'old': np.random.RandomState(1), 'new': np.random.default_rng(2), 'python': random.Random(3)}

    def __next__(self):
        self.change(self)
        return [self.data[index] for index in list(self.order)[:4]]

    next = __next__


class Around(chainer.dataset.Iterator):
    """Takes other numbers of examples from another iterator than that gives."""

    epoch, is_new_epoch, epoch_detail = 0, False, 0.0

    def __init__(self):
        self.inner, self.left = chainer.iterators.SerialIterator(pairs(), 7), []

    def __next__(self):
        while len(self.left) < 4:
            self.left.extend(self.inner.next())
        batch, self.left[:4] = self.left[:4], []
        return batch

    next = __next__


@pytest.mark.parametrize('iterator', [
    lambda: Ordered(list(range(24)), lambda own: own.order.append(own.order.pop(0))),
    lambda: Ordered(collections.deque(range(24)), lambda own: own.order.rotate(-3)),
    lambda: Ordered(np.arange(24), lambda own: own.streams['old'].shuffle(own.order)),
    lambda: Ordered(bytearray(range(24)), lambda own: own.order.reverse()),
    lambda: Ordered(list(range(24)), lambda own: own.streams['new'].shuffle(own.order)),
    lambda: Ordered(list(range(24)), lambda own: own.streams['python'].shuffle(own.order)),
    Around,
], ids=['list', 'deque', 'array', 'bytearray', 'Generator', 'random.Random', 'iterator in an iterator'])
def test_iterators_of_the_programs_own_go_on_where_they_stood(iterator):
    assert bits_of(Model, (0, 3), iterator=iterator) == bits_of(Model, iterator=iterator)


def test_containers_of_every_kind_are_as_they_were():
    class Slotted:
        __slots__ = ('empty', 'value')

    class Thing:
        pass
    thing = Thing()
    thing.slotted, thing.slotted.value = Slotted(), [1]
    thing.ordered = collections.OrderedDict(a=1, b=2)
    thing.default = collections.defaultdict(list, a=[1])
    thing.deque, thing.bytes, thing.numbers = collections.deque([1, 2], 2), bytearray(b'ab'), array.array('i', [1, 2])
    thing.view = memoryview(bytearray(b'cd'))
    thing.deep, thing.random = ({'a': [{1}, np.zeros(2)]},), random.Random(1)
    count = 0

    def closure():
        nonlocal count
        count += 1
        thing.more.append(1)
    thing.more, thing.closure = [], closure
    expected = random.Random(1).random()
    with untouched.untouched({'thing': thing}):
        thing.slotted.empty = 2
        thing.slotted.value.append(2)
        thing.ordered.move_to_end('a')
        thing.default['a'] += thing.default['b']
        thing.deque.append(3)
        thing.bytes += b'c'
        thing.view[0] = 0
        thing.numbers.append(3)
        thing.deep[0]['a'][0].add(2)
        thing.deep[0]['a'][1] += 1
        thing.random.random()
        closure()
    assert not hasattr(thing.slotted, 'empty') and thing.slotted.value == [1]
    assert list(thing.ordered) == ['a', 'b'] and thing.default == {'a': [1]}
    assert (list(thing.deque), thing.deque.maxlen, thing.bytes, list(thing.numbers)) == ([1, 2], 2, b'ab', [1, 2])
    assert thing.deep[0]['a'][0] == {1} and thing.deep[0]['a'][1].tolist() == [0, 0]
    assert bytes(thing.view) == b'cd'
    assert thing.random.random() == expected and count == 0 and thing.more == []


class Writing(chainer.dataset.DatasetMixin):
    """Writes to its pictures as it gives them."""

    def __init__(self):
        self.pictures, self.given = np.zeros((24, 6), 'f'), 0

    def __len__(self):
        return 24

    def get_example(self, i):
        self.given += 1
        self.pictures[i] += 1
        return self.pictures[i].copy(), np.zeros(1, 'f')


def training_on(data):
    updater = Stepping(chainer.iterators.SerialIterator(data, 4), chainer.optimizers.SGD(0.1).setup(Model()))
    updater.data = data  # as programs do
    return updater


def test_a_small_data_set_is_put_back():
    data = Writing()
    chainer_ooc.profile(training_on(data))
    assert data.given == 0 and not data.pictures.any()


def test_a_change_of_what_is_too_large_to_be_copied_is_said(monkeypatch):
    monkeypatch.setattr(untouched, 'LENT_BYTES', 500)
    data = Writing()
    updater = training_on(data)
    weights = updater.get_optimizer('main').target.fc.W.array
    before = weights.copy()
    with pytest.raises(ProfileError, match=r'what is too large to be copied: updater\.data\.pictures; the rest is as'):
        chainer_ooc.profile(updater)
    assert data.given == 0 and data.pictures.any() and (weights == before).all()


def test_what_is_too_large_to_be_copied_may_be_read(monkeypatch):
    monkeypatch.setattr(untouched, 'LENT_BYTES', 500)
    assert chainer_ooc.profile(training_on(pairs())).calls


def test_a_large_data_set_is_not_copied():
    data = np.zeros((1000, 10000), 'f')
    updater = training_on(data)
    tracemalloc.start()
    try:
        with untouched.untouched({'updater': updater}):
            assert tracemalloc.get_traced_memory()[1] < data.nbytes / 10
    finally:
        tracemalloc.stop()


def test_a_batch_that_is_written_to_is_put_back():
    class Scaling(Model):
        def forward(self, x, t):
            x *= 2
            return super().forward(x, t)
    x, t = np.ones((4, 6), 'f'), np.ones((4, 1), 'f')
    chainer_ooc.profile(Scaling(), x, t)
    assert (x == 1).all()
