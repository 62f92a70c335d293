"""Models that are trained in turn: the gradients of one stand while the others run, and count then."""
import contextlib
from unittest import mock

import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute.memory.residency import Residency
from support.combinations import spread
from support.networks import Perceptron
from support.trainings.ooc_training import ooc

POLICIES = ('swap-all', 'keep', 'pooch', 'sublinear', 'tensor-cache', 'unified')


class Network(Perceptron):
    """Parameters (0.6 MB for 384 units) that weigh as much as its maps; other units make another graph."""

    def __init__(self, units=384):
        super().__init__(64, units, units, 8, activations=(F.relu, F.tanh))

    def forward(self, number, size=192):
        x = np.random.RandomState(number).uniform(-1, 1, (size, 64)).astype(np.float32)
        return F.mean(F.square(super().forward(x)))


def zerograds(model):
    for parameter in model.params():
        parameter.grad = np.zeros_like(parameter.array)


def cleargrads(model):
    model.cleargrads()


CLEARS = {'cleared before backward': (None, cleargrads), 'cleared before forward': (cleargrads, None),
          'zero before backward': (None, zerograds), 'zero before forward': (zerograds, None)}


class InTurn:
    """Some models, each with an optimizer, of which each is trained once in a round."""

    def __init__(self, clears='cleared before backward', units=(384, 320), optimizer=chainer.optimizers.SGD):
        np.random.seed(0)
        self.before_forward, self.before_backward = CLEARS[clears]
        self.models = [Network(each) for each in units]
        self.optimizers = [optimizer().setup(each) for each in self.models]
        self.bits = []

    def train(self, which, number=0):
        model, optimizer = self.models[which], self.optimizers[which]
        if self.before_forward:
            self.before_forward(model)
        loss = model(number)
        if self.before_backward:
            self.before_backward(model)
        loss.backward()
        optimizer.update()
        self.bits += [loss.array.tobytes(), *(each.grad.tobytes() for each in model.params())]

    def rounds(self, count=4):
        for number in range(count):
            for which in range(len(self.models)):
                self.train(which, number)
        return self.bits


@contextlib.contextmanager
def standing():
    """What is said to stand beside the maps when room is made for each computation."""
    found, make_room = [], Residency.make_room

    def noting(residency, need_bytes, thorough=False):
        found.append(residency.beside_bytes)
        return make_room(residency, need_bytes, thorough)
    with mock.patch.object(Residency, 'make_room', noting):
        yield found


def last_iteration_stands(clears, others_gradients_stand):
    """Of the first model under a plan, when the second has been trained before, or lost its gradients after that."""
    chainer_ooc.reset()
    with ooc('swap-all'):
        both = InTurn(clears)
        for _ in range(2):
            both.train(0)
            both.models[1].cleargrads()
        both.train(1)
        if not others_gradients_stand:
            both.models[1].cleargrads()
        with standing() as found:
            both.train(0)
        assert chainer_ooc.stats().phase == 'run'
    return both.models[1].nbytes, found


@pytest.mark.parametrize('clears', CLEARS)
def test_gradients_of_another_model_count_beside_those_of_ones_own(clears):
    """They were taken for gradients that backward replaces, so that the account lacked the smaller of the two."""
    nbytes, alone = last_iteration_stands(clears, others_gradients_stand=False)
    _, beside = last_iteration_stands(clears, others_gradients_stand=True)
    assert np.subtract(beside, alone).tolist() == [nbytes] * len(alone)


def test_gradients_that_are_set_to_zero_beside_a_graph_count_once():
    """A container's `zerograds` makes those of parts that have no share in this graph, while it is recorded too."""
    chainer_ooc.reset()
    training = InTurn()
    training.before_backward = lambda model: [zerograds(each) for each in training.models]
    with ooc('swap-all'):
        training.rounds(2)
        training.train(0)
        with standing() as found:
            training.train(1)
        assert chainer_ooc.stats().phase == 'run'
        calls = len(chainer_ooc.trace().calls)
    all_bytes = sum(each.nbytes for each in training.models)
    assert found[calls] == pytest.approx(2 * all_bytes, abs=4096)  # when backward begins: parameters, gradients


def floor_of(training):
    with ooc('swap-all', budget=1), pytest.raises(InfeasibleBudgetError) as refused:
        training.train(0)
    return refused.value


def trained(*turns):
    chainer_ooc.reset()
    training = InTurn()
    with ooc('swap-all'):
        for which in turns:
            training.train(which)
    return training


def test_the_floor_of_a_model_counts_the_gradients_of_another_that_stand_while_it_runs():
    alone_bytes = floor_of(trained(0, 0)).floor_bytes
    both = trained(0, 1, 0, 1, 0, 1)
    found = floor_of(both)
    assert found.floor_bytes - alone_bytes == pytest.approx(2 * both.models[1].nbytes, abs=4096)
    assert found.expected_bytes == 0


