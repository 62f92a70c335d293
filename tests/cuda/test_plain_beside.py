"""Plain Chainer beside a training on a GPU: with `ooc` unset the budget limits nothing, and then it does again."""
import contextlib

import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import DeviceMemoryError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.graphs.graphs import Graphs
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
    squared,
)


def peak_bytes():
    with ooc('swap-all', budget=100 * MAP_BYTES):
        gradients(cupy, 4)
        return chainer_ooc.stats().peak_bytes


@contextlib.contextmanager
def trained_within_twice_the_peak(on_device):
    """A training has run some iterations within a budget, which is given."""
    with on_device(0):
        budget = 2 * peak_bytes()
        with ooc('swap-all', budget=budget):
            gradients(cupy, 6)
            yield budget
        chainer_ooc.reset()


def limit_bytes():
    return sessions.current().memory.backend._budget.limit_bytes


def test_with_ooc_unset_the_program_has_all_of_the_device(on_device):
    """The budget stayed in force for plain Chainer, an evaluation say, where nobody could make room within it."""
    with on_device(0):
        budget = peak_bytes()
        with ooc('swap-all', budget=budget):
            assert gradients(cupy, 3) == expected(3)
            with pytest.raises(DeviceMemoryError):
                cupy.empty(budget + 512, 'u1')
            with chainer.using_config('ooc', None):
                held = [cupy.empty(budget, 'u1') for _ in range(3)]
                assert gradients(cupy, 2) == expected(2)
            del held
            assert gradients(cupy, 2) == expected(2)
            assert limit_bytes() == budget
            assert chainer_ooc.stats().peak_bytes <= budget
        chainer_ooc.reset()


def test_the_budget_is_back_in_force_within_the_iteration(on_device):
    with trained_within_twice_the_peak(on_device) as budget:
        x = chainer.Variable(array_of(cupy, np.ones(SHAPE, 'f4')))
        y = loss_of(cupy, x)
        with chainer.using_config('ooc', None):
            cupy.empty(2 * budget, 'u1')
        assert limit_bytes() > budget
        y.grad = array_of(cupy, np.ones(y.shape, 'f4'))
        y.backward()
        assert limit_bytes() == budget
        del x, y


def test_it_is_back_in_force_for_a_small_call_too(on_device):
    """Calls whose maps never move made room without a look at it."""
    def iterate(beside):
        y = squared(cupy, chainer.Variable(array_of(cupy, np.ones(SHAPE, 'f4'))))
        small = Computed(cupy, lambda x: x[0, :4], lambda gy, x: np.zeros_like(x), keeps=(0,)).apply((y,))[0]
        beside()
        small = F.reshape(small, (2, 2))
        assert limit_bytes() == budget
        small.grad = array_of(cupy, np.ones((2, 2), 'f4'))
        small.backward()

    def plain():
        with chainer.using_config('ooc', None):
            cupy.empty(2 * budget, 'u1')
        assert limit_bytes() > budget

    budget = 40 * MAP_BYTES
    with on_device(0), ooc('swap-all', budget=budget, min_bytes=1000):
        for _ in range(4):
            iterate(lambda: None)
        iterate(plain)
        assert chainer_ooc.stats().phase == 'run'
    chainer_ooc.reset()


def test_what_plain_chainer_was_short_of_is_no_matter_of_plans(on_device):
    with trained_within_twice_the_peak(on_device) as budget:
        with chainer.using_config('ooc', None):
            held = [cupy.empty(budget // 2, 'u1') for _ in range(3)]
        del held
        gradients(cupy, 3)
        assert sessions.current()._graphs.latest().slack_bytes == 0
        assert chainer_ooc.plan().budget_bytes == budget


class Hog(chainer.FunctionNode):
    """Allocates much more than its output."""

    def forward(self, inputs):
        cupy.empty(200 * MAP_BYTES, 'u1')
        return cupy_over_host.apply(cupy, np.add, *inputs, *inputs),


def test_an_interrupt_while_a_budget_is_worked_out_leaves_no_iteration_in_hand(on_device, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with on_device(0), ooc('swap-all', budget=100 * MAP_BYTES):
        gradients(cupy, 3)
        y = squared(cupy, chainer.Variable(array_of(cupy, np.ones(SHAPE, 'f4'))))
        with monkeypatch.context() as patch:
            patch.setattr(Graphs, 'largest_refusal', interrupted)
            with pytest.raises(KeyboardInterrupt):
                Hog().apply((y,))
        assert sessions.current()._iteration is None
        del y
        assert gradients(cupy, 3) == expected(3)
        chainer_ooc.reset()


def test_what_pieces_lose_refuses_no_training_that_fits_the_device(on_device, monkeypatch):
    """A default budget is raised to what iterations need, where the device has that and not what is named beside it."""
    lost_bytes = 20 * MAP_BYTES
    with on_device(0):
        with ooc('keep', budget=100 * MAP_BYTES):
            gradients(cupy, 3)
            card_bytes, made = int(1.03 * chainer_ooc.stats().peak_bytes), []
        chainer_ooc.reset()
        start = cupy_over_host.HostAllocator.__init__
        monkeypatch.setattr(cupy_over_host.HostAllocator, '__init__', lambda self: (start(self), made.append(self))[0])
        monkeypatch.setattr(cupy_over_host.HostAllocator, 'lost_bytes', lambda self, limit_bytes: lost_bytes)
        monkeypatch.setattr(cupy_over_host.HostCalls, 'free_bytes', lambda calls: (
            card_bytes - made[-1].live_bytes if made else card_bytes))
        with ooc('keep', budget=None):
            assert gradients(cupy, 4) == expected(4)
            assert chainer_ooc.stats().phase == 'run'
            assert chainer_ooc.stats().budget_bytes <= card_bytes
        chainer_ooc.reset()
