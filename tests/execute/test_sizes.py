"""P8 where sizes vary behind a beginning that stays: objects in images, of which each has another number."""
import functools

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.graphs import graphs
from chainer_ooc.execute.memory import budget
from chainer_ooc.execute.memory.residency import Residency
from support.combinations import spread
from support.trainings.accounts import checked_accounts, learn_at_the_floor
from support.trainings.ooc_networks import Choosy
from support.trainings.ooc_training import POLICIES, ooc

#: Of the maps only those of whole images move; masks of objects are smaller, and so never among the maps.
BETWEEN_BYTES = 20_000

pytestmark = pytest.mark.usefixtures('verdict_mixes')


class Detector(chainer.Chain):
    """Convolutions over an image, then layers over the objects in it."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.convs = chainer.ChainList(*[L.Convolution2D(None, 6, 3, pad=1) for _ in range(3)])
            self.norm = L.BatchNormalization(6)
            self.box, self.kind = L.Linear(6, 80), L.Linear(80, 5)

    def __call__(self, image, places, kinds):
        h = chainer.Variable(image)
        for conv in self.convs:
            h = F.relu(conv(h))
        h = self.norm(h)
        pooled = F.reshape(F.transpose(h, (0, 2, 3, 1)), (-1, 6))[places]
        found = F.dropout(F.tanh(self.box(pooled)), 0.2)
        return F.softmax_cross_entropy(self.kind(found), kinds) + F.mean(h * h)

    def learn(self, objects, number=0):
        """One iteration; gives the bits of all that it changes."""
        draw = np.random.RandomState(number)
        np.random.seed(number)
        image = draw.uniform(-1, 1, (1, 3, 40, 40)).astype(np.float32)
        loss = self(image, draw.randint(0, 1600, objects), draw.randint(0, 5, objects).astype(np.int32))
        self.cleargrads()
        loss.backward()
        for each in self.params():
            each.array -= 0.01 * each.grad
        return [loss.array.tobytes(), self.norm.avg_mean.tobytes(),
                *[each.grad.tobytes() for _, each in sorted(self.namedparams())]]


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch):
    """So many sizes have to be known before more are expected; else it takes long until they are."""
    monkeypatch.setattr(graphs, 'SIZES', 3)


def trained(largest=60):
    """A model of which several sizes are known, the largest among them, and which was quiet and then was not.

    The last iterations have a known one until no other is waited for.
    """
    model = Detector()
    for number, objects in enumerate((5, largest, 8, 6, largest, 9, 7, *[largest] * 9, 11, 12, *[largest] * 9)):
        model.learn(objects, number)
    return model


def drawn(count=12, most=60):
    """Numbers of objects; hardly one is like another."""
    return [int(each) for each in np.random.RandomState(1).randint(10, most, count)]


def plain(order):
    return _plain(tuple(order))


@functools.cache
def _plain(order):
    with chainer.using_config('ooc', None):
        model = trained()
        return [model.learn(objects, number) for number, objects in enumerate(order)]


def iteration():
    """The one in hand, or the last one."""
    return sessions.current()._iteration


@pytest.mark.parametrize(('policy', 'min_bytes'), spread(
    [*POLICIES, 'pooch', 'superneurons', 'recompute-all', 'mix-3', 'map-all'], [0, BETWEEN_BYTES], every=3))
def test_sizes_that_were_never_seen_run_under_a_plan(policy, min_bytes):
    """Each was unknown, and recorded if the one before was."""
    order, phases, found = drawn(), [], []
    with ooc(policy, min_bytes=min_bytes):
        model = trained()
        with checked_accounts() as wrong:
            for number, objects in enumerate(order):
                found.append(model.learn(objects, number))
                phases.append(chainer_ooc.stats().phase)
                assert iteration().recorder.measures is False
        assert wrong == []
        if policy in ('swap-all', 'recompute-all', 'map-all'):
            assert chainer_ooc.stats().swap + chainer_ooc.stats().recompute >= 4
    assert phases == ['run'] * len(order)
    assert found == plain(order)


@pytest.mark.parametrize(('policy', 'min_bytes'), spread(
    ['keep', 'swap-all', 'pooch', 'superneurons', 'lms', 'mix-3'], [0, BETWEEN_BYTES], every=3))
def test_smaller_sizes_keep_within_a_budget_that_is_enough_for_the_largest(policy, min_bytes):
    order = drawn()
    with ooc(policy, min_bytes=min_bytes):
        found = learn_at_the_floor(trained().learn, order, 60)
    assert found == plain(order)


def test_a_size_that_is_larger_than_all_is_recorded_when_one_comes_again():
    with ooc('swap-all'):
        model = trained()
        known = len(sessions.current().traces())
        assert known >= graphs.SIZES
        model.learn(90)
        assert chainer_ooc.stats().phase == 'run'  # as an estimate of a smaller one
        model.learn(95)
        assert chainer_ooc.stats().phase == 'profile'
        model.learn(80)
        assert chainer_ooc.stats().phase == 'run'
        assert len(sessions.current().traces()) == known + 1


def test_where_sizes_vary_no_iteration_begins_quietly_that_cannot_end_so():
    """It would be unknown then."""
    unknown = []
    with ooc('keep', min_bytes=10**6):
        model = trained()
        for number, objects in enumerate(drawn(40)):
            model.learn(objects, number)
            unknown.append(iteration().following.graph is None)
    assert sum(unknown) <= 2
    assert not any(unknown[5:])


def test_a_few_sizes_are_all_known_and_run_quietly(monkeypatch):
    monkeypatch.setattr(graphs, 'SIZES', 8)
    with ooc('keep', min_bytes=10**6):
        model = Detector()
        for number in range(30):
            model.learn((5, 9, 14, 20)[number % 4])
            quiet = iteration().quiet is not None
            assert quiet or number < 16


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch', 'recompute-all', 'mix-3'])
def test_a_size_in_which_something_else_is_retained_is_another_graph(policy):
    def learn(rows):
        x = chainer.Variable(np.linspace(-1, 1, 3_000, dtype=np.float32).reshape(100, 30))
        h = F.sigmoid(F.tanh(x))
        F.sum(F.sin(Choosy(lambda rows: rows % 2 > 0).apply((F.tanh(h[:rows]),))[0])).backward()
        return x.grad.tobytes()

    order = (10, 20, 30, 40, 51, 61, 71, 12, 13, 14, 15, 26, 37, 48)
    with chainer.using_config('ooc', None):
        want = [learn(rows) for rows in order]
    with ooc(policy):
        assert [learn(rows) for rows in order] == want


def test_dtypes_and_wiring_are_no_sizes():
    def learn(rows, how):
        x = chainer.Variable(np.linspace(-1, 1, 3_000, dtype=np.float32).reshape(100, 30))
        h = F.tanh(x)
        part = F.sigmoid(h[:rows])
        other = {'sum': lambda: part + part, 'twice': lambda: part + F.sin(part), 'half': lambda: F.cast(
            F.cast(part, np.float16) + np.float16(1), np.float32)}[how]()
        F.sum(other).backward()
        return x.grad.tobytes()

    order = [(10 + 7 * number, ('sum', 'twice', 'half')[number % 3]) for number in range(12)]
    with chainer.using_config('ooc', None):
        want = [learn(*each) for each in order]
    with ooc('swap-all'):
        for rows in (10, 20, 30):
            for _ in range(3):
                learn(rows, 'sum')
        assert [learn(*each) for each in order] == want
        for rows in range(11, 19):
            learn(rows, 'sum')
        assert iteration().following.graph.is_loose
        assert [each.label for each in iteration().following.graph.trace.calls] == [
            'Tanh', 'GetItem', 'Sigmoid', 'Add', 'Sum']


def test_room_is_made_for_what_a_larger_size_may_need(monkeypatch):
    """Nothing is known of it but by how much its arrays are larger than the largest that is known."""
    asked, make_room = {False: [0], True: [0]}, Residency.make_room
    monkeypatch.setattr(Residency, 'make_room', lambda memory, nbytes, thorough=False: (
        asked[iteration()._in_backward].append(nbytes) or make_room(memory, nbytes, thorough)))
    with ooc('swap-all', min_bytes=10**6), pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, 'AHEAD_BYTES', 0)
        model = trained()
        before = {each: max(found) for each, found in asked.items()}
        model.learn(1500)
        assert iteration().following.graph.is_loose
    layer_bytes = 1500 * 80 * 4  # what the first layer makes of the objects, and its gradient
    assert before[False] < layer_bytes <= max(asked[False])
    assert before[True] < layer_bytes <= max(asked[True])


class Batches:
    """A perceptron that is given batches of drawn sizes, by number; each comes once."""

    def __init__(self):
        np.random.seed(0)
        self.model = chainer.Sequential(L.Linear(32, 64), F.relu, L.Linear(64, 64), F.relu, L.Linear(64, 5))
        self.optimizer = chainer.optimizers.SGD(0.01).setup(self.model)

    def iterate(self, size):
        batch = np.random.RandomState(size).randn(size, 32).astype(np.float32)
        self.optimizer.update(lambda: F.average(self.model(batch) ** 2))
        return chainer_ooc.stats()


@pytest.mark.parametrize('sizes', [range(100, 160), [130 + (-1) ** each * each for each in range(60)]],
                         ids=['growing', 'from the middle outwards'])
def test_estimates_of_sizes_that_come_once_do_not_add_up(sizes):
    training = Batches()
    with ooc('swap-all', budget='100MB'):
        stats = [training.iterate(size) for size in sizes]
    assert sum(each.phase == 'profile' for each in stats) == 1
    assert max(each.peak_bytes for each in stats) < 2.5 * stats[0].peak_bytes


def test_a_size_that_never_comes_again_is_refused_if_a_smaller_one_does_not_fit():
    training = Batches()
    with ooc('swap-all', budget='1MB'):
        training.iterate(2000)  # nothing is known yet
        with pytest.raises(InfeasibleBudgetError) as raised:
            training.iterate(2001)
        assert training.iterate(1000).phase == 'profile'  # it may fit
    with ooc('swap-all', budget=int(1.02 * raised.value.floor_bytes)):
        assert training.iterate(2002).phase == 'run'
