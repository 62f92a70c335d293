"""A floor that was named without doubt works at once, whatever budget it was recorded under."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from ooc_training import ooc

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError

#: What users are told to add.
MARGIN = 1.02


def floors_of(make, policy):
    """What is named for one program after the other with the budget that was named before, until it goes through."""
    floors, budget = [], 1
    while len(floors) < 8:
        chainer_ooc.reset()
        np.random.seed(0)
        iterate = make()
        try:
            with ooc(policy, budget=budget, min_bytes=2000):
                for number in range(4):
                    iterate(number)
            return floors
        except InfeasibleBudgetError as error:
            floors.append((error.floor_bytes, error.where, error.doubt))
            budget = int(MARGIN * error.floor_bytes)
        finally:
            del iterate
    return floors


def blocks_repeated():
    """The caller's frame holds the batch throughout forward; under a short budget it was evicted right after that."""
    block = chainer.Sequential(L.Linear(128, 128), F.relu, lambda h: F.dropout(h, 0.2), L.BatchNormalization(128))
    model = chainer.Sequential(L.Linear(128, 128), block.repeat(4), L.Linear(128, 5))
    optimizer = chainer.optimizers.MomentumSGD().setup(model)

    def iterate(number):
        loss = F.softmax_cross_entropy(
            model(np.full((256, 128), number, np.float32)), np.full(256, number, np.int32))
        model.cleargrads()
        loss.backward()
        optimizer.update()
    return iterate


@pytest.mark.parametrize('policy', ['swap-all', 'pooch', 'window', 'unified'])
@pytest.mark.parametrize('make', [blocks_repeated])
def test_a_named_floor_works_at_once(make, policy):
    floors = floors_of(make, policy)
    assert len(floors) == 1
    assert floors[0][-1] == ''
