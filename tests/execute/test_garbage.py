"""Python's collector is asked for memory seldom where it has none."""
import gc

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute.memory.garbage import MOST_LEFT_OUT, Garbage
from chainer_ooc.execute.memory.residency import Residency
from support.trainings.ooc_training import ooc


def test_each_collection_in_vain_has_twice_as_many_left_out():
    garbage, collected = Garbage(), []
    for number in range(40):
        if garbage.is_due():
            collected.append(number)
            garbage.note(found=False)
    assert collected == [0, 2, 6, 14, 30]
    garbage.note(found=True)
    assert garbage.is_due()
    for _ in range(20 * MOST_LEFT_OUT):
        if garbage.is_due():
            garbage.note(found=False)
    left_out = 0
    garbage.note(found=False)
    while not garbage.is_due():
        left_out += 1
    assert left_out == MOST_LEFT_OUT


def test_a_training_that_lacks_room_for_maps_that_come_collects_seldom(monkeypatch):
    """It did so at each map that had not begun to come: a tenth of a second and more in large programs."""
    model = chainer.Sequential(*(layer for _ in range(8) for layer in (L.Linear(64, 64), F.tanh)), L.Linear(64, 3))
    optimizer = chainer.optimizers.SGD().setup(model)
    x = np.ones((500, 64), 'f')
    collections = []

    def train(count):
        for _ in range(count):
            loss = F.mean(model(x) ** 2)
            model.cleargrads()
            loss.backward()
            del loss
            optimizer.update()

    with ooc('lms', budget=1):
        train(1)
        with pytest.raises(InfeasibleBudgetError) as refused:
            train(1)
    chainer_ooc.reset()
    with ooc('lms', budget=int(1.02 * refused.value.floor_bytes)):
        train(2)
        monkeypatch.setattr(gc, 'collect', lambda *arguments: collections.append(1) or 0)
        make_room = Residency.make_room
        # As where memory is short by a little: what comes for a step finds no room at first.
        monkeypatch.setattr(Residency, 'make_room', lambda memory, *arguments, **others: (
            make_room(memory, *arguments, **others) and others.get('thorough', False)))
        train(20)
    assert 1 <= len(collections) <= 10  # of some seven hundred