def test_gradients_that_may_go_before_backward_are_expected_and_refuse_nothing():
    """Until the model has run beside them nobody knows whether the program clears them before its backward pass."""
    error = floor_of(trained(0, 1))
    assert error.expected_bytes > 0
    training = trained(0, 1)
    training.before_backward = lambda model: [each.cleargrads() for each in training.models]
    with ooc('swap-all', budget=error.floor_bytes - error.expected_bytes + 8192):
        training.train(0)
        assert chainer_ooc.stats().phase == 'run'


def test_gradients_that_are_always_cleared_before_backward_are_not_expected():
    """A container's `cleargrads` clears the gradients of parts that have no share in this graph."""
    chainer_ooc.reset()
    training = InTurn()
    training.before_backward = lambda model: [each.cleargrads() for each in training.models]
    with ooc('swap-all'):
        training.rounds(2)
    assert floor_of(training).expected_bytes == 0


@pytest.mark.parametrize(('units', 'clears', 'policy'), spread(
    [(384, 320), (256, 384, 320)], list(CLEARS), POLICIES, every=6))
def test_the_first_floor_that_is_named_works_for_models_in_turn(units, clears, policy):
    expected = InTurn(clears, units).rounds()
    for optimizer in (chainer.optimizers.SGD, chainer.optimizers.Adam):
        chainer_ooc.reset()
        with ooc(policy, budget=1), pytest.raises(InfeasibleBudgetError) as refused:
            InTurn(clears, units, optimizer).rounds()
        assert refused.value.doubt == ''
        chainer_ooc.reset()
        with ooc(policy, budget=int(1.02 * refused.value.floor_bytes)):
            found = InTurn(clears, units, optimizer).rounds()
            assert chainer_ooc.stats().phase == 'run'
            assert chainer_ooc.stats().peak_bytes <= chainer_ooc.stats().budget_bytes
        assert optimizer is not chainer.optimizers.SGD or found == expected


@pytest.mark.parametrize(('clears', 'policy'), spread(list(CLEARS), POLICIES, every=3))
def test_a_floor_is_in_doubt_when_a_second_model_begins_with_the_graph_of_the_first(clears, policy):
    """Nothing of it was seen: its parameters, its state and its gradients come on top."""
    expected, refusals, budget = InTurn(clears, (384, 384)).rounds(), [], 1
    while len(refusals) < 4:
        chainer_ooc.reset()
        try:
            with ooc(policy, budget=budget):
                found = InTurn(clears, (384, 384)).rounds()
            break
        except InfeasibleBudgetError as error:
            refusals.append(error)
            budget = int(1.02 * error.floor_bytes)
    assert found == expected
    assert 'another model' in refusals[0].doubt
    assert all(each.doubt for each in refusals[:-1])


@pytest.mark.parametrize('policy', POLICIES)
def test_a_floor_holds_for_two_models_of_one_graph_that_is_known(policy):
    """Forward sets the floor: what may stand in backward alone, the gradients of the other, is no reason to give up
    that there is a plan with them.
    """
    models = [Perceptron(64, 64, 64, 5, activations=(F.relu, F.tanh)) for _ in range(2)]
    optimizers = [chainer.optimizers.Adam().setup(each) for each in models]
    x, t = np.random.default_rng(0).standard_normal((256, 64), np.float32), np.zeros(256, np.int32)

    def train(which):
        loss = F.softmax_cross_entropy(models[which](x), t)
        models[which].cleargrads()
        loss.backward()
        optimizers[which].update()
    with ooc(policy, min_bytes=0):
        for which in (0, 1, 0, 1, 1, 0) * 3:
            train(which)
        with chainer.using_config('ooc_budget', 1000), pytest.raises(InfeasibleBudgetError) as refused:
            train(0)
        assert refused.value.doubt == ''
        with chainer.using_config('ooc_budget', int(1.02 * refused.value.floor_bytes)):
            for which in (0, 1, 1, 0) * 3:
                train(which)
                assert chainer_ooc.stats().peak_bytes <= chainer_ooc.stats().budget_bytes


@pytest.mark.parametrize('clears', CLEARS)
def test_models_in_turn_train_with_the_default_budget(clears):
    expected = InTurn(clears).rounds()
    chainer_ooc.reset()
    with ooc('swap-all'):
        assert InTurn(clears).rounds() == expected
        assert chainer_ooc.stats().phase == 'run'


def test_the_trace_tells_gradients_of_other_models_from_those_of_the_graph():
    steps = {}
    for turns in ((0, 0), (1, 0, 0)):
        training = trained(*turns)
        trace = chainer_ooc.trace()
        steps[turns] = [each.other_bytes for each in trace.steps]
        standing_bytes = sum(each.nbytes for each in training.models) if len(turns) > 2 else training.models[0].nbytes
        beside_bytes = training.models[1].nbytes if len(turns) > 2 else 0
        assert trace.standing_backward_bytes == standing_bytes + beside_bytes
    assert steps[0, 0] == steps[1, 0, 0]
