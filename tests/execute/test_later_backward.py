"""A backward pass that goes back through an earlier iteration's graph: what that graph keeps counts in its floor."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from support.trainings.ooc_training import ooc


def iterate(model, number):
    """chainer.grad ends an iteration; the penalty's backward pass is another, and reads the first one's maps."""
    x = chainer.Variable(np.random.RandomState(number).uniform(-1, 1, (2, 3, 6, 6)).astype(np.float32))
    model.cleargrads()
    loss = F.mean(F.tanh(F.relu(F.tanh(model(x)))))
    gradient, = chainer.grad([loss], [x], enable_double_backprop=True)
    (loss + F.sum(gradient * gradient)).backward()
    return model.W.grad.tobytes()


@pytest.mark.parametrize('policy', ['keep', 'swap-all'])
def test_training_goes_through_at_the_floor_that_is_named_first(policy):
    np.random.seed(0)
    model = L.Convolution2D(3, 4, 3, pad=1)
    plain = [iterate(model, number) for number in range(4)]
    with ooc(policy, budget=1):
        assert iterate(model, 0) == plain[0]  # records both graphs, and that the second reads the first's maps
        with pytest.raises(InfeasibleBudgetError) as refused:
            iterate(model, 1)
    with ooc(policy, budget=int(1.02 * refused.value.floor_bytes)):
        assert [iterate(model, number) for number in range(1, 4)] == plain[1:]


def test_maps_that_a_later_backward_reads_are_known_by_the_trace():
    np.random.seed(0)
    model = L.Convolution2D(3, 4, 3, pad=1)
    with ooc('keep'):
        for number in range(2):
            iterate(model, number)
            graphs = chainer_ooc.execute.manager.current()._graphs._graphs.values()
            first = next(each for each in graphs if each.trace.calls[0].label == 'Convolution2DFunction')
            assert any(each.reused for each in first.trace.maps)
