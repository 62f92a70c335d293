"""P8 where lengths change: the graph of a short sequence is the beginning of that of a longer one."""
import contextlib
import functools
import itertools
import types
from dataclasses import replace

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc import config
from chainer_ooc.classify import policies
from chainer_ooc.classify.policies import Policy
from chainer_ooc.errors import InfeasibleBudgetError, LostMapError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.graphs.graphs import Graphs
from chainer_ooc.execute.memory import budget
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.recorder import Recorder
from chainer_ooc.problem import Decision, Verdict, can_recompute, everything
from support.combinations import spread
from support.trainings.accounts import checked_accounts, learn_at_the_floor
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
    return _plain(tuple(order), is_wide)


@functools.cache
def _plain(order, is_wide):
    with chainer.using_config('ooc', None):
        model = trained(is_wide)
        return [model.learn(length, number) for number, length in enumerate(order)]


def iteration():
    """The one in hand, or the last one."""
    return sessions.current()._iteration


def length_followed():
    """The length whose graph the last iteration has followed."""
    calls = iteration().following.graph.trace.calls
    return 1 + sum(each.label == 'SoftmaxCrossEntropy' for each in calls)


def drawn(seed, count=12):
    return [LENGTHS[each] for each in np.random.RandomState(seed).randint(0, len(LENGTHS), count)]


@pytest.mark.parametrize(('policy', 'is_wide'), spread(
    [*POLICIES, 'pooch', 'recompute-all', 'mix-3'], [False, True], every=3))
def test_lengths_that_change_run_under_their_plans(policy, is_wide):
    """Those that a longer one begins like were unknown each time, and recorded anew."""
    min_bytes = BETWEEN_BYTES if is_wide else 0
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


@pytest.mark.parametrize('policy', spread(['swap-all', 'recompute-all', 'mix-4', 'map-all'], every=2))
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


@pytest.mark.parametrize(('policy', 'min_bytes'), spread(
    ['keep', 'swap-all', 'pooch', 'superneurons', 'mix-3'], [0, BETWEEN_BYTES], every=3))
def test_the_floor_that_is_named_is_enough_for_all_lengths(policy, min_bytes):
    order = drawn(3)
    with ooc(policy, min_bytes=min_bytes):
        found = learn_at_the_floor(trained(is_wide=True).learn, order, max(LENGTHS))
    assert found == plain(order, is_wide=True)


class Detector(chainer.Chain):
    """As many boxes as there are objects behind layers that are the same for all images."""

    def __init__(self):
        np.random.seed(0)
        super().__init__()
        with self.init_scope():
            self.first, self.second = (L.Convolution2D(each, 8, 3, pad=1) for each in (3, 8))
            self.norm, self.norm_2 = L.BatchNormalization(8), L.BatchNormalization(8)
            self.box, self.kind = L.Linear(128, 64), L.Linear(64, 5)
        self.optimizer = chainer.optimizers.SGD().setup(self)

    def look(self, images):
        maps = F.max_pooling_2d(F.relu(self.norm(self.first(images))), 2)
        return F.relu(self.norm_2(self.second(maps)))

    def learn(self, objects, number=0):
        random = np.random.default_rng(number)
        np.random.seed(number)
        images = random.standard_normal((2, 3, 16, 16), dtype=np.float32)
        boxes = F.get_item(self.look(images), (np.arange(objects) % 2,))[:, :, :4, :4]
        boxes = F.dropout(F.relu(self.box(boxes)), 0.3)
        loss = F.softmax_cross_entropy(self.kind(boxes), np.zeros(objects, np.int32))
        self.cleargrads()
        loss.backward()
        self.optimizer.update()
        return loss.array


class Repeated(chainer.ChainList):
    """Layers that are used in turn, as often as is said; their gradients are added up."""

    def __init__(self):
        np.random.seed(0)
        super().__init__(*(L.Linear(64, 64) for _ in range(5)))
        self.optimizer = chainer.optimizers.Adam().setup(self)

    def learn(self, lengths, number=0):
        random = np.random.default_rng(number)
        np.random.seed(number)
        losses = []
        self.cleargrads()
        for length in lengths:
            maps = chainer.Variable(random.standard_normal((256, 64), dtype=np.float32))
            for layer in itertools.islice(itertools.cycle(self), length):
                maps = F.dropout(F.tanh(layer(maps)), 0.1)
            loss = F.sum(maps * maps)
            loss.backward()
            losses.append(loss.array)
        self.optimizer.update()
        return losses


