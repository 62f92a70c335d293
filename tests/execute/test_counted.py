"""Unknown graphs where many are known: where all has room they run as in plain Chainer, and are counted."""
import functools
import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.graphs.graphs import MANY_GRAPHS, ROOM_FOR_UNKNOWN
from chainer_ooc.execute.iteration.compared import Compared, Counted
from chainer_ooc.execute.lessons import RECORDED_OF
from chainer_ooc.execute.storage.account import find
from support.combinations import spread
from support.interrupting import interrupted_at
from support.trainings.ooc_training import ooc

UNITS = 32
WARM_UP = 3 * MANY_GRAPHS  # what begins like a known graph is not recorded at once


class Reader(chainer.Chain):
    """A recurrent network on words; `change` runs in the middle."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.step, self.last = L.Linear(UNITS, UNITS), L.Linear(UNITS, 1)
        self.change = lambda h: h

    def __call__(self, words):
        h = chainer.Variable(np.zeros_like(words[0]))
        for number, word in enumerate(words):
            h = F.tanh(self.step(h) + word)
            if number == len(words) // 2:
                h = self.change(h)
        return F.sum(self.last(h))


def sentence(number, batchsize=None, words=None):
    """Words whose first has a batch size that no other sentence has."""
    batchsize = batchsize or number + 3
    return list(np.random.RandomState(number).uniform(-1, 1, (words or 3 + number % 5, batchsize, UNITS)).astype('f'))


def iterate(model, words, optimizer=None):
    """One iteration; gives the bits of its loss and gradients."""
    loss = model(words)
    model.cleargrads()
    loss.backward()
    if optimizer is not None:
        optimizer.update()
    return [loss.array.tobytes(), *[each.grad.tobytes() for _, each in sorted(model.namedparams())]]


def expected(words, change=None):
    """What plain Chainer makes of one iteration."""
    model = Reader()
    model.change = change or model.change
    with chainer.using_config('ooc', None):
        return iterate(model, words)


def is_counted():
    """Whether the iteration in hand, or the last one, was counted up to now."""
    return isinstance(sessions.current()._iteration.quiet, Counted)


def next_is_recorded():
    """As one of so many unknown graphs is."""
    sessions.current()._patience._passed_over = RECORDED_OF - 1


def warm(model, first=0):
    """Runs graphs of which each is another until they are counted."""
    for number in range(first, first + WARM_UP):
        iterate(model, sentence(number))
    assert is_counted()


@pytest.fixture
def model():
    """One whose graphs are counted."""
    model = Reader()
    with ooc('pooch'):
        warm(model)
        yield model


def train():
    model = Reader()
    optimizer = chainer.optimizers.Adam().setup(model)
    return [iterate(model, sentence(number), optimizer) for number in range(WARM_UP)]


@functools.cache
def plain():
    with chainer.using_config('ooc', None):
        return train()


@pytest.mark.parametrize('policy', spread(list(chainer_ooc.policies()), every=2))
def test_bits_are_those_of_plain_chainer(policy):
    expected_bits = plain()
    with ooc(policy, min_bytes=1 << 20):
        found = train()
        assert is_counted()
    assert found == expected_bits


def test_those_that_begin_like_known_ones_are_counted_though_small_maps_may_move():
    model = Reader()
    with ooc('pooch', min_bytes=0):
        for number in range(3 * MANY_GRAPHS):
            words = sentence(number, batchsize=3 + number % 2, words=3 + number)
            loss = model(words)  # the graph before lives until the program has this one
            model.cleargrads()
            loss.backward()
        assert is_counted()
        assert chainer_ooc.stats().swapped_out_bytes == 0


def test_a_policy_that_moves_maps_goes_on_to(model):
    model = Reader()
    with ooc('swap-all', min_bytes=0):
        for number in range(WARM_UP):
            assert iterate(model, sentence(number)) == expected(sentence(number))
        assert not is_counted()
        assert chainer_ooc.stats().swapped_out_bytes > 0


def test_few_of_them_are_recorded():
    model = Reader()
    with ooc('pooch'):
        warm(model)
        phases = []
        for number in range(WARM_UP, WARM_UP + 2 * RECORDED_OF):
            iterate(model, sentence(number))
            phases.append(chainer_ooc.stats().phase)
    assert phases.count('profile') == 2


def test_one_that_comes_again_is_known_some_day(model):
    words = sentence(1000)
    for _ in range(RECORDED_OF + 3):
        iterate(model, words)
    assert sessions.current().plan() is not None
    assert chainer_ooc.stats().predicted_seconds is not None


def test_nothing_is_known_of_what_is_counted_and_its_peak_is_no_less_than_it_needs(model):
    words = sentence(1000, batchsize=64)
    loss = model(words)
    assert find(loss.array) is None
    model.cleargrads()
    loss.backward()
    stats = chainer_ooc.stats()
    assert stats.phase == 'run'
    assert stats.predicted_seconds is None
    model = Reader()
    with ooc('keep'):
        iterate(model, words)
        assert stats.peak_bytes >= chainer_ooc.stats().peak_bytes


def with_constants(h, width=UNITS):
    """Arrays from outside, of which little is made."""
    for number in range(1, 4):
        h = h + F.sum(F.matmul(np.full((1, UNITS), number, 'f'), np.full((UNITS, width), number, 'f')))
    return h


def with_views(h):
    for _ in range(200):
        h = F.reshape(h, h.shape[::-1])
    return h


@pytest.mark.parametrize(('known', 'new'), [
    (with_constants, functools.partial(with_constants, width=200 * UNITS)), (with_views, lambda h: h)])
def test_what_comes_from_outside_is_counted_and_views_are_not(known, new):
    """Only what calls gave was: views among it, by which known graphs seemed to need little of that."""
    words, model = sentence(1000, batchsize=64, words=9), Reader()
    with ooc('pooch'):
        model.change = known
        warm(model)
        model.change = new
        iterate(model, words)
        assert is_counted()
        stats = chainer_ooc.stats()
    chainer_ooc.reset()
    with ooc('keep'):
        iterate(model, words)
        assert stats.peak_bytes >= chainer_ooc.stats().peak_bytes


def test_a_function_of_a_kind_that_no_graph_has_is_recorded(model):
    """Nobody knows what it allocates: a convolution 25 times what it is given, which no budget saw."""
    def convolve(h):
        return F.reshape(F.convolution_2d(F.reshape(h, (1, 1, *h.shape)), np.ones((1, 1, 5, 5), 'f'), pad=2), h.shape)

    model.change = convolve
    for number in range(1000, 1002):
        words = sentence(number)
        assert iterate(model, words) == expected(words, convolve)
        assert not is_counted()
    assert sessions.current().plan() is None
    assert sessions.current()._iteration.recorder.measures
    iterate(model, sentence(1002))
    assert is_counted()


def test_a_call_that_fails_has_no_iteration_recorded_whatever_its_kind_is(model):
    """Nobody knows what a kind needs that no graph has; one that always fails was never known."""
    def fails(h):
        with pytest.raises(IndexError):
            Failing().apply((h,))
        return h

    class Failing(chainer.FunctionNode):
        def forward(self, inputs):
            raise IndexError

    model.change = fails
    phases = []
    for number in range(1000, 1020):
        assert iterate(model, sentence(number)) == expected(sentence(number), fails)
        phases.append(sessions.current()._iteration.recorder.measures)
    model.change = lambda h: h
    assert not any(phases[3:])
    iterate(model, sentence(1020))
    assert is_counted()



def test_a_batch_that_is_too_large_is_refused():
    """It was neither counted nor recorded, as memory seemed ample."""
    model = Reader()
    with ooc('pooch', budget=5_000_000):
        warm(model)
        with pytest.raises(InfeasibleBudgetError) as refused:  # noqa: PT012  in which of them is left open
            for number in range(3):
                F.sum(model.last(np.ones((number + 50_000, UNITS), 'f'))).backward()
    assert refused.value.floor_bytes > 50_000 * UNITS * 4


def test_one_that_is_too_large_goes_on_with_an_account():
    large = sentence(1000, batchsize=2048, words=40)
    with ooc('keep'):
        iterate(Reader(), large)
        most_bytes = chainer_ooc.stats().peak_bytes
    chainer_ooc.reset()
    model = Reader()
    with ooc('pooch', min_bytes=0, budget=most_bytes // 2):
        warm(model)
        assert iterate(model, large) == expected(large)
        assert not is_counted()
        stats = chainer_ooc.stats()
        assert stats.swapped_out_bytes > 0
        assert stats.peak_bytes <= stats.budget_bytes


def test_one_that_grows_leaves_room_for_earlier_ones_that_the_program_holds(model):
    """It asked for room beside the account alone, in which the maps of quiet iterations are not."""
    iterate(model, sentence(1000))
    needs = sessions.current()._iteration.following.ample
    with chainer.using_config('ooc_budget', 12 * needs.most_bytes), chainer.using_config('ooc_min_bytes', 0):
        held, quiet = [], sessions.current()._quiet_iterations
        while sum(each.quiet.maps_bytes for each in quiet._before) < 5 * needs.most_bytes:
            held.append(model(sentence(1001 + len(held), batchsize=24, words=2)))
            held[-1].backward()
            assert is_counted()
        large = sentence(2000, batchsize=24, words=18)  # needs some five times as much as the largest
        loss = model(large)
        assert sessions.current()._iteration.was_quiet
        assert not is_counted()
        model.cleargrads()
        loss.backward()
        stats = chainer_ooc.stats()
        assert stats.peak_bytes <= stats.budget_bytes
    assert loss.array.tobytes() == expected(large)[0]


def test_without_room_for_twice_the_largest_each_is_recorded():
    with ooc('pooch'):
        model = Reader()
        for number in range(WARM_UP):
            iterate(model, sentence(number))
        most_bytes = max(each.most_bytes for each in sessions.current().traces())
        steady_bytes = sessions.current()._parameters.beside().total_bytes
    chainer_ooc.reset()
    model = Reader()
    seen = []
    model.change = lambda h: seen.append(sessions.current()._iteration.following.ample) or h
    with ooc('pooch', budget=steady_bytes + round(1.2 * ROOM_FOR_UNKNOWN / 2 * most_bytes)):
        for number in range(WARM_UP):
            assert iterate(model, sentence(number)) == expected(sentence(number))
            assert chainer_ooc.stats().peak_bytes <= chainer_ooc.stats().budget_bytes
    assert seen == WARM_UP * [None]


CHANGES = {
    'parameter that is new': lambda h: h * chainer.Parameter(np.full(h.shape, 2, np.float32)),
    'double backprop': lambda h: h + chainer.grad([F.sum(h ** 3)], [h], enable_double_backprop=True)[0],
    'a backward pass of its own': lambda h: (F.sum(h * h).backward(), h)[1],
}


@pytest.mark.parametrize('change', CHANGES)
def test_what_the_account_would_lack_is_noticed(model, change):
    model.change = CHANGES[change]
    words = sentence(1000)
    assert iterate(model, words) == expected(words, CHANGES[change])
    assert not is_counted()


def test_written_maps_and_held_graphs(model):
    def run():
        held, found = [], []
        for number in range(1000, 1006):
            words = sentence(number)
            shown = []
            model.change = lambda h, shown=shown: shown.append(h) or h
            loss = model(words)
            shown[0].array[...] *= 2
            model.cleargrads()
            loss.backward()
            held.append(loss)
            found += [shown[0].array.tobytes(), *[each.grad.tobytes() for each in model.params()]]
            if len(held) > 2:
                held.pop(0).backward()
        return found

    found = run()
    with chainer.using_config('ooc', None):
        assert found == run()


def test_another_thread_that_trains_ends_it(model):
    def train():
        with ooc('pooch'):
            iterate(Reader(), sentence(1))

    def beside(h):
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        return h

    model.change = beside
    loss = model(sentence(1000))
    assert not is_counted()
    loss.backward()
    assert loss.array.tobytes() == expected(sentence(1000))[0]


def test_beside_another_thread_that_trains_nothing_is_counted(model):
    trained, ended = threading.Event(), threading.Event()

    def train():
        with ooc('pooch'):
            iterate(Reader(), sentence(1))
            trained.set()
            ended.wait()

    thread = threading.Thread(target=train)
    thread.start()
    trained.wait()
    iterate(model, sentence(1000))
    counted = is_counted()
    ended.set()
    thread.join()
    assert not counted


def test_what_begins_like_a_known_graph_is_counted_too(model):
    next_is_recorded()
    iterate(model, sentence(1000, batchsize=8, words=4))
    for number in range(1001, 1004):
        words = sentence(number, batchsize=8, words=number - 996)
        quiets = []
        model.change = lambda h, quiets=quiets: quiets.append(sessions.current()._iteration.quiet) or h
        assert iterate(model, words) == expected(words)
        after = sessions.current()._iteration.quiet
        assert [type(quiets[0]), type(after)] == [Compared, Counted]
        assert len(after.calls.functions) == len(after.stepped()) == 3 * len(words) + 2


def test_the_peak_is_known_of_one_that_is_the_beginning_of_a_known_graph(model):
    """Forward had ended when that showed, and the estimate was made by the next call: it was nought."""
    next_is_recorded()
    words = sentence(1000, batchsize=256, words=4)
    iterate(model, words)
    h = F.tanh(model.step(np.zeros_like(words[0])) + words[0])
    h.grad = np.ones_like(h.array)
    h.backward()
    assert is_counted()
    assert chainer_ooc.stats().peak_bytes >= 4 * words[0].nbytes


def test_nothing_is_counted_while_a_graph_has_copies_that_a_write_would_make_stale():
    model = Reader()
    with ooc('pooch', min_bytes=0):
        warm(model)
        with chainer.using_config('ooc_budget', 2 << 20):
            held = model(sentence(1000, batchsize=512, words=40))
            held.backward()
            assert chainer_ooc.stats().swapped_out_bytes > 0
        for number in range(WARM_UP, 2 * WARM_UP):
            assert iterate(model, sentence(number)) == expected(sentence(number))
            assert not is_counted()
        del held
        warm(model, first=2 * WARM_UP)


def test_where_some_come_again_others_are_counted_all_the_same(model):
    """Each that did not was recorded, for ever: four times the time of plain Chainer where a third come again."""
    next_is_recorded()
    for words in 2 * [sentence(1000)]:
        iterate(model, words)
    for number in range(1001, 1004):
        words = sentence(1000 if number % 2 else number)
        assert iterate(model, words) == expected(words)
        assert isinstance(sessions.current()._iteration.quiet, Compared if number % 2 else Counted)


@pytest.mark.parametrize('line', range(1, 12_000, 1_100))
def test_interrupted_training_goes_on(model, line):
    interrupted_at(line, lambda: iterate(model, sentence(1000, words=10)), event='line')
    for number in range(1001, 1004):
        assert iterate(model, sentence(number)) == expected(sentence(number))
