"""Errors of calls that the program catches: the call is no part of the graph, and all that comes is (P9)."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import sessions
from support.combinations import spread
from support.trainings.ooc_training import bits_of, ooc

POLICIES = ('keep', 'swap-all', 'pooch', 'sublinear', 'superneurons')


class Fails(chainer.FunctionNode):
    """A function of the program's that writes to what it is given, and fails."""

    def forward(self, inputs):
        inputs[0][:2] *= 2
        raise ZeroDivisionError


def concatenates_what_does_not_fit(h):
    F.concat([h, np.zeros((3, 3), 'f')])


def runs_past_the_end(h):
    F.get_item(h, 10**9)


def writes_and_fails(h):
    Fails().apply((h,))


ERRORS = {each.__name__: each for each in (concatenates_what_does_not_fit, runs_past_the_end, writes_and_fails)}


class Network(chainer.Chain):
    """A network whose program tries something that fails in its midst, or at another place."""

    def __init__(self, fails, places):
        super().__init__()
        np.random.seed(0)
        self.fails, self.places = fails, places
        with self.init_scope():
            self.fc0, self.fc1 = L.Linear(40, 50), L.Linear(50, 50)

    def __call__(self, x):
        h = self.fc0(x)
        for place in range(6):
            if place in self.places:
                try:
                    self.fails(h)
                except (IndexError, ZeroDivisionError, chainer.utils.type_check.InvalidType):
                    pass
            h = self.fc1(F.tanh(h)) if place % 2 else F.sigmoid(h)
        return F.sum(h * h)


def train(fails, places, iterations=5):
    model = Network(fails, places)
    optimizer = chainer.optimizers.MomentumSGD(0.01).setup(model)
    bits = []
    for number in range(iterations):
        x = np.random.RandomState(number).uniform(-1, 1, (100, 40)).astype('f')
        loss = model(x)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        bits += [bits_of(loss.array), *(bits_of(each.array) for _, each in sorted(model.namedparams()))]
        del loss
    return bits


@pytest.mark.parametrize(('policy', 'error', 'places'), spread(
    POLICIES, list(ERRORS), [(0,), (3,), (1, 2, 5), tuple(range(6))], every=2))
def test_what_comes_after_a_caught_error_is_of_the_same_graph(policy, error, places):
    expected = train(ERRORS[error], places)
    with ooc(policy):
        assert train(ERRORS[error], places) == expected
        assert chainer_ooc.stats().phase == 'run'
        assert len(chainer_ooc.trace().calls) == 1 + 6 + 3 + 2
        assert len(chainer_ooc.trace().steps) == len(chainer_ooc.trace().calls)


@pytest.mark.parametrize('policy', ['keep', 'swap-all'])
def test_a_budget_is_that_of_the_whole_graph(policy):
    floors = []
    for places in [(), (3,)]:
        with ooc(policy, budget=1000), pytest.raises(InfeasibleBudgetError) as caught:
            train(ERRORS['runs_past_the_end'], places)
        floors.append(caught.value.floor_bytes)
        chainer_ooc.reset()
    assert floors[0] <= floors[1] < floors[0] + 20_000  # a map, which the call that failed was given


@pytest.mark.parametrize('policy', POLICIES)
def test_at_the_floor_the_budget_holds(policy):
    expected = train(ERRORS['concatenates_what_does_not_fit'], (1, 3))
    with ooc(policy, budget=1000), pytest.raises(InfeasibleBudgetError) as caught:
        train(ERRORS['concatenates_what_does_not_fit'], (1, 3))
    chainer_ooc.reset()
    with ooc(policy, budget=int(caught.value.floor_bytes * 1.02)):
        assert train(ERRORS['concatenates_what_does_not_fit'], (1, 3)) == expected
        assert chainer_ooc.stats().peak_bytes <= chainer_ooc.stats().budget_bytes


@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('known', [0, 1, 4])
@pytest.mark.parametrize('catches', [True, False])
def test_an_iteration_that_is_given_up_ends_although_its_error_keeps_it_alive(policy, known, catches):
    """A batch that does not fit, say: the program notes the error, with all frames, and takes the next one."""
    model, errors = Network(writes_and_fails, (1,) if catches else ()), []
    optimizer = chainer.optimizers.SGD(0.01).setup(model)
    with ooc(policy):
        for number in range(known + 5):
            try:
                if number == known:
                    h = F.sigmoid(model.fc0(np.ones((100, 40), 'f')))
                    F.concat([F.tanh(h), np.zeros((3, 3), 'f')])
                loss = model(np.ones((100, 40), 'f'))
            except chainer.utils.type_check.InvalidType as error:
                errors.append((error, h))
                continue
            model.cleargrads()
            loss.backward()
            optimizer.update()
            del loss
        assert len(errors) == 1
        assert chainer_ooc.stats().phase == 'run'
        assert len(chainer_ooc.trace().calls) == 1 + 6 + 3 + 2


