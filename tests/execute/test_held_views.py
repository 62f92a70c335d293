"""P3 in programs that keep views of maps: what they hold counts, and no computation passes the budget for it.

    spare --its room is needed--> lost, and still held: it counts, and something else has to make room
"""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.storage.states import State
from support.combinations import spread
from support.trainings.accounts import checked_accounts
from support.trainings.ooc_training import assert_same_bits, bits_of, ooc

ITERATIONS = 5
MAP_BYTES = 128 * 64 * 4

#: What is kept of a map.
VIEWS = {
    'rows': lambda array: array[:1], 'a reshaped array': lambda array: array.reshape(-1),
    'a memoryview': lambda array: np.asarray(memoryview(array))}

#: Whether something of a map is kept, by its number and that of its iteration, and how many pieces outlive that.
KEPT = {
    'in odd iterations': (lambda number, iteration: number % 2 and iteration % 2, 0),
    'until the next iteration': (lambda number, iteration: number == 1, 2),
    'of ever more maps': (lambda number, iteration: number < iteration, 0),
    'of some from the third iteration on': (lambda number, iteration: iteration >= 2 and number in (1, 3), 2)}


class Layers(chainer.ChainList):
    """Linear layers whose maps are used twice."""

    def __init__(self):
        super().__init__(*[L.Linear(64, 64) for _ in range(5)])

    def forward(self, x, keep):
        h = x
        for number, layer in enumerate(self):
            h = F.relu(layer(h))
            h = F.sin(h) * h
            keep(number, h.array)
        return F.sum(F.tanh(h) * h)


class Branches(chainer.Chain):
    """A parameter as large as the maps, whose gradient is on its way for many steps."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.weight = chainer.Parameter(np.random.RandomState(0).rand(128, 64).astype('f4'))

    def forward(self, x, keep):
        loss = before = 0
        for number in range(3):
            h, gate = F.tanh(self.weight * x), F.sigmoid(self.weight * (x + number))
            h += F.sin(before) if number else 0
            keep(number, h.array)
            y = F.exp(h)
            loss += F.sum(F.sin(F.tanh(y) * gate) * F.tanh(y)) + F.sum(gate * gate)
            before = F.exp(np.float32(0.1) * h)
        return loss


def train(network, view, kept):
    """Trains, and gives the bits and the statistics of each iteration."""
    is_kept, outliving = KEPT[kept]
    np.random.seed(0)
    model, bits, stats, views = network(), {}, [], []
    optimizer = chainer.optimizers.MomentumSGD(0.01).setup(model)
    batches = [np.random.RandomState(each).rand(128, 64).astype('f4') for each in range(2)]
    for iteration in range(ITERATIONS):
        loss = model(batches[iteration % 2], lambda number, array, iteration=iteration: (
            views.append(VIEWS[view](array)) if is_kept(number, iteration) else None))
        model.cleargrads()
        loss.backward()
        bits[f'loss {iteration}'] = bits_of(loss.array)
        stats.append(chainer_ooc.stats())
        optimizer.update()
        del views[:len(views) - outliving], loss
    bits.update((name, bits_of(each.array)) for name, each in model.namedparams())
    return bits, stats


def train_within(share, policy, *arguments):
    """Trains with a share of the floor, of each that is named, until one is enough."""
    budget_bytes = 1
    for _ in range(30):  # the program holds more in each iteration than any before has shown
        chainer_ooc.reset()
        try:
            with ooc(policy, budget=budget_bytes):
                return train(*arguments)
        except InfeasibleBudgetError as error:
            if error.floor_bytes <= budget_bytes:
                raise AssertionError('a budget was refused that is no less than the floor') from error
            budget_bytes = int(share * error.floor_bytes)
    raise AssertionError(f'no budget is enough, not even {budget_bytes}')


@pytest.fixture(autouse=True)
def forgotten():
    yield
    chainer_ooc.reset()


@pytest.mark.parametrize(('policy', 'program'), spread(list(chainer_ooc.policies()), [
    (Layers, 'rows', 'in odd iterations'), (Layers, 'a memoryview', 'of ever more maps'),
    (Layers, 'a reshaped array', 'of some from the third iteration on'),
    (Branches, 'rows', 'until the next iteration')], every=8))
def test_no_account_passes_the_budget_for_what_the_program_holds(policy, program):
    with chainer.using_config('ooc', None):
        expected, _ = train(*program)
    for share in (1.02, 1.3):
        with checked_accounts() as wrong:
            bits, stats = train_within(share, policy, *program)
        assert wrong == []
        assert [each for each in stats if each.phase == 'run' and each.peak_bytes > each.budget_bytes] == []
        assert_same_bits(bits, expected)


@pytest.fixture
def spare():
    """The spare maps of a graph that has run backward, and all that holds it."""
    weight = chainer.Parameter(np.full((128, 64), 0.1, 'f4'))
    with ooc('keep', budget=100 * MAP_BYTES):
        for _ in range(3):
            loss = weight * 2
            for _ in range(6):
                loss = F.sigmoid(loss)
            loss = F.sum(loss)
            weight.cleargrad()
            loss.backward()
        found = [each for each in sessions.current().memory.known() if each.state is State.SPARE]
        assert len(found) == 6
        yield found
    del loss, weight


@pytest.mark.usefixtures('nothing_quiet')
def test_what_yields_and_is_held_leaves_no_room(spare):
    memory = sessions.current().memory
    held = [each.root() for each in spare]
    room_bytes = memory.budget_bytes - memory.near_bytes() - len(held) * MAP_BYTES
    assert memory.make_room(room_bytes)
    assert not memory.make_room(room_bytes + 1)
    assert (memory.bytes_of('spare'), memory.near_bytes() + room_bytes) == (0, memory.budget_bytes)


@pytest.mark.usefixtures('nothing_quiet')
def test_pages_that_are_kept_for_all_arrays_give_way_to_spare_maps(spare, monkeypatch):
    memory, kept = sessions.current().memory, []
    spare_bytes = memory.bytes_of('spare')
    left_bytes = memory.budget_bytes - memory.near_bytes()
    monkeypatch.setattr(memory.backend, 'keep_at_most', kept.append)
    memory.limit_kept(left_bytes - spare_bytes)
    assert (memory.bytes_of('spare'), kept) == (spare_bytes, [left_bytes - spare_bytes])
    memory.limit_kept(left_bytes - spare_bytes + 1)
    assert memory.bytes_of('spare') < spare_bytes


@pytest.mark.usefixtures('nothing_quiet')
def test_what_yields_and_is_held_leaves_less_for_what_is_kept(spare, monkeypatch):
    memory = sessions.current().memory
    held, kept = [each.root() for each in spare], []
    monkeypatch.setattr(memory.backend, 'keep_at_most', kept.append)
    left_bytes = memory.budget_bytes - memory.near_bytes()
    memory.limit_kept(left_bytes)
    assert (memory.bytes_of('spare'), kept) == (0, [left_bytes - len(held) * MAP_BYTES])