@pytest.mark.parametrize('policy', ['pooch', 'sublinear', 'superneurons', 'tensor-cache', 'mix-3'])
@pytest.mark.parametrize(('model', 'sizes'), [(Detector, (3, 200)), (Repeated, ((1, 6), (5, 4)))])
def test_the_floor_is_enough_where_the_plan_of_another_graph_was_followed_in_the_beginning(policy, model, sizes):
    """That need not discard the same maps. A recipe that was written later held an input that was to die (Detector);
    what had been discarded was made again in backward, where the plan had no room for that (Repeated).
    """
    def learn(way):
        trained = model()
        for size in sizes * 4:
            trained.learn(size)
        return way(trained)

    with ooc(policy, min_bytes=0):
        found = learn(lambda trained: learn_at_the_floor(trained.learn, sizes * 3, sizes[0]))
    with chainer.using_config('ooc', None):
        assert found == learn(lambda trained: [trained.learn(each, number) for number, each in enumerate(sizes * 3)])


@pytest.fixture
def parted(monkeypatch):
    """A policy that recomputes what can be of few objects, and swaps all of many."""
    def decide(problem):
        verdicts = everything(problem.trace, problem.min_bytes)
        if problem.trace.maps_bytes < 500_000:
            again = can_recompute(problem.trace, problem.min_bytes)
            verdicts = tuple(Verdict.RECOMPUTE if each else verdict
                             for each, verdict in zip(again, verdicts, strict=True))
        return Decision(verdicts)
    monkeypatch.setitem(policies.POLICIES, 'parted', Policy('parted', 'for tests', decide))


@pytest.mark.usefixtures('parted')
def test_nothing_is_made_again_for_a_graph_whose_plan_swaps_all():
    """Though the plan of the other, which was followed as far as they are alike, discards it there, or behind that."""
    model, sizes = Detector(), (3, 200)

    def learn(size, number=0):
        found = model.learn(size, number)
        stats = chainer_ooc.stats()
        assert (stats.recomputed_calls > 0, stats.swapped_out_bytes > 0) == (size == 3, True)
        return found
    with ooc('parted', min_bytes=0):
        for size in sizes * 4:
            model.learn(size)
        learn_at_the_floor(learn, sizes * 3, sizes[0])


@pytest.mark.usefixtures('parted')
def test_what_has_room_to_be_made_again_is_discarded():
    model, sizes = Detector(), (3, 200)
    with ooc('parted', min_bytes=0, budget=10 ** 9):
        for size in sizes * 4:
            model.learn(size)
    assert chainer_ooc.stats().recomputed_calls > 0, 'of what the plan of the other has discarded'


@pytest.mark.parametrize('verdict', [Verdict.SWAP, Verdict.RECOMPUTE])
def test_what_a_plan_counts_as_gone_leaves_when_it_is_followed_from_there_on(monkeypatch, verdict):
    """Forward was that of the longer graph, whose plan keeps everything; there are no recipes then.

    Swap-ins began, and were over, before the maps had left: each of them was waited for later.
    """
    def decide(problem):
        moved = everything(problem.trace, problem.min_bytes)
        is_short = len(problem.trace.calls) < 50
        return Decision(tuple(verdict if is_short and each is Verdict.SWAP else Verdict.KEEP for each in moved))
    monkeypatch.setitem(policies.POLICIES, 'short ones', Policy('short ones', 'for tests', decide))
    model = Recurrent(is_wide=True)
    with ooc('short ones', min_bytes=BETWEEN_BYTES):
        for length in (9, 4) * 5:
            model.learn(length)
        for number, length in enumerate((9, 4, 9, 4, 4, 9, 4)):
            model.learn(length, number)
            stats = chainer_ooc.stats()
            assert length_followed() == length
            assert (stats.swap + stats.recompute > 0) is (length == 4)
            if length == 4:
                assert stats.swapped_out_bytes + stats.recomputed_calls > 0
                assert stats.faults == 0 or verdict is Verdict.RECOMPUTE


def test_the_graph_that_an_iteration_turned_out_to_be_learns_what_is_read_later():
    """The longer one did, which it began as, so that the shorter one's map was lost each time."""
    x = np.linspace(-1, 1, 30_000, dtype=np.float32).reshape(100, 300)

    def learn(length, reads):
        h, loss, node = chainer.Variable(x), 0, None
        for number in range(length):
            h = F.tanh(F.dropout(h, 0.5))
            loss += F.sum(h)
            node = h.node if number == 1 else node
        del h
        loss.backward()
        memory = sessions.current().memory
        memory.spare_at_most(0)  # something else needs the room
        return node.data is not None if reads else None

    with ooc('keep', min_bytes=0), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Following, 'stays', lambda following, graph: False)
        for length in (6, 4) * 5:
            learn(length, reads=False)
        learn(6, reads=False)
        with pytest.raises(LostMapError):
            learn(4, reads=True)
        for _ in range(2):
            learn(6, reads=False)
            assert learn(4, reads=True)


