"""Maps that could leave stay until far memory is ready: a training does not stand still while memory is pinned."""
import contextlib
import time
from types import SimpleNamespace

import pytest

import chainer_ooc
from chainer_ooc.backends.cuda import CudaBackend
from chainer_ooc.execute.iteration import departures
from chainer_ooc.execute.storage.states import State
from chainer_ooc.problem import Verdict
from support import pinning
from support.devices import chosen
from support.trainings.ooc_training import Training, assert_same_bits, ooc, plain, train_at_the_floor

#: What the backend pins to measure its bandwidth.
SAMPLES_BYTES = (64 << 20, 4096)

#: With the second and the third a map is read again before its swap-out has ended.
SEEDS = (0, 1, 8)


@pytest.fixture
def driver(request):
    """The device of all sessions, whose thread has pinned what it was asked for when an iteration ends."""
    made = pinning.Pinner(seed=getattr(request, 'param', 0), enforces=False)
    chainer_ooc.reset(unpin=True)
    with chosen(lambda folder: CudaBackend(folder, host_limit_bytes=1 << 30, driver=made)):
        yield made
        made.gate.set()
        chainer_ooc.reset(unpin=True)
    assert made.misuses == []
    assert made.left_behind() == []


def pinned_by_caller(driver):
    return [nbytes for nbytes in driver.by_caller if nbytes not in SAMPLES_BYTES]


def peak_bytes():
    with ooc('keep'):
        training = Training('residual')
        training.iterate(2)
    chainer_ooc.reset(unpin=True)
    return training.outcome.stats[-1].peak_bytes


def swapped_out_bytes(training):
    return [each.swapped_out_bytes for each in training.outcome.stats]


def test_a_recorded_iteration_pins_nothing_while_near_memory_is_less_than_half_full(driver):
    with ooc('swap-all', budget=1 << 30):
        training = Training('residual')
        training.iterate()
    assert swapped_out_bytes(training) == [0]
    assert (driver.by_caller, driver.by_thread) == ([], [])


def test_the_program_itself_pins_nothing(driver):
    with ooc('swap-all', budget=int(1.5 * peak_bytes())):
        training = Training('residual')
        for _ in range(6):
            training.iterate()
            time.sleep(0.05)
        training.finish()
    assert pinned_by_caller(driver) == []
    assert swapped_out_bytes(training)[-1] > 0
    assert_same_bits(training.outcome, plain('residual', 6))


def test_a_plan_is_pinned_for_beforehand_in_few_regions(driver):
    with ooc('swap-all', budget=1 << 30):
        training = Training('residual')
        training.iterate(2)
        plan, trace = chainer_ooc.plan(), chainer_ooc.trace()
        swapped_bytes = sum(each.nbytes for each, verdict in zip(trace.maps, plan.verdicts, strict=True)
                            if verdict is Verdict.SWAP)
        time.sleep(0.05)
        training.iterate(2)
    assert driver.by_thread[0] >= swapped_bytes > 0, 'all of it at once'
    assert swapped_out_bytes(training)[-1] > 0


def test_a_training_goes_on_while_memory_is_pinned(driver):
    driver.gate.clear()
    with ooc('swap-all', budget=1 << 30):
        training = Training('residual')
        training.iterate(3)
        assert (swapped_out_bytes(training), pinned_by_caller(driver)) == ([0, 0, 0], [])
        driver.gate.set()
        time.sleep(0.05)
        training.iterate(3)
        training.finish()
    assert swapped_out_bytes(training)[-1] > 0
    assert_same_bits(training.outcome, plain('residual', 6))


def test_what_memory_is_short_of_waits_for_the_thread(driver):
    driver.thread_seconds = 0.01
    training, floor_bytes = train_at_the_floor('residual', 'swap-all')
    assert max(each.peak_bytes for each in training.outcome.stats[1:]) <= floor_bytes
    assert_same_bits(training.outcome, plain('residual'))
    assert swapped_out_bytes(training)[-1] > 0


def recorded(driver, share):
    chainer_ooc.reset(unpin=True)
    with contextlib.ExitStack() as stack, ooc('pooch', budget=1 << 30):
        stack.enter_context(pinning.at_once())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(departures, 'SHARE_THAT_STAYS', share)
        training = Training('residual')
        training.iterate()
        return chainer_ooc.trace(), swapped_out_bytes(training)[0]


@pytest.mark.parametrize('driver', SEEDS, indirect=True)
def test_what_stays_is_recorded_as_what_leaves(driver):
    """The program held none of it: a plan may have it leave as early as before.

    A map that a call reads while it is still leaving is noted as held up to that call, which is no later than its use.
    """
    stayed, eager = recorded(driver, 0.5), recorded(driver, 0.0)
    assert stayed[1] == 0 < eager[1]
    for here, there in zip(stayed[0].maps, eager[0].maps, strict=True):
        assert (here.leaves_at, here.last_forward_use) == (there.leaves_at, there.last_forward_use)


class FarMemory:
    """Counts what a call asks about; nothing is ever ready."""

    prepares_far_memory = True

    def __init__(self):
        self.asked = 0

    def is_prepared(self, nbytes):
        self.asked += 1
        return False

    def prepare(self, sizes):
        pass


class Resident:
    """A map that could leave."""

    nbytes, state, recalled = 100, State.RESIDENT, False

    def __init__(self, memory):
        self.memory = memory

    def is_retained(self):
        return True


def test_a_call_looks_at_some_of_those_that_wait_however_many_there_are():
    memory = SimpleNamespace(backend=FarMemory(), budget_bytes=1000, leaving=(), near_bytes=lambda: 10**9,
                             can_leave=lambda storage: True)
    waits = departures.Waiting(memory, SimpleNamespace(graph=None))
    maps = [Resident(memory) for _ in range(1000)]
    assert all(map(waits.takes, maps))
    memory.backend.asked = 0
    for _ in range(10):
        waits.go_on()
    assert memory.backend.asked == 10 * departures.LOOKED_AT
