"""Whole trainings on the CUDA backend over a fake of the device: the bits of plain Chainer (P1, P2).

Pinned memory, the spill file, and both by turns; whatever CUDA does not promise is a misuse, and fails the test.
"""
import concurrent.futures
import contextlib
import itertools
import time

import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.cuda import CudaBackend, pages, preparations
from chainer_ooc.execute import sessions
from chainer_ooc.execute.graphs.graph import Graph
from support import pinning
from support.combinations import spread
from support.devices import chosen
from support.fake_driver import FakeDriver
from support.host_runtime import PagesDriver
from support.mutant_devices import AlwaysPassed, ComputeGoesOn, CopiesBeforeKernels
from support.trainings.ooc_networks import NETWORKS
from support.trainings.ooc_training import Training, assert_same_bits, ooc, plain, train_at_the_floor

POLICIES = ['swap-all', 'pooch', 'superneurons']
ROOMY, TIGHT = 1 << 30, 40_000


@contextlib.contextmanager
def on(device, host_limit_bytes):
    """Puts trainings on devices that `device()` makes; gives the backends, whose sessions are closed at the end."""
    def make(spill_dir):
        return CudaBackend(spill_dir, host_limit_bytes=host_limit_bytes, driver=device())

    chainer_ooc.reset()
    with pinning.at_once(), chosen(make) as made:
        yield made
        chainer_ooc.reset(unpin=True)


@contextlib.contextmanager
def on_fakes(seed, host_limit_bytes=ROOMY):
    """Puts trainings on fakes; asserts that the rules were kept and nothing is left."""
    with on(lambda: FakeDriver(seed, enforces=False), host_limit_bytes) as made:
        yield made
    drivers = [backend._driver for backend in made]
    assert drivers
    assert [driver.misuses for driver in drivers] == [[]] * len(drivers)
    assert [driver.left_behind() for driver in drivers] == [[]] * len(drivers)


@pytest.mark.parametrize(('network', 'policy', 'seed'), spread(list(NETWORKS), POLICIES, range(2), every=4))
def test_the_bits_are_those_of_plain_chainer(network, policy, seed):
    with on_fakes(seed), ooc(policy):
        training = Training(network)
        training.iterate(4)
        training.finish()
    assert_same_bits(training.outcome, plain(network))
    assert sum(each.swapped_out_bytes for each in training.outcome.stats) > 0


@pytest.mark.parametrize('policy', POLICIES)
def test_a_backward_pass_of_another_thread_works_on_the_device(policy):
    """Each new thread begins with the first device, and Chainer has each step alone work on the arrays' own."""
    with on_fakes(0), ooc(policy):
        training = Training('residual')
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            training.iterate(4, run_backward=lambda call: pool.submit(call).result())
        training.finish()
    assert_same_bits(training.outcome, plain('residual'))


class Alternating(chainer.FunctionHook):
    """Has each function, or step of backward, compute on another stream than the one before.

    Attributes:
        ran: the numbers of functions, in the order in which the streams came to them.
    """

    def __init__(self, drivers):
        self._drivers, self._streams, self._numbers, self.ran = drivers, [], itertools.count(), []
        self._in_step = False

    def forward_preprocess(self, function, in_data):
        if self._streams:
            number = next(self._numbers)
            self._drivers[-1].launch(self._drivers[-1].current, lambda: self.ran.append(number))

    def forward_postprocess(self, function, in_data):
        if self._drivers and not self._in_step:
            driver = self._drivers[-1]
            self._streams = self._streams or [driver.new_stream(), driver.new_stream()]
            driver.current = self._streams[driver.current is self._streams[0]]

    def backward_preprocess(self, function, in_data, out_grad):
        self._in_step = True  # what a step applies is told as forward

    def backward_postprocess(self, function, in_data, out_grad):
        self._in_step = False
        self.forward_postprocess(function, in_data)


def test_functions_run_in_the_order_of_the_program_whichever_streams_it_puts_them_on():
    drivers = []

    def device():
        drivers.append(FakeDriver(0, enforces=False))
        return drivers[-1]

    with on(device, ROOMY), ooc('keep'), Alternating(drivers) as hook:
        training = Training('residual')
        training.iterate(4)
        training.finish()
        for stream in drivers[-1]._streams:
            drivers[-1].finish(stream)
    assert_same_bits(training.outcome, plain('residual'))
    assert len(hook.ran) > 100
    assert hook.ran == sorted(hook.ran)