def test_a_plan_that_is_made_when_backward_begins_counts_the_gradients_that_stood_in_forward():
    """The program has cleared them by then."""
    def forward_bytes(budget_bytes, length):
        with chainer.using_config('ooc_budget', budget_bytes):
            model.learn(length)
            assert length_followed() == 4
            return iteration().following.orders.standing.forward_bytes

    with ooc('keep', min_bytes=BETWEEN_BYTES):
        model = Recurrent(is_wide=True)
        for length in (9, 4) * 5:
            model.learn(length)
        as_itself = forward_bytes(10**9, 4)
        model.learn(9)
        assert forward_bytes(2 * 10**9, 4) == as_itself
        assert as_itself >= 2 * sum(each.array.nbytes for each in model.params())


def test_lengths_that_come_once_have_few_iterations_recorded_for_them():
    """The wait for the like of each was twice as long as for the one before, for ever."""
    def learn(length):
        h, loss = chainer.Variable(np.ones(10, 'f')), 0
        for _ in range(length):
            h = F.tanh(h)
            loss += F.sum(h)
        loss.backward()
        return iteration().recorder.measures

    draw = np.random.RandomState(0)
    with ooc('keep'):
        recorded = [learn(12 + number // 20 if number % 20 == 10 else draw.randint(3, 7)) for number in range(600)]
    assert sum(recorded[300:]) < 100


@pytest.mark.parametrize(('policy', 'min_bytes'), [('keep', 10**6), ('swap-all', BETWEEN_BYTES), ('swap-all', 0)])
def test_a_length_that_comes_for_the_first_time_is_another_graph(policy, min_bytes):
    order = 6, 9, 8, 3, 10, 6, 9, 3
    with ooc(policy, min_bytes=min_bytes):
        model = trained(is_wide=True)
        assert [model.learn(length, number) for number, length in enumerate(order)] == plain(order, is_wide=True)


@pytest.mark.parametrize(('policy', 'min_bytes'), [('keep', 10**6), ('swap-all', 0), ('swap-all', 10**6)])
def test_a_graph_that_parted_before_is_not_taken_for_what_is_like_it_again(policy, min_bytes):
    """What runs begins like the first graph, and goes on as the second does at the same place."""
    def learn(*functions):
        h = chainer.Variable(np.linspace(-1, 1, 600, dtype=np.float32).reshape(6, 100))
        for function in functions:
            h = function(h)
        F.sum(h).backward()
        return h.array.tobytes()

    first, second, third = (F.tanh, F.sin, F.exp), (F.tanh, F.cos, F.sigmoid), (F.tanh, F.sin, F.sigmoid)
    with chainer.using_config('ooc', None):
        want = learn(*third)
    with ooc(policy, min_bytes=min_bytes):
        for functions in (first, second) * 4:
            learn(*functions)
            assert len(sessions.current().traces()) <= 2
        learn(*first)
        assert learn(*third) == want
        assert iteration().following.graph is None and iteration().quiet is None


def test_room_is_made_for_the_largest_of_the_graphs_that_a_call_may_belong_to(monkeypatch):
    """What tells them apart is how much a call gives, which is known afterwards."""
    def learn(times):
        wide = F.sigmoid(F.tanh(chainer.Variable(np.ones((100, 300), np.float32))))
        F.sum(F.tile(F.tanh(F.tanh(F.sum(wide, axis=1))), times)).backward()

    asked, make_room = [], Residency.make_room
    monkeypatch.setattr(budget, 'AHEAD_BYTES', 0)
    monkeypatch.setattr(Residency, 'make_room', lambda memory, nbytes, thorough=False: (
        asked.append(nbytes) or make_room(memory, nbytes, thorough)))
    with ooc('swap-all', min_bytes=50_000):
        for times in (2, 110) * 3:
            learn(times)
        for times in (110, 2, 2, 110):
            asked.clear()
            learn(times)
            assert len(iteration()._unmoved._counted) >= 2
            assert any(110 * 100 * 4 <= each < 50_000 for each in asked)


def test_a_write_to_what_was_counted_before_another_plan_runs_calls_again_on_it_is_noticed():
    """Of the first graph's plan no call that runs again reads it, and the program writes through a view of it."""
    def learn(is_long, is_written=False, look=lambda: None):
        x = chainer.Variable(np.linspace(-1, 1, 30_000, dtype=np.float32).reshape(100, 300))
        narrow = F.tanh(F.sum(F.sigmoid(F.tanh(x)), axis=1))
        view = F.reshape(narrow, (10, 10))
        if is_long:
            wide = F.sigmoid(F.broadcast_to(F.reshape(narrow, (100, 1)), (100, 300)))
            loss = F.sum(F.tanh(wide)) + F.sum(view)
            del wide
        else:
            loss = F.sum(F.sin(narrow)) + F.sum(view)
        if is_written:
            view.array[:] = 0.25
        del narrow, view
        look()
        loss.backward()
        return loss.array.tobytes(), x.grad.tobytes()

    def look():
        """Of what may be written to, and was only counted, nothing is left."""
        assert iteration()._unmoved._counted <= iteration().following.orders.unmoved

    with chainer.using_config('ooc', None):
        want, written = (learn(False), learn(True)), learn(True, is_written=True)
    with ooc('recompute-all', min_bytes=50_000):
        for is_long in (False, True) * 4:
            assert learn(is_long) == want[is_long]
        assert chainer_ooc.stats().recompute > 1
        learn(False)
        learn(True, look=look)
        learn(False)
        assert learn(True, is_written=True) == written


def test_a_graph_whose_plan_moves_something_by_now_is_followed_and_not_quiet():
    """It counted as unknown: what came next was recorded, and floors were in doubt."""
    def learn(is_wide):
        h = F.sin(F.tanh(chainer.Variable(np.linspace(-1, 1, 100, dtype=np.float32).reshape(100, 1))))
        F.sum(F.tanh(F.sigmoid(F.broadcast_to(h, (100, 300)))) if is_wide else F.exp(h)).backward()
        return iteration().quiet is not None

    with ooc('keep', min_bytes=50_000):
        for is_wide in (True, False) * 4:
            quiet = learn(is_wide)
        assert quiet
        with chainer.using_config('ooc', 'swap-all'):
            learn(False)  # of which no map is so large
            for is_wide in (True, False) * 4:
                assert not learn(is_wide)
                assert iteration().following.graph is not None and not iteration().recorder.measures
                assert (chainer_ooc.stats().swap > 0) is is_wide
            with chainer.using_config('ooc_budget', 1), pytest.raises(InfeasibleBudgetError) as refused:
                learn(False)
            assert refused.value.doubt == ''


class TwoCells(chainer.Chain):
    """Two recurrent links over chunks of a text. What they carry over is in their state."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.word, self.first, self.next = L.EmbedID(20, 8), L.LSTM(8, 8), L.Linear(8, 20)
            self.second = L.StatefulGRU(8, 8)

    def learn(self, length, number=0):
        """One chunk; a chunk of one word begins anew."""
        if length == 1:
            self.first.reset_state()
            self.second.reset_state()
        words = np.random.RandomState(number).randint(0, 20, (length + 1, 6)).astype(np.int32)
        loss = sum(F.softmax_cross_entropy(self.next(self.second(self.first(self.word(before)))), after)
                   for before, after in itertools.pairwise(words))
        self.cleargrads()
        loss.backward()
        loss.unchain_backward()
        for each in self.params():
            if each.grad is not None:
                each.array -= 0.1 * each.grad
        return [loss.array.tobytes(), *[each.array.tobytes() for _, each in sorted(self.namedparams())]]


@pytest.mark.parametrize(('policy', 'min_bytes'), spread(
    ['keep', 'swap-all', 'pooch', 'recompute-all', 'mix-3'], [0, 10**6], every=3))
def test_the_same_calls_whose_steps_run_in_another_order_are_another_graph(policy, min_bytes):
    """After a chunk that began anew Chainer goes backward in another order: each replaced the other's recording."""
    def train(note=lambda: None):
        model, found = TwoCells(), []
        for number in range(27):
            found.append(model.learn((3, 1, 3)[number % 3], number))
            note()
        return found

    phases = []
    with ooc(policy, min_bytes=min_bytes):
        found = train(lambda: phases.append(chainer_ooc.stats().phase))
        orders = {tuple(each.call for each in trace.steps) for trace in sessions.current().traces()
                  if len(trace.calls) > 60}
    assert phases[15:] == ['run'] * 12
    assert len(orders) == 2
    with chainer.using_config('ooc', None):
        assert found == train()


def test_another_order_of_steps_is_looked_for_among_those_that_began_alike():
    """Not where a step is like the one that runs, and one before it was not."""
    with ooc('swap-all'):
        TwoCells().learn(3)
        trace, = sessions.current().traces()
    first, second, third, *others = trace.steps

    def added(*calls):
        steps = [replace(each, call=call) for each, call in zip((first, second, third), calls, strict=True)]
        return graphs.add(replace(trace, steps=(*steps, *others)))

    graphs, (one, two, three) = Graphs(), (first.call, second.call, third.call)
    other, alike, in_hand = added(two, one, one), added(one, three, one), added(one, two, three)
    memory = types.SimpleNamespace(backend=types.SimpleNamespace(reserve=None), has_cut_off=None)
    following = Following(graphs, config.current(), Recorder(), memory, contextlib.nullcontext)
    following.graph, following.same_calls = in_hand, [other, alike]
    assert following.stepped(0, two, '') == [other]
    assert following.stepped(1, three, '') == [alike]
    assert following.stepped(2, one, '') == []
