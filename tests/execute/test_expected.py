"""What parameters will take and do not yet: floors count it, refusals do not depend on it."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute.recording.parameters import Parameters
from support.networks import Perceptron
from support.trainings.ooc_training import ooc

OPTIMIZERS = ('AdaDelta', 'AdaGrad', 'Adam', 'AMSGrad', 'CorrectedMomentumSGD', 'MomentumSGD', 'MSVAG', 'NesterovAG',
              'RMSprop', 'RMSpropGraves', 'SGD', 'SMORMS3')
POLICIES = ('swap-all', 'keep', 'pooch', 'sublinear', 'unified')


class Network(Perceptron):
    """Parameters (1 MB) that weigh as much as its maps."""

    def __init__(self):
        super().__init__(64, 512, 384, 8, activations=(F.relu, F.tanh))

    def forward(self, number, size=256):
        x = np.random.RandomState(number).uniform(-1, 1, (size, 64)).astype(np.float32)
        return F.mean(F.square(super().forward(x)))


def parameters_of(model):
    known = Parameters()
    for each in model.params():
        known.add(each)
    return known


def expected(known):
    return known.standing(None, 0).expected_bytes


def run_backward(model, known, number=0):
    loss = model(number)
    known.begin_backward()
    loss.backward()


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_the_state_that_an_optimizer_will_have_is_expected_to_the_byte(name):
    model = Network()
    known, optimizer = parameters_of(model), getattr(chainer.optimizers, name)().setup(model)
    expected_bytes, before = expected(known), known.beside().steady_bytes
    assert all(each.update_rule.state is None and each.update_rule.t == 0 for each in model.params())
    model.cleargrads()
    run_backward(model, known)
    optimizer.update()
    assert known.beside().steady_bytes - before == expected_bytes
    assert expected(known) == 0


def test_gradients_are_expected_to_stay_until_an_update_has_used_them():
    model = Network()
    known, optimizer = parameters_of(model), chainer.optimizers.SGD().setup(model)
    found = []
    for number in range(3):
        model.cleargrads()
        for part in range(2):
            run_backward(model, known, number + part)
            found.append(expected(known))
        optimizer.update()
        found.append(expected(known))
    assert found == [model.nbytes, model.nbytes, 0] * 3
    run_backward(model, known)
    model.cleargrads()
    assert expected(known) == 0


def test_gradients_that_an_update_has_used_stay_used_whatever_runs_backward_beside_them():
    model = Network()
    known, optimizer = parameters_of(model), chainer.optimizers.SGD().setup(model)
    run_backward(model, known)
    optimizer.update()
    known.begin_backward()  # of a graph in which the model has no part, or for chainer.grad
    assert expected(known) == 0


def test_a_model_that_was_only_evaluated_is_expected_to_be_trained_if_an_optimizer_has_it():
    model, known = Network(), Parameters()
    known.expected.see([np.ones(3, np.float32), *model.params()])
    assert expected(known) == 0
    optimizer = chainer.optimizers.MomentumSGD().setup(model)
    assert expected(known) == 3 * model.nbytes
    model.l2.disable_update()
    frozen_bytes = sum(each.array.nbytes for each in model.l2.params())
    assert expected(known) == 3 * (model.nbytes - frozen_bytes)
    model.l2.enable_update()
    for each in model.params():
        known.add(each)
    assert expected(known) == model.nbytes  # counted by now, but for its state
    model.cleargrads()
    run_backward(model, known)
    optimizer.update()
    assert expected(known) == 0
    del model, optimizer, each
    assert expected(known) == 0


def test_nothing_is_expected_of_parameters_without_an_optimizer():
    model = Network()
    known = parameters_of(model)
    run_backward(model, known)
    assert expected(known) == 0


def refusal_of(program, policy, budget=1):
    chainer_ooc.reset()
    with ooc(policy, budget=budget), pytest.raises(InfeasibleBudgetError) as refused:
        program()
    return refused.value


def assert_runs_at(floor_bytes, program, policy):
    chainer_ooc.reset()
    with ooc(policy, budget=int(1.02 * floor_bytes)):
        program()
    stats = chainer_ooc.stats()
    assert stats.phase == 'run'
    assert stats.peak_bytes <= stats.budget_bytes


def accumulating(batches=3, optimizer=chainer.optimizers.MomentumSGD):
    """One update for some batches."""
    np.random.seed(0)
    model = Network()
    optimizer = optimizer().setup(model)
    for number in range(3):
        model.cleargrads()
        for part in range(batches):
            model(batches * number + part).backward()
        optimizer.update()


def in_turns():
    """A model that is trained after another, for which it was evaluated."""
    np.random.seed(0)
    first, second = Network(), L.Linear(64, 64)
    optimizers = chainer.optimizers.RMSprop().setup(first), chainer.optimizers.Adam().setup(second)
    for number in range(2):
        for _ in range(2):
            with chainer.no_backprop_mode():
                second(np.ones((4, 64), np.float32))
            optimizers[0].update(first, number)
        optimizers[1].update(lambda number=number: F.mean(second(np.full((4, 64), number, np.float32)) ** 2))


def backward_before_each_update(before, after):
    """For a picture of what the network sees, or for an adversarial batch."""
    np.random.seed(0)
    model = Network()
    optimizer = chainer.optimizers.Adam().setup(model)
    for number in range(3):
        if before:
            model.cleargrads()
        model(number).backward()
        if after:
            model.cleargrads()
        optimizer.update(model, number)


def gradients_left():
    backward_before_each_update(before=True, after=False)


def gradients_cleared():
    backward_before_each_update(before=True, after=True)


def gradients_added_to_those_before():
    """A plan that was made before the first update has to leave room for the state: `unified` kept a map in it."""
    backward_before_each_update(before=False, after=False)


@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('program', [
    accumulating, in_turns, gradients_left, gradients_cleared, gradients_added_to_those_before])
def test_the_first_floor_that_is_named_works_to_the_end(program, policy):
    error = refusal_of(program, policy)
    assert error.expected_bytes > 0
    assert_runs_at(error.floor_bytes, program, policy)


@pytest.mark.parametrize('policy', POLICIES)
def test_a_budget_is_not_refused_for_what_is_only_expected(policy):
    """Two batches, with less than the floor that is named before the first update: it does not come to that."""
    def program():
        np.random.seed(0)
        model = Network()
        optimizer = chainer.optimizers.Adam().setup(model)
        for number in range(2):
            model.cleargrads()
            model(number).backward()
        model.cleargrads()
        return optimizer

    error = refusal_of(program, policy)
    chainer_ooc.reset()
    with ooc(policy, budget=error.floor_bytes - error.expected_bytes + 32_768):
        program()
        assert chainer_ooc.stats().phase == 'run'


@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('optimizer', ['Adam', 'SGD'])
def test_training_that_updates_after_each_backward_pass_names_the_same_floor_early_and_late(optimizer, policy):
    np.random.seed(0)
    model = Network()
    optimizer = getattr(chainer.optimizers, optimizer)().setup(model)
    floors = []
    for _ in range(2):
        with ooc(policy):
            optimizer.update(model, 0)
            optimizer.update(model, 1)
        with ooc(policy, budget=1), pytest.raises(InfeasibleBudgetError) as refused:
            optimizer.update(model, 2)
        floors.append(refused.value.floor_bytes)
        assert refused.value.expected_bytes == 0
        assert 'to come' not in str(refused.value)
    assert floors[0] == floors[1]