def test_where_no_graph_is_followed_the_last_one_is_remembered():
    """Lessons are learnt for it: what the caught call had taken back was none."""
    with ooc('swap-all'):
        train(runs_past_the_end, (1,))
        h = F.relu(Network(runs_past_the_end, ()).fc0(np.ones((100, 40), 'f')))
        iteration = sessions.current()._iteration
        known = iteration.token.graph
        with pytest.raises(IndexError):
            runs_past_the_end(h)
        assert iteration.following.graph is None
        assert iteration.token.graph is known is not None


def branch(x, function, tries):
    """A graph that is like the others up to a function on a map that moves; then comes a call that never does."""
    h = F.sigmoid(x)
    t = F.reshape(F.sum(h), (1,))
    h = function(h)
    for _ in range(tries):
        with pytest.raises(IndexError):
            runs_past_the_end(t)
    last = F.get_item(t, 0)
    graph = sessions.current()._iteration.following.graph
    (F.sum(h) * last).backward()
    return graph


def test_a_small_call_that_fails_takes_no_earlier_call_back():
    """What the call before it had turned from was followed again."""
    x = chainer.Variable(np.ones((100, 40), 'f'))
    with ooc('swap-all', min_bytes=1000):
        for _ in range(4):
            followed = [branch(x, function, 1) for function in (F.tanh, F.relu)]
    assert [each.trace.calls[3].label for each in followed] == ['Tanh', 'ReLU']


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch'])
def test_a_call_like_the_first_one_after_an_error_is_of_the_same_graph(policy):
    """A network that reads a word in each step: what came after the error was another iteration, for ever."""
    def train():
        np.random.seed(0)
        word, state, bits = L.Linear(20, 30), L.Linear(30, 30), []
        for _ in range(6):
            h = chainer.Variable(np.zeros((10, 30), 'f'))
            for step in range(4):
                h = F.tanh(word(np.full((10, 20), step, 'f')) + state(h))
                if step == 1:
                    with pytest.raises(chainer.utils.type_check.InvalidType):
                        concatenates_what_does_not_fit(h)
            word.cleargrads()
            F.sum(h).backward()
            bits += [bits_of(each.grad) for each in (word.W, word.b)]
        return bits

    expected = train()
    with ooc(policy):
        assert train() == expected
        assert chainer_ooc.stats().phase == 'run'
        assert len(chainer_ooc.trace().calls) == 4 * 4 + 1


def test_a_known_graph_runs_quietly_after_iterations_with_errors():
    """Each was taken for another graph, the next ones were recorded for it, and after three none ran quietly.

    Only the next one follows its plan in full: an error may come in each.
    """
    model, quiet = L.Linear(32, 32), []
    with ooc('keep'):
        for number in range(60):
            h = chainer.Variable(np.ones((8, 32), 'f'))
            for step in range(4):
                h = F.tanh(model(h))
                if step == 2 and number in (5, 20, 30, 40, 50):
                    with pytest.raises(IndexError):
                        runs_past_the_end(h)
            F.sum(h).backward()
            quiet.append(sessions.current()._iteration.quiet is not None)
    assert [number for number in range(20, 60) if not quiet[number]] == [20, 21, 30, 31, 40, 41, 50, 51]


def test_a_call_of_another_known_graph_that_fails_leaves_the_iteration_quiet():
    """It had turned to that graph."""
    model = L.Linear(32, 32)

    def iterate(function, tries=0):
        h = F.tanh(model(np.ones((8, 32), 'f')))
        for _ in range(tries):
            with pytest.raises(IndexError):
                runs_past_the_end(h)
        loss = F.sum(function(h))
        model.cleargrads()
        loss.backward()
        return bits_of(model.W.grad)

    def first_row(h):
        return F.get_item(h, 0)

    expected = [iterate(each) for each in (F.sigmoid, first_row)]
    with ooc('keep'):
        iterate(F.sigmoid, 1)  # from now on the program is known to go on
        assert [iterate(each) for each in (F.sigmoid, first_row) * 12] == expected * 12
        for function, bits in zip((F.sigmoid, first_row), expected, strict=True):
            iterate(function)
            assert iterate(function, 2) == bits
            iteration = sessions.current()._iteration
            assert iteration.quiet is not None
            assert iteration.following.graph is iteration.quiet.graph
            assert len(iteration.quiet.stepped()) == len(iteration.quiet.graph.trace.calls) == 4