@pytest.mark.parametrize(('network', 'policy', 'host_limit_bytes', 'seed'), spread(
    ['residual', 'hidden', 'inception'], POLICIES, [0, TIGHT], range(2), every=4))
def test_the_bits_are_the_same_by_way_of_the_spill_file(network, policy, host_limit_bytes, seed):
    with on_fakes(seed, host_limit_bytes) as made, ooc(policy):
        training = Training(network)
        training.iterate(4)
        training.finish()
    assert_same_bits(training.outcome, plain(network))
    assert made[0]._far.disk.held_bytes() > 0
    for each in training.outcome.stats:
        assert set(each.tier_bytes) == {'pinned', 'file'}
        assert sum(each.tier_bytes.values()) == each.swapped_out_bytes
    assert training.outcome.stats[0].tier_bytes['file'] > 0
    assert ' file), in ' in str(training.outcome.stats[0])


@pytest.mark.parametrize(('network', 'policy', 'seed'), spread(
    ['residual', 'hidden', 'inception', 'views'], ['map-all', 'map-mix-0', 'map-mix-1'], range(2), every=4))
def test_the_bits_are_the_same_where_maps_are_read_in_pinned_memory(network, policy, seed, verdict_mixes):
    with on_fakes(seed), ooc(policy):
        training = Training(network)
        training.iterate(4)
        training.finish()
    assert_same_bits(training.outcome, plain(network))
    assert training.outcome.stats[-1].swapped_out_bytes > 0 == training.outcome.stats[-1].swapped_in_bytes


def test_the_bits_are_the_same_under_policy_unified_where_memory_is_short():
    with on_fakes(1):
        training, _ = train_at_the_floor('residual', 'unified')
    assert_same_bits(training.outcome, plain('residual'))
    assert training.outcome.stats[-1].swap > 0


@pytest.mark.parametrize('network', ['residual', 'hidden'])
@pytest.mark.parametrize('policy', ['map-all', 'map-mix-0'])
def test_what_a_device_cannot_read_in_the_spill_file_is_copied_in(network, policy, verdict_mixes):
    with on_fakes(0, host_limit_bytes=0), ooc(policy):
        training = Training(network)
        training.iterate(4)
        training.finish()
    assert_same_bits(training.outcome, plain(network))
    assert training.outcome.stats[-1].swapped_in_bytes > 0


@pytest.mark.parametrize('network', ['residual', 'hidden', 'inception'])
def test_policy_unified_trains_without_pinned_memory_in_what_capacity_needs(network):
    with on_fakes(1, host_limit_bytes=0):
        _, floor_bytes = train_at_the_floor(network, 'capacity')
        chainer_ooc.reset()
        with ooc('unified', budget=floor_bytes):
            training = Training(network)
            training.iterate(4)
        training.finish()
    assert_same_bits(training.outcome, plain(network))
    assert all(each.swapped_in_bytes > 0 and each.peak_bytes <= floor_bytes for each in training.outcome.stats[1:])


@pytest.mark.parametrize('policy', ['map-all', 'unified'])
def test_a_map_in_the_spill_file_that_the_program_holds_comes_back(policy, verdict_mixes):
    with on_fakes(0, host_limit_bytes=0), ooc(policy):
        weight = chainer.Parameter(np.full((16, 16), 0.1, np.float32))
        for _ in range(3):
            h = chainer.Variable(np.ones((8, 16), np.float32))
            for _ in range(4):
                h = F.tanh(F.matmul(h, weight))
            F.sum(h * h).backward()
        chainer_ooc.reset()
        before = h.array.copy()
    with ooc(None):
        h = chainer.Variable(np.ones((8, 16), np.float32))
        for _ in range(4):
            h = F.tanh(F.matmul(h, weight))
    assert np.array_equal(before, h.array)


@pytest.mark.parametrize('host_limit_bytes', [ROOMY, TIGHT])
@pytest.mark.parametrize('policy', ['swap-all', 'swap-all-naive'])
@pytest.mark.parametrize('network', ['residual', 'hidden', 'inception'])
def test_the_bits_are_the_same_where_memory_is_short(network, policy, host_limit_bytes):
    with on_fakes(1, host_limit_bytes):
        training, _ = train_at_the_floor(network, policy)
    assert_same_bits(training.outcome, plain(network))


