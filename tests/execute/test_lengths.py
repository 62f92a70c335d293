"""P8 where lengths change: the graph of a short sequence is the beginning of that of a longer one."""
import itertools

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.classify import policies
from chainer_ooc.classify.policies import Policy
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import manager
from chainer_ooc.problem import Decision, Verdict, everything
from support.trainings.accounts import checked_accounts
from support.trainings.ooc_training import POLICIES, ooc

UNITS, WIDE, BATCH = 24, 400, 6
LENGTHS = 7, 4, 9, 5
#: Of the maps only what is wide for each word moves.
BETWEEN_BYTES = 5_000

pytestmark = pytest.mark.usefixtures('verdict_mixes')


class Recurrent(chainer.Chain):
    """Its loss is summed word by word, as in language models."""

    def __init__(self, is_wide=False):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.word, self.state, self.next = L.EmbedID(50, UNITS), L.LSTM(UNITS, UNITS), L.Linear(UNITS, 50)
            if is_wide:
                self.spread, self.narrow = L.Linear(UNITS, WIDE), L.Linear(WIDE, UNITS)

    def __call__(self, words):
        self.state.reset_state()
        loss = np.float32(0)
        for before, word in itertools.pairwise(words):
            h = self.state(self.word(before))
            if hasattr(self, 'spread'):
                h = self.narrow(F.sigmoid(F.tanh(self.spread(h))))
            loss += F.softmax_cross_entropy(self.next(h), word)
        return loss

    def learn(self, length, number=0):
        """One iteration; gives the bits of its loss and gradients."""
        loss = self(np.random.RandomState(number).randint(0, 50, (length, BATCH)).astype(np.int32))
        self.cleargrads()
        loss.backward()
        for each in self.params():
            each.array -= 0.1 * each.grad
        return [loss.array.tobytes(), *[each.grad.tobytes() for _, each in sorted(self.namedparams())]]


def trained(is_wide=False):
    """A model that has met each length so often that all are recorded."""
    model = Recurrent(is_wide)
    for length in LENGTHS * 4:
        model.learn(length)
    return model


def plain(order, is_wide=False):
    """What plain Chainer makes of these iterations of a model that is trained already."""
    with chainer.using_config('ooc', None):
        model = trained(is_wide)
        return [model.learn(length, number) for number, length in enumerate(order)]


def iteration():
    """The one in hand, or the last one."""
    return manager.current()._iteration


def length_followed():
    """The length whose graph the last iteration has followed."""
    calls = iteration().following.graph.trace.calls
    return 1 + sum(each.label == 'SoftmaxCrossEntropy' for each in calls)


def drawn(seed, count=12):
    return [LENGTHS[each] for each in np.random.RandomState(seed).randint(0, len(LENGTHS), count)]


@pytest.mark.parametrize(('is_wide', 'min_bytes'), [(False, 0), (True, BETWEEN_BYTES)])
@pytest.mark.parametrize('policy', [*POLICIES, 'pooch', 'recompute-all', 'mix-3'])
def test_lengths_that_change_run_under_their_plans(policy, min_bytes, is_wide):
    """Those that a longer one begins like were unknown each time, and recorded anew."""
    order, phases, found = drawn(0), [], []
    with ooc(policy, min_bytes=min_bytes):
        model = trained(is_wide)
        for number, length in enumerate(order):
            found.append(model.learn(length, number))
            phases.append(chainer_ooc.stats().phase)
            assert length_followed() == length
    assert phases == ['run'] * len(order)
    assert found == plain(order, is_wide)


@pytest.mark.parametrize('policy', ['keep', 'pooch', 'auto'])
def test_lengths_that_change_run_quietly_where_all_fits(policy):
    order, found = drawn(1), []
    with ooc(policy):
        model = trained()
        for number, length in enumerate(order):
            found.append(model.learn(length, number))
            assert iteration().quiet is not None
            assert chainer_ooc.stats().phase == 'run'
            assert length_followed() == length
    assert found == plain(order)


