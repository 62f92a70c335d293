"""Iterations on CuPy's own arrays, under the CUDA backend with its budget, over a fake of the device (P1 to P4).

Arrays, views, owners, the allocator and the order of its calls are the real ones; kernels are NumPy, and copies as late
as CUDA allows. What goes wrong between Chainer's graph and CuPy's arrays shows here without a GPU.
"""

import chainer
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.base import SHARE_OF_FREE
from chainer_ooc.backends.host import HostBackend
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.iteration.room import SHARE_ENOUGH, UNACCOUNTED_STEPS
from chainer_ooc.execute.session import Session
from support.devices import chosen
from support.told_ledger import listen
from support.trainings.ooc_training import ooc

cupy = pytest.importorskip('cupy', reason='CuPy is not installed')
cupy_over_host = pytest.importorskip('support.cupy_over_host')

from support.trainings.cupy_chain import (  # noqa: E402
    MAP_BYTES,
    SHAPE,
    Computed,
    array_of,
    expected,
    gradients,
    loss_of,
    masked,
    squared,
    tangent,
)


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('host_limit_bytes', [1 << 30, 0])
@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'swap-all-naive', 'pooch', 'vdnn++'])
def test_the_bits_are_those_of_plain_chainer(on_device, policy, host_limit_bytes, seed):
    with on_device(seed, host_limit_bytes), ooc(policy):
        assert gradients(cupy, 6) == expected(6)
        stats = chainer_ooc.stats()
        assert stats.phase == 'run'
        assert (stats.swapped_out_bytes > 0) == (policy not in ('keep', 'pooch'))
        assert stats.peak_bytes >= 3 * MAP_BYTES
        assert sessions.current().memory.backend.name == 'cuda'
        chainer_ooc.reset()


@pytest.mark.parametrize('seed', range(3))
def test_the_bits_are_the_same_where_maps_are_read_in_pinned_memory(on_device, seed, verdict_mixes):
    with on_device(seed), ooc('map-all'):
        assert gradients(cupy, 6) == expected(6)
        stats = chainer_ooc.stats()
        assert (stats.phase, stats.swapped_in_bytes, stats.swapped_out_bytes > 0) == ('run', 0, True)
        chainer_ooc.reset()


@pytest.mark.parametrize('seed', range(3))
def test_the_limit_of_the_allocator_holds_and_the_bits_stay(on_device, seed):
    with on_device(seed):
        with ooc('swap-all', budget=100 * MAP_BYTES):
            gradients(cupy, 4)
            peak_bytes = chainer_ooc.stats().peak_bytes
        with ooc('pooch', budget=peak_bytes - 2 * MAP_BYTES):
            budget = sessions.current().memory.backend._budget
            highest = []
            listen(budget, lambda kind, nbytes: highest.append(budget.held_bytes()))
            assert gradients(cupy, 6) == expected(6)
            assert chainer_ooc.stats().swapped_out_bytes > 0
        chainer_ooc.reset()
    assert max(highest) <= peak_bytes - 2 * MAP_BYTES


class Weighed(chainer.FunctionNode):
    """Its input times a parameter; the gradients are another function's."""

    def forward(self, inputs):
        return cupy_over_host.apply(cupy, np.multiply, *inputs),

    def backward(self, indexes, grads):
        return grads[0], grads[0]


@pytest.mark.parametrize('older_bytes', [0, 20 << 30, 100 << 30])
@pytest.mark.parametrize('has_parameters', [False, True])
def test_the_default_budget_is_what_is_taken_and_a_share_of_what_is_free(
        on_device, monkeypatch, has_parameters, older_bytes):
    """In each iteration, and beside what was on the device before.

    It was a share of what the budget before had left, nine tenths of nine tenths; and what CuPy's own pool had, which
    is none of what is free, was taken from it once more.
    """
    monkeypatch.setattr(cupy_over_host.HostCalls, 'older_bytes', older_bytes)
    left, budgets = [], []
    with on_device(0), ooc('keep'):
        weight = chainer.Parameter(array_of(cupy, np.ones(SHAPE, 'f4')))
        for _ in range(6):
            x = chainer.Variable(array_of(cupy, np.ones(SHAPE, 'f4')))
            y = loss_of(cupy, Weighed().apply((x, weight))[0] if has_parameters else x)
            y.grad = array_of(cupy, np.ones(SHAPE, 'f4'))
            y.backward()
            budget = sessions.current().memory.backend._budget
            left.append(budget.limit_bytes - budget.outside_bytes())
            budgets.append(chainer_ooc.stats().budget_bytes)
            weight.cleargrad()
            del x, y
        free_bytes = cupy_over_host.HostCalls(cupy).free_bytes()
        chainer_ooc.reset()
    assert len(set(budgets)) == 1
    assert left == pytest.approx([SHARE_OF_FREE * free_bytes] * 6, rel=0.04)  # a budget is a multiple of coarse steps


