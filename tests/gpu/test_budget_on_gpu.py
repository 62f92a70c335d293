"""P3 on a GPU: no moment of a training holds more than the budget, by the allocator's figures and by the driver's."""
import threading

import chainer
import pytest

import chainer_ooc
from support.gpu.gpu_training import GpuTraining, in_core_peak, least_budget, tight_budget, train
from support.trainings.ooc_training import ooc

NETWORK = 'resnet'
SIZE = 1024  # images: maps of up to 34 MB, beside which pages of 2 MiB are small
ALLOCATORS = ('pool', 'virtual', 'async')  # managed memory is wherever the driver has put it

#: What the driver counts and no budget can: kernels that are loaded when they first run, and library workspaces.
LIBRARIES_BYTES = 64 << 20
SAMPLE_SECONDS = 0.0002


class Watch:
    """Looks at the driver's figure from a thread, at each allocation, and around each function."""

    def __init__(self):
        self.highest_bytes, self.looks = 0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def look(self):
        from support.gpu.gpu_allocations import taken_bytes
        self.highest_bytes = max(self.highest_bytes, taken_bytes())
        self.looks += 1

    def _run(self):
        while not self._over.wait(SAMPLE_SECONDS):
            self.look()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


class Looks(chainer.FunctionHook):
    name = 'Looks'

    def __init__(self, watch):
        self.watch = watch

    def forward_postprocess(self, function, inputs):
        self.watch.look()

    def backward_postprocess(self, function, inputs, grads):
        self.watch.look()


# Of 'async' the driver's own pool takes a step too much for a moment, before it is asked what it holds.
@pytest.mark.parametrize('allocator', ['pool', 'virtual'])
@pytest.mark.parametrize('policy', ['swap-all', 'pooch', 'superneurons'])
def test_the_driver_never_sees_more_than_the_budget(policy, allocator, device_memory):
    from support.gpu.gpu_allocations import each_malloc

    budget = tight_budget(NETWORK, policy, SIZE, allocator)
    train(NETWORK, policy, 3, batch={'size': SIZE}, budget=budget, allocator=allocator)  # loads all kernels
    chainer_ooc.reset()
    base_bytes = device_memory()
    with Watch() as watch:
        def looked(malloc, nbytes):
            memory = malloc(nbytes)
            watch.look()
            return memory

        with each_malloc(looked):
            outcome = train(NETWORK, policy, 6, batch={'size': SIZE}, budget=budget, allocator=allocator,
                            hooks=[Looks(watch)])
    assert watch.looks > 500
    assert policy != 'swap-all' or outcome.stats[-1].swapped_out_bytes > 0
    assert watch.highest_bytes - base_bytes <= budget + LIBRARIES_BYTES
    assert in_core_peak(NETWORK, SIZE) > budget + LIBRARIES_BYTES, 'the budget is too near in-core to show anything'
    assert max(each.peak_bytes for each in outcome.stats[1:]) <= budget


@pytest.mark.parametrize('allocator', ALLOCATORS)
def test_the_allocator_never_holds_more_than_the_budget(allocator):
    from support.gpu.gpu_allocations import each_malloc

    held = []

    def looked(malloc, nbytes):
        memory = malloc(nbytes)
        held.append(malloc.allocator.held_bytes())
        return memory

    budget = tight_budget(NETWORK, 'swap-all', SIZE, allocator)
    with each_malloc(looked):
        train(NETWORK, 'swap-all', 4, batch={'size': SIZE}, budget=budget, allocator=allocator)
    assert len(held) > 100
    assert max(held) <= budget


def test_a_budget_that_nothing_fits_in_is_refused_with_the_smallest_that_works():
    tried = []

    def run(budget):
        tried.append(budget)
        training = GpuTraining(NETWORK, size=SIZE)
        with ooc('swap-all', min_bytes=10_000, budget=budget):
            training.iterate(4)
        return training.outcome.stats

    budget = least_budget(in_core_peak(NETWORK, SIZE) // 8, run)  # the batch, and little beside it
    assert 1 < len(tried) < 9
    assert max(each.peak_bytes for each in run(budget)[-2:]) <= budget


def test_without_a_budget_a_training_takes_what_the_device_has_left(device_memory):
    import cupy

    in_core_bytes = in_core_peak(NETWORK, SIZE)
    chainer_ooc.reset()
    device_memory()
    free_bytes, _ = cupy.cuda.runtime.memGetInfo()
    ballast_bytes = free_bytes - int(0.8 * in_core_bytes) - LIBRARIES_BYTES
    ballast = cupy.cuda.runtime.malloc(ballast_bytes)
    try:
        outcome = train(NETWORK, 'pooch', 4, batch={'size': SIZE})
    finally:
        cupy.cuda.runtime.free(ballast)
    assert outcome.stats[-1].swapped_out_bytes + outcome.stats[-1].recomputed_calls > 0
    assert outcome.stats[-1].peak_bytes < in_core_bytes
