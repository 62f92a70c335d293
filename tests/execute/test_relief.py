"""Allocations in the middle of a computation, on a device that refuses what does not fit: who makes room, who fails.

The device is the host with an allocator that is asked by the functions of these tests themselves: `Hungry` allocates as
it runs, and finds so many bytes missing.
"""
import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.host import HostBackend
from chainer_ooc.errors import DeviceMemoryError, InfeasibleBudgetError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.storage.states import State
from support.devices import chosen
from support.trainings.ooc_training import ooc

MAP_BYTES = 64 * 1024


class StrictBackend(HostBackend):
    """A host whose allocator has a limit, and lacks what others have taken."""

    on_out_of_memory = None
    taken_bytes = 0

    def has_room(self, nbytes):
        return not self.taken_bytes and super().has_room(nbytes)

    def lacking_bytes(self, nbytes):
        return self.taken_bytes

    def limit(self, nbytes, on_out_of_memory):
        self.limit_bytes, self.on_out_of_memory = nbytes, on_out_of_memory


@pytest.fixture
def device(tmp_path):
    chainer_ooc.reset()
    with chosen(lambda spill_dir: StrictBackend(str(tmp_path))) as made:
        yield lambda: made[-1]
        chainer_ooc.reset()


class Hungry(chainer.FunctionNode):
    """Adds one, and allocates on the way."""

    def __init__(self, device, missing_bytes, act=None):
        self._device, self._missing_bytes, self._act = device, missing_bytes, act

    def forward(self, inputs):
        if self._missing_bytes:
            self.answer = self._device().on_out_of_memory(self._missing_bytes)
        if self._act is not None:
            self._act()
        return inputs[0] + 1,

    def backward(self, indexes, grads):
        return grads


def loss_of(device, missing_bytes=0, act=None):
    """A chain of functions that retain their outputs, with the hungry one at its end."""
    h = chainer.Parameter(np.full((128, 128), 0.1, 'f4')) * 2
    for _ in range(4):
        h = F.sigmoid(h)
    return F.sum(Hungry(device, missing_bytes, act).apply((h,))[0])


def states():
    return [each.state for each in sessions.current().memory.known() if each.nbytes == MAP_BYTES]


def gradient_bits(device, **hunger):
    loss = loss_of(device, **hunger)
    loss.backward()
    return loss.array.tobytes()


def test_what_is_missing_leaves_and_the_bits_stay(device):
    with ooc('keep', budget=100 * MAP_BYTES):
        plain = [gradient_bits(device) for _ in range(2)]
        seen = []
        assert gradient_bits(device, missing_bytes=2 * MAP_BYTES, act=lambda: seen.extend(states())) == plain[0]
    assert sum(state in (State.AWAY, State.LOST) for state in seen) >= 2


def test_an_input_of_the_running_function_never_leaves(device):
    with ooc('keep', budget=100 * MAP_BYTES):
        gradient_bits(device)
        seen = []

        def look():
            seen.extend(each.state for each in sessions.current().memory.pinned)

        gradient_bits(device, missing_bytes=1000 * MAP_BYTES, act=look)
    assert seen == [State.RESIDENT]


def test_nobody_makes_room_where_nothing_can_leave(device):
    with ooc('keep', budget=100 * MAP_BYTES):
        first = Hungry(device, 0)
        F.sum(first.apply((np.zeros((128, 128), 'f4'),))[0])
        hungry = Hungry(device, MAP_BYTES)
        hungry.apply((np.zeros(4, 'f4'),))
    assert hungry.answer is False


@pytest.mark.usefixtures('nothing_quiet')
@pytest.mark.parametrize('when', ['within a call', 'before a call'])
def test_a_plan_leaves_alone_what_was_missing_under_it(device, when):
    with ooc('swap-opt', budget=1):
        gradient_bits(device)
        with pytest.raises(InfeasibleBudgetError) as refused:
            gradient_bits(device)
    budget = refused.value.floor_bytes + MAP_BYTES
    with ooc('swap-opt', budget=budget):
        for _ in range(3):
            gradient_bits(device)
        graph = sessions.current()._graphs.latest()
        assert (graph.slack_bytes, chainer_ooc.plan().peak_bytes > budget - MAP_BYTES // 2) == (0, True)
        device().taken_bytes = MAP_BYTES // 2 if when == 'before a call' else 0
        for _ in range(2):
            gradient_bits(device, missing_bytes=MAP_BYTES // 2 if when == 'within a call' else 0)
        device().taken_bytes = 0
        gradient_bits(device)
        assert graph.slack_bytes == MAP_BYTES // 2
        assert chainer_ooc.plan().peak_bytes <= budget - MAP_BYTES // 2


def test_a_shortage_that_comes_again_at_least_doubles_what_plans_leave_alone(device):
    slack = []
    with ooc('swap-all', budget=1000 * MAP_BYTES):
        gradient_bits(device)
        for missing_bytes in (MAP_BYTES, 1, 3 * MAP_BYTES):
            for _ in range(2):
                gradient_bits(device, missing_bytes=missing_bytes)
            gradient_bits(device)
            slack.append(sessions.current()._graphs.latest().slack_bytes)
    assert slack == [MAP_BYTES, 2 * MAP_BYTES, 5 * MAP_BYTES]


def test_a_plan_that_cannot_leave_so_much_alone_is_made_all_the_same(device):
    with ooc('swap-all', budget=100 * MAP_BYTES):
        for _ in range(3):
            gradient_bits(device)
        for _ in range(2):
            gradient_bits(device, missing_bytes=1000 * MAP_BYTES)
        gradient_bits(device)
        assert sessions.current()._graphs.latest().slack_bytes == 1000 * MAP_BYTES
        assert chainer_ooc.stats().phase == 'run'


def test_the_first_iteration_under_a_plan_tells_nothing(device):
    with ooc('swap-all', budget=100 * MAP_BYTES):
        gradient_bits(device)
        gradient_bits(device, missing_bytes=MAP_BYTES)
        gradient_bits(device)
        assert sessions.current()._graphs.latest().slack_bytes == 0


def refuse():
    raise DeviceMemoryError('no room on the device', 101 * MAP_BYTES)


def test_a_refusal_names_the_function_and_the_smallest_budget_and_the_next_iteration_works(device):
    with ooc('swap-all', budget=100 * MAP_BYTES):
        bits = gradient_bits(device)
        with pytest.raises(InfeasibleBudgetError, match='set by Hungry, forward of call 5') as refused:
            loss_of(device, act=refuse)
        assert refused.value.floor_bytes == 101 * MAP_BYTES
        assert isinstance(refused.value.__cause__, DeviceMemoryError)
        assert gradient_bits(device) == bits


def test_the_first_function_of_all_is_named_too(device):
    with ooc('swap-all', budget=100 * MAP_BYTES), pytest.raises(InfeasibleBudgetError, match='forward of Hungry'):
        Hungry(device, 0, refuse).apply((np.zeros((4, 4), 'f4'),))


def test_a_device_that_is_full_below_the_budget_says_so_itself(device):
    with ooc('swap-all', budget=200 * MAP_BYTES):
        gradient_bits(device)
        with pytest.raises(DeviceMemoryError, match='no room on the device'):
            loss_of(device, act=refuse)