def test_the_default_budget_follows_what_others_take(on_device, monkeypatch):
    budgets = []
    with on_device(0), ooc('keep'):
        for free_bytes in (1 << 36, 1 << 36, (1 << 36) - (1 << 30), 1 << 34, 1 << 34, 1 << 36):
            monkeypatch.setattr(cupy_over_host.HostCalls, 'free_bytes', lambda calls, nbytes=free_bytes: nbytes)
            gradients(cupy, 1)
            budgets.append(chainer_ooc.stats().budget_bytes)
        chainer_ooc.reset()
    assert budgets[0] == budgets[1] == budgets[2] == budgets[5]
    assert budgets[3] == budgets[4] <= 1 << 34


class Schedule:
    """What is noted at the end of each iteration: bytes that the device lacked, evictions, trims of the allocator."""

    def __init__(self, monkeypatch):
        self.lacks, self.evictions, self.trims = [], [], []
        end = Session._end

        def note(session):
            end(session)
            self._note(session.memory)
        monkeypatch.setattr(Session, '_end', note)

    def _note(self, memory):
        self.lacks.append(memory.tally.missing_bytes)
        self.evictions.append(memory.tally.evictions)
        self.trims.append(memory.backend._budget._allocator.trims)


def train_beside(policy, share, older_maps=0, own_maps=0):
    """Trains with a share of the in-core peak, and with what others take added to the budget; gives its schedule."""
    with ooc('keep', budget=100 * MAP_BYTES):
        gradients(cupy, 4)
        peak_bytes = chainer_ooc.stats().peak_bytes
    chainer_ooc.reset()
    taken_bytes = (older_maps + own_maps) * MAP_BYTES
    rounded_bytes = taken_bytes and (peak_bytes + taken_bytes) // (UNACCOUNTED_STEPS - 1)
    with pytest.MonkeyPatch.context() as patch, ooc(
            policy, budget=int(share * peak_bytes) + taken_bytes + rounded_bytes):
        patch.setattr(cupy_over_host.HostCalls, 'older_bytes', older_maps * MAP_BYTES)
        gradients(cupy, 1)
        held = [cupy.empty(SHAPE, 'f4') for _ in range(own_maps)]
        schedule = Schedule(patch)
        assert gradients(cupy, 8) == expected(8)
        stats = chainer_ooc.stats()
        assert stats.phase == 'run'
        assert stats.peak_bytes <= stats.budget_bytes
        del held
        chainer_ooc.reset()
    return schedule


@pytest.mark.parametrize('policy', ['pooch', 'swap-all', 'vdnn++'])
@pytest.mark.parametrize(('older_maps', 'own_maps'), [(30, 0), (0, 20), (8, 4)])
def test_plans_leave_room_for_memory_that_nobody_accounts_for(on_device, older_maps, own_maps, policy):
    """Weights that were sent to the device before, and arrays of the program's own, were in no plan.

    A plan that filled the budget lacked room in each iteration, and was as it was in the next one.
    """
    with on_device(0):
        alone = train_beside(policy, 0.8)
        schedule = train_beside(policy, 0.8, older_maps, own_maps)
    assert schedule.lacks[-4:] == alone.lacks[-4:] == [0] * 4
    assert schedule.evictions[-4:] == alone.evictions[-4:]
    assert schedule.trims[-1] == schedule.trims[0]


def test_what_stands_beside_a_training_is_not_rounded_by_the_size_of_the_card(on_device, monkeypatch):
    """A 64th of 80 GB, with no budget given, was added to the peak of a network of 30 MB."""
    with on_device(0), ooc('keep', budget=100 * MAP_BYTES):
        gradients(cupy, 3)
        peak_bytes = chainer_ooc.stats().peak_bytes
    with on_device(0), ooc('keep', budget=None):
        monkeypatch.setattr(cupy_over_host.HostCalls, 'older_bytes', 4 * MAP_BYTES)
        gradients(cupy, 3)
        stats = chainer_ooc.stats()
    assert peak_bytes + 3 * MAP_BYTES <= stats.peak_bytes <= peak_bytes + 6 * MAP_BYTES
    assert stats.budget_bytes > 1000 * stats.peak_bytes


