"""Floors say when they may not be the last: `InfeasibleBudgetError.doubt`."""
import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from ooc_training import Training, ooc

from chainer_ooc.errors import InfeasibleBudgetError


def refusal(training):
    with pytest.raises(InfeasibleBudgetError) as refused:
        training.iterate()
    return refused.value


def test_a_floor_that_a_recording_without_disturbance_tells_is_named_without_doubt():
    training = Training('residual')
    with ooc(budget=1):
        training.iterate()
        error = refusal(training)
    assert error.doubt == ''
    assert 'smallest that works' in str(error)


def test_a_floor_is_in_doubt_while_another_thread_trains():
    step, end = threading.Event(), threading.Event()

    def train_beside():
        with ooc():
            beside = Training('old')
            beside.iterate()
            step.set()
            end.wait(20)
    other = threading.Thread(target=train_beside)
    other.start()
    assert step.wait(20)
    training = Training('residual')
    try:
        with ooc(budget=1):
            training.iterate()
            error = refusal(training)
    finally:
        end.set()
        other.join()
    assert 'other threads' in error.doubt
    assert error.doubt in str(error)
    assert 'smallest that works' not in str(error)


def test_a_floor_that_is_named_within_an_iteration_is_in_doubt():
    """Gradients that updates have used are not cleared any more. They went out of the account when it was looked at
    again, as backward's own table holds them then, and the budget was passed by all of them.
    """
    np.random.seed(0)
    model = chainer.Sequential(L.Linear(64, 512), F.relu, L.Linear(512, 2048))
    optimizer = chainer.optimizers.SGD().setup(model)

    def iterate(number, clears):
        loss = F.sum(model(np.full((2, 64), number, np.float32)))
        if clears:
            model.cleargrads()
        loss.backward()
        optimizer.update()

    with ooc(budget=1):
        iterate(0, clears=True)
        with pytest.raises(InfeasibleBudgetError) as refused:
            iterate(1, clears=True)
    assert refused.value.doubt == ''
    with ooc(budget=int(1.02 * refused.value.floor_bytes)):
        iterate(2, clears=True)
        with pytest.raises(InfeasibleBudgetError) as refused:
            iterate(3, clears=False)
    assert 'under way' in refused.value.doubt