def test_later_iterations_pin_nothing_new():
    with on_fakes(0) as made, ooc('swap-all'):
        training = Training('residual')
        training.iterate(2)
        driver = made[0]._driver
        pins = driver.pins
        training.iterate(4)
        assert driver.pins <= pins + 1  # two copies of a size may live at once for the first time
        del driver
        training.finish()
    assert_same_bits(training.outcome, plain('residual', 6))


@pytest.mark.filterwarnings('ignore::RuntimeWarning')  # of what is computed with poison
@pytest.mark.parametrize('mutant', [ComputeGoesOn, CopiesBeforeKernels, AlwaysPassed])
def test_a_device_that_leaves_a_wait_out_is_found_by_a_training(mutant):
    with on(lambda: mutant(0, enforces=False), ROOMY) as made, ooc('swap-all'):
        training = Training('residual')
        training.iterate(3)
        training.finish()
    assert made[0]._driver.misuses or training.outcome.bits != plain('residual', 3)


COMPILING_SECONDS = 0.2


class Compiled(chainer.FunctionNode):
    """Computes what `F.tanh` does; the device compiles a kernel for it first, in so many calls."""

    def __init__(self, compiles):
        self._compiles = compiles

    def forward(self, inputs):
        self.retain_outputs((0,))
        if self._compiles:
            time.sleep(COMPILING_SECONDS)
            preparations.note()
        return np.tanh(inputs[0]),

    def backward(self, indexes, gradients):
        y, = self.get_retained_outputs()
        return gradients[0] * (1 - y * y),


def iterations_that_compile(which):
    """Trains; gives the phase of each iteration, and what the last plan was made from for each call."""
    phases = []
    for number in range(max(which) + 3):
        x = chainer.Variable(np.random.RandomState(number).rand(64, 64).astype('f'))
        h = Compiled(number in which).apply((F.exp(x) * 0.1,))[0]
        F.sum(F.sin(h) * h).backward()
        phases.append(chainer_ooc.stats().phase)
    return phases, chainer_ooc.trace()


@pytest.mark.parametrize('policy', ['pooch', 'swap-all'])
def test_times_of_an_iteration_in_which_kernels_were_compiled_do_not_count(policy):
    """The first plan was made from an iteration whose every call had compiled its kernels."""
    with on_fakes(0), ooc(policy):
        phases, trace = iterations_that_compile(which=[0])
    assert phases == ['profile', 'profile', 'run']
    assert max(call.seconds for call in trace.calls) < COMPILING_SECONDS / 2


def test_a_program_that_always_compiles_gets_a_plan_all_the_same():
    with on_fakes(0), ooc('pooch'):
        phases, _ = iterations_that_compile(which=range(5))
    assert phases[:4] == ['profile', 'profile', 'profile', 'run']


def test_an_iteration_that_compiles_under_a_plan_does_not_have_it_made_anew(monkeypatch):
    noted = []
    monkeypatch.setattr(Graph, 'note_timing', lambda graph, plan, timing: noted.append(timing().total_seconds))
    with on_fakes(0), ooc('swap-all'):
        iterations_that_compile(which=[0, 4])
    assert noted, 'of those that follow the first under a plan'
    assert max(noted) < COMPILING_SECONDS


def test_times_are_asked_for_when_the_device_has_finished(monkeypatch):
    """Those of an iteration as the one after the next begins, so that nothing waits for the last one."""
    recorders, noted = [], []
    monkeypatch.setattr(
        Graph, 'note_timing', lambda graph, plan, timing: noted.append((len(recorders), timing.args[0])))
    with on_fakes(0), ooc('swap-all'):
        training = Training('residual')
        for _ in range(6):
            training.iterate()
            recorders.append(sessions.current()._iteration.recorder)
        training.finish()
    assert noted
    assert all(recorder is recorders[begun - 2] for begun, recorder in noted)


@pytest.mark.parametrize('network', ['residual', 'hidden'])
@pytest.mark.parametrize('policy', ['swap-all', 'pooch'])
def test_the_bits_are_the_same_where_maps_go_to_registered_pages(network, policy, monkeypatch):
    monkeypatch.setattr(pages, 'HUGE_PAGE_BYTES', 1 << 12)  # these maps are small
    driver = PagesDriver(1, enforces=False)
    with on(lambda: driver, ROOMY), ooc(policy):
        training = Training(network)
        training.iterate(4)
        training.finish()
    assert_same_bits(training.outcome, plain(network))
    assert 'hostRegister' in driver.runtime.names()
    assert driver.misuses == driver.left_behind() == driver.runtime.left_behind() == []
