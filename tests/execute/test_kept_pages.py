"""Pages that NumPy's arrays free serve the next ones: a planned iteration asks the system for hardly any."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.host import arena, limits
from chainer_ooc.errors import InfeasibleBudgetError
from support.trainings.ooc_training import ooc

pytestmark = pytest.mark.skipif(arena.available() is not None, reason=str(arena.available()))

MB = 1 << 20
BATCH = np.ones((512, 64), np.float32)


class Network(chainer.Chain):
    """Maps of 16 MiB, which set the floor, then of 4 MiB; at the end parameters of 36 MiB, whose gradients stay."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first, self.last = L.Linear(64, 2048), L.Linear(2048, 4608)

    def forward(self, x):
        h = F.tanh(F.tile(self.first(x), (1, 4)))
        h = F.sum(F.reshape(F.tanh(h), (-1, 4, 2048)), axis=1)
        for _ in range(8):
            h = F.tanh(h)
        return F.sum(self.last(h))


def fresh_bytes(policy, budget):
    """Trains; returns what each iteration after the third asked of the system."""
    network = Network()
    optimizer = chainer.optimizers.SGD(lr=1e-6).setup(network)
    found, library = [], arena._library()
    with ooc(policy, budget=budget):
        for _ in range(6):
            before_bytes = library.arena_fresh_bytes()
            optimizer.update(network, BATCH)
            found.append(library.arena_fresh_bytes() - before_bytes)
    return found[3:]


@pytest.mark.parametrize('policy', ['swap-all', pytest.param('pooch', marks=pytest.mark.long)])
def test_cleared_gradients_serve_what_backward_makes(policy):
    with pytest.raises(InfeasibleBudgetError) as refused:
        fresh_bytes(policy, 1)
    chainer_ooc.reset()
    assert max(fresh_bytes(policy, int(1.02 * refused.value.floor_bytes))) < 8 * MB
    chainer_ooc.reset()


@pytest.mark.parametrize('policy', [pytest.param('keep', marks=pytest.mark.long), 'swap-all'])
def test_behind_a_limit_none_are_kept_between_iterations(policy, monkeypatch):
    """Whatever the iteration: recorded, quiet (`keep`) or under a plan that moves maps."""
    monkeypatch.setattr(limits, 'is_limited', lambda: True)
    network = Network()
    optimizer = chainer.optimizers.SGD(lr=1e-6).setup(network)
    kept, within = [], []
    with ooc(policy):
        for _ in range(5):
            network.cleargrads()
            loss = network(BATCH)
            np.empty(4 * MB, np.uint8)
            within.append(arena._library().arena_unused_bytes())
            loss.backward()
            optimizer.update()
            kept.append(arena._library().arena_unused_bytes())
    assert kept == [0] * 5
    assert min(within[1:]) > 0
