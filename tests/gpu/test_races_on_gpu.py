"""Missing waits made to show: memory that is handed out again is NaN at once, and streams are late by turns.

    compute   [... k ...][NaN into the block that k freed][ ... ]     a copy that still reads it, or that filled it too
    out       [ copy of the block ]                                   early, carries NaN into the losses
    in                    [ copy into a block ]

Each test has plain Chainer's bits as its measure. Where no wait is missing the NaN are overwritten before anybody reads
them, whoever is late.
"""
import contextlib
import random
import threading

import chainer
import chainer.functions as F
import pytest

from support.gpu.gpu_training import in_core_peak, least_budget, plain, tight_budget, train
from support.trainings.ooc_training import assert_same_bits, ooc

ALLOCATORS = ('pool', 'virtual', 'async')
SPIN_CYCLES = 2_000_000  # about a millisecond
LOAD_BYTES = 64 << 20
MAP_BYTES = 16 << 20  # of the branches

SPIN = r'''
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) { }
}
'''


@contextlib.contextmanager
def poisoned():
    from support.gpu.gpu_allocations import each_malloc, poison

    with each_malloc(lambda malloc, nbytes: poison(malloc(nbytes))):
        yield


class LateComputations:
    """Has the stream that computes spin before some allocations: copies that do not wait for it come too early.

    No function hook: hooks may write to maps, so that the manager compares checksums, and waits for these.
    """

    def __init__(self, seed):
        import cupy
        self._kernel, self._random = cupy.RawKernel(SPIN, 'spin'), random.Random(seed)
        self._cycles = cupy.int64(SPIN_CYCLES)
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        from support.gpu.gpu_allocations import each_malloc
        self._stack.enter_context(each_malloc(self._malloc))

    def __exit__(self, *error):
        self._stack.close()

    def _malloc(self, malloc, nbytes):
        if self._random.random() < 0.2:
            self._kernel((1,), (1,), (self._cycles,))
        return malloc(nbytes)


@contextlib.contextmanager
def busy_link():
    """Keeps both directions of the link busy from another thread: copies of a training come late, or wait for a gap."""
    import cupy

    runtime = cupy.cuda.runtime
    over = threading.Event()
    pinned = runtime.hostAlloc(2 * LOAD_BYTES, runtime.hostAllocPortable)
    device = [runtime.malloc(LOAD_BYTES) for _ in range(2)]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]

    def load():
        cupy.cuda.Device(0).use()
        while not over.is_set():
            runtime.memcpyAsync(pinned, device[0], LOAD_BYTES, runtime.memcpyDeviceToHost, streams[0].ptr)
            runtime.memcpyAsync(device[1], pinned + LOAD_BYTES, LOAD_BYTES, runtime.memcpyHostToDevice, streams[1].ptr)
            for stream in streams:
                stream.synchronize()

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for address in device:
            runtime.free(address)
        runtime.freeHost(pinned)


@pytest.mark.parametrize('allocator', ALLOCATORS)
@pytest.mark.parametrize('policy', ['swap-all', 'swap-all-naive', 'pooch', 'superneurons', 'capacity', 'vdnn++'])
@pytest.mark.parametrize('network', ['residual', 'hidden', 'inception'])
def test_memory_that_is_handed_out_again_is_nobody_elses(network, policy, allocator):
    budget = tight_budget(network, policy, allocator=allocator)
    with poisoned():
        outcome = train(network, policy, 6, budget=budget, allocator=allocator)
    assert_same_bits(outcome, plain(network, 6))
    if policy.startswith('swap-all') and budget < in_core_peak(network):  # pieces of 'async' are large beside maps
        assert outcome.stats[-1].swapped_in_bytes > 0


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('policy', ['swap-all', 'pooch'])
def test_late_computations_change_no_bit(policy, seed):
    budget = tight_budget('residual', policy)
    with poisoned():
        outcome = train('residual', policy, 6, budget=budget, hooks=[LateComputations(seed)])
    assert_same_bits(outcome, plain('residual', 6))


@pytest.mark.parametrize('policy', ['swap-all', 'pooch'])
def test_late_copies_change_no_bit(policy):
    budget = tight_budget('residual', policy)
    with busy_link(), poisoned():
        outcome = train('residual', policy, 10, budget=budget)
    assert_same_bits(outcome, plain('residual', 10))


@pytest.mark.parametrize('seed', range(2))
def test_both_late_change_no_bit_with_the_disk_behind(seed):
    budget = tight_budget('residual', 'swap-all')
    with busy_link(), poisoned():
        outcome = train('residual', 'swap-all', 6, budget=budget, host_limit=64 << 20, hooks=[LateComputations(seed)])
    assert_same_bits(outcome, plain('residual', 6))


def branched():
    """Two branches on streams of their own, function by function by turns, the first one late.

    Returns:
        The loss, and a number that changes with the gradient; they stay on the device, so that nothing waits for it.
    """
    import cupy

    main, streams = cupy.cuda.get_current_stream(), [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    x = chainer.Variable(cupy.linspace(-1, 1, MAP_BYTES // 4, dtype='f4'))
    maps = [x, x]
    for stream in streams:
        stream.wait_event(main.record())
    with streams[0]:
        cupy.RawKernel(SPIN, 'spin')((1,), (1,), (cupy.int64(20 * SPIN_CYCLES),))
    for _ in range(6):
        for number, stream in enumerate(streams):
            with stream:
                maps[number] = F.tanh(maps[number] * (1.25 + number))
    for stream in streams:
        main.wait_event(stream.record())
    loss = F.sum(maps[0] * maps[1])
    loss.backward()
    return loss.array, x.grad.view('u4').sum(dtype='u8')


def smallest_budget(policy):
    """Within which chunks move behind addresses all the time, while work on other streams reads what was there."""
    def run(budget):
        with ooc(policy, budget=budget):
            for _ in range(3):
                branched()

    return least_budget(8 * MAP_BYTES, run)


@pytest.mark.parametrize('is_short', [False, True])
@pytest.mark.parametrize('policy', ['swap-all', 'pooch'])
def test_branches_on_streams_of_their_own_change_no_bit(policy, is_short):
    with ooc(None):
        expected = branched()
    budget = smallest_budget(policy) if is_short else None
    with ooc(policy, budget=budget), poisoned():
        found = [branched() for _ in range(6)]
        assert {tuple(each.tobytes() for each in one) for one in found} == {tuple(each.tobytes() for each in expected)}


def test_the_poison_would_show(monkeypatch):
    """Without the waits of swap-ins, the test above must fail: it is the measure of itself."""
    from chainer_ooc.backends.cuda.driver import Driver

    budget = tight_budget('residual', 'swap-all')
    with monkeypatch.context() as planted:
        planted.setattr(Driver, 'wait_event', lambda self, stream, event: None)
        with busy_link(), poisoned():
            outcome = train('residual', 'swap-all', 6, budget=budget, hooks=[LateComputations(0)])
    with pytest.raises(AssertionError):
        assert_same_bits(outcome, plain('residual', 6))
