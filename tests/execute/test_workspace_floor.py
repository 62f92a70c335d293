"""A refusal says what a workspace would bring, and that is enough."""
import chainer_ooc  # before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_ooc.errors import InfeasibleBudgetError

pytestmark = pytest.mark.host
BATCH = np.random.default_rng(0).standard_normal((16, 8, 64, 64), dtype=np.float32)


class Network(chainer.Chain):
    """Convolutions whose columns take 75 MB, between maps of 4 and 8 MB."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = L.Convolution2D(8, 16, 3, pad=1, initialW=0.01)
            self.norm = L.BatchNormalization(16)
            self.second = L.Convolution2D(16, 16, 3, pad=1, initialW=0.01)

    def forward(self, images):
        h = F.max_pooling_2d(F.relu(self.norm(self.first(images))), 2)
        return F.sum(F.relu(self.second(h)) ** 2)


def train():
    model = Network()
    for _ in range(3):
        loss = model(BATCH)
        model.cleargrads()
        loss.backward()


def refusal(policy, workspace=None):
    with chainer.using_config('ooc', policy), chainer.using_config('ooc_budget', '20MB'), chainer.using_config(
            'ooc_workspace', workspace), pytest.raises(InfeasibleBudgetError) as caught:
        train()
    chainer_ooc.reset()
    return caught.value


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch', 'auto', 'sublinear'])
def test_the_budget_that_is_named_for_a_workspace_works_with_it(policy):
    error = refusal(policy)
    assert error.workspace_floor_bytes < 0.8 * error.floor_bytes
    assert 'with a workspace of 32MB about ' in str(error)
    with chainer.using_config('ooc', policy), chainer.using_config(
            'ooc_budget', int(1.02 * error.workspace_floor_bytes)), chainer.using_config('ooc_workspace', '32MB'):
        train()
        assert chainer_ooc.stats().phase == 'run'


def test_with_a_workspace_there_is_nothing_more_to_gain():
    error = refusal('swap-all', '32MB')
    assert error.workspace_floor_bytes is None
    assert 'with a workspace' not in str(error) and 'ooc_workspace' not in str(error)