@pytest.mark.parametrize('policy', ['swap-all', 'recompute-all', 'mix-4', 'map-all'])
def test_what_never_moves_is_only_counted_whatever_the_length_is(policy):
    order, found = drawn(2), []
    with ooc(policy, min_bytes=BETWEEN_BYTES):
        model = trained(is_wide=True)
        with checked_accounts() as wrong:
            for number, length in enumerate(order):
                found.append(model.learn(length, number))
                assert len(iteration()._unmoved._counted) >= 3 * (length - 2)
                assert length_followed() == length
                stats = chainer_ooc.stats()
                assert stats.swap + stats.recompute > 0
        assert wrong == []
    assert found == plain(order, is_wide=True)


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch', 'superneurons', 'mix-3'])
@pytest.mark.parametrize('min_bytes', [0, BETWEEN_BYTES])
def test_the_floor_that_is_named_is_enough_for_all_lengths(policy, min_bytes):
    order, found = drawn(3), []
    with ooc(policy, min_bytes=min_bytes):
        model = trained(is_wide=True)
        with chainer.using_config('ooc_budget', 1), pytest.raises(InfeasibleBudgetError) as refused:
            model.learn(max(LENGTHS))
        with chainer.using_config('ooc_budget', int(1.02 * refused.value.floor_bytes) + 4_096), (
                checked_accounts()) as wrong:
            for number, length in enumerate(order):
                found.append(model.learn(length, number))
                stats = chainer_ooc.stats()
                assert stats.phase == 'run'
                assert stats.peak_bytes <= stats.budget_bytes
        assert wrong == []
    assert found == plain(order, is_wide=True)


def test_what_a_plan_counts_as_gone_leaves_when_it_is_followed_from_there_on(monkeypatch):
    """Forward was that of the longer graph, whose plan keeps everything."""
    def decide(problem):
        is_short = len(problem.trace.calls) < 50
        return Decision(everything(problem.trace, problem.min_bytes) if is_short
                        else (Verdict.KEEP,) * len(problem.trace.maps))
    monkeypatch.setitem(policies.POLICIES, 'short ones', Policy('short ones', 'for tests', decide))
    model, order = Recurrent(is_wide=True), (9, 4, 9, 4, 4, 9, 4)
    with ooc('short ones', min_bytes=BETWEEN_BYTES):
        for length in (9, 4, 9, 4, 9, 4):
            model.learn(length)
        for number, length in enumerate(order):
            model.learn(length, number)
            stats = chainer_ooc.stats()
            assert length_followed() == length
            assert (stats.swap > 0) is (length == 4)
            assert length == 9 or stats.swapped_out_bytes > 0


@pytest.mark.parametrize(('policy', 'min_bytes'), [('keep', 10**6), ('swap-all', BETWEEN_BYTES), ('swap-all', 0)])
def test_a_length_that_comes_for_the_first_time_is_another_graph(policy, min_bytes):
    order = 6, 9, 8, 3, 10, 6, 9, 3
    with ooc(policy, min_bytes=min_bytes):
        model = trained(is_wide=True)
        assert [model.learn(length, number) for number, length in enumerate(order)] == plain(order, is_wide=True)


@pytest.mark.parametrize('policy', ['keep', 'swap-all'])
def test_graphs_that_were_alike_once_and_part_are_not_taken_for_each_other(policy):
    """The third begins like the first, parts from it, and ends like the second."""
    def forward(kind):
        h = F.tanh(chainer.Variable(np.linspace(-1, 1, 600, dtype=np.float32).reshape(6, 100)))
        g = h if kind == 1 else F.sigmoid(h)
        for _ in range(4):
            h = F.sin(h)
        return F.sum(h * (g if kind != 2 else h))

    def learn(kind):
        loss = forward(kind)
        loss.backward(retain_grad=False)
        return loss.array.tobytes()
    with chainer.using_config('ooc', None):
        want = [learn(kind) for kind in range(3)]
    with ooc(policy, min_bytes=1_000):
        for number in range(40):
            kind = (number * number) % 3 if number % 4 else 2
            assert learn(kind) == want[kind]
