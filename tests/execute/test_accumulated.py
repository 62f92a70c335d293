"""Gradients that add up over iterations: whenever a plan is made, it has room for those that will stand."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from support.trainings.ooc_training import ooc

#: Of each in turn the last updates the parameters, and clears their gradients.
STEPS = 4


class Layers(chainer.Chain):
    """Whose parameters are as large as its maps."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.layers = chainer.ChainList(*(L.Linear(200, 200) for _ in range(5)))

    def forward(self, x):
        for layer in self.layers:
            x = F.tanh(F.relu(layer(x)) + 0.1)
        return F.sum(x * x)


def iterations(count):
    """Yields after each, before the next one begins."""
    random, model = np.random.RandomState(0), Layers()
    optimizer = chainer.optimizers.MomentumSGD(1e-3).setup(model)
    model.cleargrads()
    for number in range(1, count + 1):
        model(random.rand(200, 200).astype('f4')).backward()
        if number % STEPS == 0:
            optimizer.update()
            model.cleargrads()
        yield chainer_ooc.stats()


def floor_of(policy):
    with ooc(policy, budget=1000), pytest.raises(InfeasibleBudgetError) as caught:
        list(iterations(2 * STEPS))
    chainer_ooc.reset()
    return caught.value.floor_bytes


def is_refused_once(model, batch):
    """Runs forward and backward; where the budget is refused, once more with what works."""
    try:
        model(batch).backward()
    except InfeasibleBudgetError as error:
        chainer.config.ooc_budget = int(1.02 * error.floor_bytes)
    else:
        return False
    model(batch).backward()
    return True


@pytest.mark.parametrize('planned_at', [3 * STEPS, 3 * STEPS + 1], ids=['after an update', 'later'])
def test_a_plan_that_is_made_after_an_update_has_room_for_gradients_to_come(planned_at):
    """One that counted with those that stood lacked room in the next three iterations, and in three of four from then
    on: another plan is only made when times change.
    """
    budget_bytes = int(1.05 * floor_of('pooch'))
    faults = []
    with ooc('pooch', budget=budget_bytes):
        for number, stats in enumerate(iterations(6 * STEPS), 1):
            faults.append(stats.faults)
            if number == planned_at:
                chainer.config.ooc_budget = budget_bytes + 1
        assert stats.phase == 'run'
        assert stats.swap > 0
        chainer_ooc.reset()
    assert faults[planned_at + 1:] == [0] * (6 * STEPS - planned_at - 1)


@pytest.mark.parametrize('policy', ['keep', 'swap-all'])
@pytest.mark.parametrize('batches', [(2, 2), (2, 1)], ids=['each time', 'every other time'])
def test_a_floor_counts_gradients_that_stood_in_any_of_the_latest_iterations(policy, batches):
    """Those that stood in iterations that ran quietly, or in one before the last, were in no floor."""
    random, model, refusals = np.random.RandomState(0), Layers(), 0
    with ooc(policy):
        for number in range(12):
            model.cleargrads()
            if number == 8:
                chainer.config.ooc_budget = 1
            for _ in range(batches[number % 2]):
                refusals += is_refused_once(model, random.rand(20, 200).astype('f4'))
        chainer_ooc.reset()
    assert refusals == 1


@pytest.mark.parametrize('policy', ['keep', 'swap-all'])
@pytest.mark.parametrize('passes', [1, 3])
def test_a_floor_counts_zeroed_gradients_once(policy, passes):
    """They stand when the recorded backward pass begins, which adds to them; they were counted as to come as well."""
    def train():
        random, model = np.random.RandomState(0), Layers()
        optimizer = chainer.optimizers.SGD(1e-3).setup(model)
        model.cleargrads()
        for _ in range(3):
            for parameter in model.params():
                parameter.grad = np.zeros_like(parameter.array)
            for _ in range(passes):
                model(random.rand(20, 200).astype('f4')).backward()
                yield chainer_ooc.stats().peak_bytes
            optimizer.update()

    with ooc(policy, budget=1), pytest.raises(InfeasibleBudgetError) as refused:
        list(train())
    chainer_ooc.reset()
    with ooc(policy, budget=int(1.02 * refused.value.floor_bytes)):
        assert max(train()) >= 0.99 * refused.value.floor_bytes
        chainer_ooc.reset()


@pytest.mark.parametrize('policy', ['keep', 'swap-all'])
@pytest.mark.parametrize('refused_at', [8, 9])
def test_a_floor_counts_gradients_that_are_zeroed_now_and_then(policy, refused_at):
    """Those that the program puts in the place of ones that an update has used seemed to be these, to be cleared."""
    random, model, refusals = np.random.RandomState(0), Layers(), 0
    optimizer = chainer.optimizers.SGD(1e-3).setup(model)
    with ooc(policy):
        for number in range(14):
            for parameter in model.params():
                parameter.grad = np.zeros_like(parameter.array) if number % 2 else None
            if number == refused_at:
                chainer.config.ooc_budget = 1
            refusals += is_refused_once(model, random.rand(20, 200).astype('f4'))
            optimizer.update()
        chainer_ooc.reset()
    assert refusals == 1