def test_a_budget_that_nothing_fits_in_is_refused_and_the_next_iteration_works(on_device):
    with on_device(0):
        with ooc('swap-all', budget=2 * MAP_BYTES), pytest.raises(InfeasibleBudgetError, match='Computed'):
            gradients(cupy, 3)
        with ooc('swap-all', budget=100 * MAP_BYTES):
            assert gradients(cupy, 3) == expected(3)
        chainer_ooc.reset()


def test_what_the_user_reads_or_holds_is_right_whenever_he_looks(on_device):
    held = []

    def look(y):
        node = y.creator_node.inputs[0].creator_node.inputs[0]  # two functions back
        held.append((node, node.data))

    with on_device(1), ooc('swap-all'):
        assert gradients(cupy, 5, look) == expected(5)
        for node, array in held:
            np.testing.assert_array_equal(cupy_over_host.seen(node.data), cupy_over_host.seen(array))
        held.clear()
        del node, array
        chainer_ooc.reset()


def test_a_thread_has_a_session_for_each_device_that_it_trains_on(on_device):
    with on_device(0), ooc('swap-all'):
        gradients(cupy, 2)
        on_cuda = sessions.current()
        with chosen(HostBackend):
            assert gradients(np, 3) == expected(3)
        on_host = sessions.current()
        assert gradients(cupy, 3) == expected(3)
        assert sessions.current() is on_cuda
        assert [each.memory.backend.name for each in (on_cuda, on_host)] == ['cuda', 'host']
        chainer_ooc.reset()


def widened(xp, x, width):
    """Rows that are `width` times as wide as those of the input to the training."""
    return Computed(xp, lambda x: np.resize(x, (len(x), width * SHAPE[1])), lambda gy, x: np.resize(gy, x.shape),
                    keeps=(0,)).apply((x,))[0]


def uneven(xp, rows, iterations):
    """The gradients of a training whose maps have several sizes, as bytes."""
    found = []
    for number in range(iterations):
        draw = np.random.RandomState(number)
        x = chainer.Variable(array_of(xp, draw.uniform(-1, 1, (rows, SHAPE[1])).astype('f4')))
        y = x
        for width in (2, 1, 3, 1):
            y = loss_layers(xp, widened(xp, y, width))
        y.grad = array_of(xp, draw.uniform(-1, 1, y.shape).astype('f4'))
        y.backward()
        found.append(np.array(x.grad if xp is np else cupy_over_host.seen(x.grad)).tobytes())
    return found


def loss_layers(xp, x):
    for layer in (squared, tangent, masked):
        x = layer(xp, x)
    return x


@pytest.mark.parametrize('policy', ['swap-all', 'pooch', 'superneurons', 'capacity'])
def test_a_budget_that_is_named_is_enough_where_memory_comes_in_pieces(on_device, monkeypatch, policy):
    """Bytes that are free fitted nothing: a named budget was refused in its turn, and so on."""
    monkeypatch.setattr(cupy_over_host, 'HostAllocator', cupy_over_host.PiecesAllocator)
    rows = 11_000  # maps of 1.3 chunks, and of twice and three times as much
    with chainer.using_config('ooc', None):
        plain = uneven(np, rows, 6)
    with on_device(0):
        with ooc('keep', budget='2GB'):
            uneven(cupy, rows, 3)
            budget, doubt = chainer_ooc.stats().peak_bytes // 4, 'not asked yet'
        chainer_ooc.reset()
        while doubt:
            with ooc(policy, budget=budget):
                try:
                    uneven(cupy, rows, 3)
                    doubt = ''
                except InfeasibleBudgetError as refused:
                    budget, doubt = int(SHARE_ENOUGH * refused.floor_bytes), refused.doubt
            chainer_ooc.reset()
        with ooc(policy, budget=budget):
            assert uneven(cupy, rows, 6) == plain
            assert chainer_ooc.stats().phase == 'run'
        chainer_ooc.reset()
