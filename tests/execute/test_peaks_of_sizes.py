"""The peak that is said of sizes of which none was recorded, whose buffers nobody has measured."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from support.trainings.ooc_training import ooc


class Network(chainer.Chain):
    """Convolutions whose buffers are many times as large as their maps."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first, self.second, self.last = (
                L.Convolution2D(3, 8, 3, pad=1), L.Convolution2D(8, 8, 3, pad=1), L.Linear(8, 10))

    def forward(self, x):
        return self.last(F.average(F.relu(self.second(F.relu(self.first(x)))), (2, 3)))


def peaks(policy, budget, sides):
    """The peak of each iteration, whose images have such sides."""
    np.random.seed(0)
    model, found = L.Classifier(Network()), []
    optimizer = chainer.optimizers.SGD(0.01).setup(model)
    with ooc(policy, budget=budget, min_bytes=1000):
        for side in sides:
            optimizer.update(model, np.random.randn(4, 3, side, side).astype('f4'), np.zeros(4, 'i4'))
            found.append(chainer_ooc.stats().peak_bytes)
    chainer_ooc.reset()
    return found


@pytest.mark.parametrize(('policy', 'budget', 'side'), [
    ('keep', None, 24), ('auto', None, 24), ('swap-all', 500_000, 12), ('pooch', None, 16)])
def test_the_peak_has_what_calls_are_expected_to_allocate(policy, budget, side):
    """It left that out, for as long as the size was known by another: a sixth of what was in use."""
    measured = peaks(policy, budget, [side] * 3)[-1]
    expected = peaks(policy, budget, [8, 8, side, side, side])[2:]
    assert all(measured <= each <= 1.2 * measured for each in expected)
