"""Python's collector is asked for memory seldom where it has none."""
import copy
import gc

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.memory.budget import MOST_LEFT_OUT, Garbage
from chainer_ooc.execute.memory.residency import Residency
from support.trainings.ooc_training import ooc

#: Policies that are much like another here.
NIGHTLY = [pytest.param(each, marks=pytest.mark.long) for each in ('keep', 'swap-all')]


def test_each_collection_in_vain_has_twice_as_many_left_out():
    garbage, collected = Garbage(), []
    for number in range(40):
        if garbage.ask():
            collected.append(number)
            garbage.note(found=False)
    assert collected == [0, 2, 6, 14, 30]
    garbage.note(found=True)
    assert garbage.ask()
    for _ in range(20 * MOST_LEFT_OUT):
        if garbage.ask():
            garbage.note(found=False)
    left_out = 0
    garbage.note(found=False)
    while not garbage.ask():
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


@pytest.mark.parametrize('policy', ['vdnn-all', 'keep', 'swap-all'])
def test_a_model_that_was_replaced_and_waits_for_the_collector_has_the_budget_passed_by_nothing(policy):
    """A map that a step needs comes before that step's room is made; it was brought beside the garbage."""
    layers = [layer for width in (32, 64, 64, 64) for layer in (L.Linear(width, 64), F.relu)]
    first = chainer.Sequential(*layers, L.Linear(64, 10))
    x, t = np.ones((128, 32), np.float32), np.zeros(128, np.int32)
    peaks, budget = [], 20_000

    def learn(model):
        nonlocal budget
        for _ in range(4):
            model.cleargrads()
            try:
                with chainer.using_config('ooc_budget', budget):
                    F.softmax_cross_entropy(model(x), t).backward()
                break
            except InfeasibleBudgetError as error:
                budget = int(1.02 * error.floor_bytes)
        stats = chainer_ooc.stats()
        if stats.phase == 'run':
            peaks.append((stats.peak_bytes, stats.budget_bytes))

    optimizer = chainer.optimizers.Adam().setup(first)
    gc.disable()
    try:
        with ooc(policy, budget=budget, min_bytes=4000):
            for _ in range(3):
                learn(first)
                optimizer.update()
            for _ in range(2):
                model = copy.deepcopy(first)
                learn(model)
                its_own = chainer.optimizers.MomentumSGD().setup(model)
                learn(model)
                its_own.update()
                learn(model)
                del model, its_own
                learn(first)
                optimizer.update()
    finally:
        gc.enable()
    assert len(peaks) >= 8
    assert [(peak, most) for peak, most in peaks if peak > most] == []


def test_what_is_made_again_beside_a_replaced_model_has_the_budget_passed_by_nothing():
    """The calls that make a map again found no room beside the garbage, and ran all the same."""
    width, peaks, budget = 140, [], 1000

    def make():
        layers = [layer for function in (F.relu, F.tanh, F.sigmoid, F.elu, F.relu) for layer in (
            L.Linear(width, width), function)]
        model = chainer.Sequential(*layers, L.Linear(width, 10))
        return model, chainer.optimizers.MomentumSGD().setup(model)

    def learn(model, optimizer):
        with chainer.using_config('ooc_budget', budget):
            loss = F.softmax_cross_entropy(model(np.ones((200, width), 'f')), np.zeros(200, 'i'))
            model.cleargrads()
            loss.backward()
            optimizer.update()
        stats = chainer_ooc.stats()
        if stats.phase == 'run':
            peaks.append((stats.peak_bytes, stats.budget_bytes))

    gc.disable()
    try:
        with ooc('sublinear', budget=budget, min_bytes=1000):
            model, optimizer = make()
            learn(model, optimizer)
            with pytest.raises(InfeasibleBudgetError) as refused:
                learn(model, optimizer)
            budget = int(1.02 * refused.value.floor_bytes)
            del refused
            for _ in range(4):
                model, optimizer = make()  # the old one is a cycle
                learn(model, optimizer)
                learn(model, optimizer)
    finally:
        gc.enable()
    assert chainer_ooc.stats().recomputed_calls > 0
    assert len(peaks) >= 6
    assert [(peak, most) for peak, most in peaks if peak > most] == []


WIDTH, LENGTHS = 96, [1, 1, 2, 2, 3, 3]


def make_model():
    """A model that runs several times in an iteration, and its optimizer."""
    model = chainer.Sequential(*(layer for _ in range(6) for layer in (L.Linear(WIDTH, WIDTH), F.tanh)))
    return model, chainer.optimizers.MomentumSGD(1e-6).setup(model)


def learn(model, optimizer, lengths, keeps=False):
    """An iteration of each length; those of the shortest leave a view of each map in a cycle if it `keeps` them."""
    for length in lengths:
        h, cycle = np.ones((200, WIDTH), 'f'), []
        for _ in range(length):
            h = model(h)
            if keeps and length == min(LENGTHS):
                cycle += [cycle, h.array[:1]]
        loss = F.sum(h)
        del h, cycle
        model.cleargrads()
        loss.backward()
        del loss
        optimizer.update()


def learn_within_the_floor(model, optimizer):
    """Has all lengths be known, within 1.02 times the floor that is named in the end."""
    for _ in LENGTHS:
        try:
            learn(model, optimizer, LENGTHS)
        except InfeasibleBudgetError as error:
            chainer.config.ooc_budget = int(1.02 * error.floor_bytes)
    learn(model, optimizer, LENGTHS)


@pytest.fixture
def no_collector():
    """Python collects when it is told to."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures('no_collector')
@pytest.mark.parametrize('policy', ['pooch', *NIGHTLY])
def test_a_replaced_model_that_waits_for_the_collector_refuses_no_plan_that_is_turned_to(policy):
    """As in a notebook whose cell makes the model anew; the plan of a longer graph was refused beside all old ones."""
    with ooc(policy, budget=1000, min_bytes=1000):
        model, optimizer = make_model()
        learn_within_the_floor(model, optimizer)
        chainer.config.ooc_budget += sum(each.array.nbytes for each in model.params())
        for _ in range(4):
            model, optimizer = make_model()  # the old one is a cycle
            learn(model, optimizer, LENGTHS)


@pytest.mark.usefixtures('no_collector')
@pytest.mark.parametrize('policy', ['pooch', *NIGHTLY])
def test_maps_of_earlier_iterations_that_wait_for_the_collector_refuse_no_plan_that_is_turned_to(policy):
    """What they took when the iteration began was counted for the plan of a longer graph, though it had gone."""
    model, optimizer = make_model()
    with ooc(policy, budget=1000, min_bytes=1000):
        learn_within_the_floor(model, optimizer)
        for _ in range(4):
            learn(model, optimizer, [1, 3], keeps=True)


def test_what_earlier_iterations_have_left_counts_as_long_as_it_is_there():
    """The same, looked at itself: whether a plan is refused depends on when Python collects."""
    model, optimizer = make_model()
    with ooc('swap-all', min_bytes=1000):
        learn(model, optimizer, [1, 1])
        first = model[0](np.ones((200, WIDTH), 'f'))
        F.sum(first).backward()
        held = first.array[:1]
        del first
        h = model[0](np.ones((200, WIDTH), 'f'))
        h = F.tanh(h)
        room = sessions.current()._iteration.room
        before_bytes = room.left_bytes
        room.look_at_left()
        assert room.left_bytes == before_bytes >= held.base.nbytes
        del held
        room.look_at_left()
        assert room.left_bytes < before_bytes
