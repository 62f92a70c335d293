"""Over 200 iterations nothing grows: memory of the device, pinned memory, events, objects."""
import collections
import gc

import pytest

import chainer_ooc
from support.gpu.gpu_training import GpuTraining, tight_budget
from support.trainings.ooc_training import ooc

ITERATIONS, EARLY = 200, 40
MB = 1 << 20

#: Objects of a kind may come and go; a leak of one an iteration is 160.
SLACK_OBJECTS = 40


def census():
    """Number of objects of CuPy, Chainer and this package that the garbage collector knows, by type."""
    gc.collect()
    return collections.Counter(
        f'{type(each).__module__}.{type(each).__qualname__}' for each in gc.get_objects()
        if str(type(each).__module__).startswith(('cupy', 'chainer')))


@pytest.mark.parametrize('policy', ['swap-all', 'pooch', 'superneurons'])
@pytest.mark.parametrize('network', ['residual', 'hidden'])
def test_nothing_grows(network, policy, device_memory):
    from support.gpu.gpu_allocations import Pinned

    with Pinned().watched() as pinned, ooc(policy, min_bytes=10_000, budget=tight_budget(network, policy)):
        training = GpuTraining(network)
        for number in range(ITERATIONS):
            training.iterate()
            training.outcome.bits.clear()
            if number == EARLY:
                early_bytes, early_pinned_bytes, early = device_memory(), pinned.nbytes, census()
        late_bytes, late_pinned_bytes, late = device_memory(), pinned.nbytes, census()
    assert late_bytes <= early_bytes + 4 * MB
    assert late_pinned_bytes <= early_pinned_bytes + MB
    grown = {name: (early[name], count) for name, count in late.items() if count > early[name] + SLACK_OBJECTS}
    # One statistic an iteration is the test's own.
    assert {name: counts for name, counts in grown.items() if not name.endswith('IterationStats')} == {}


def test_pinned_memory_is_pinned_once():
    from support.gpu.gpu_allocations import Pinned

    with Pinned().watched() as pinned, ooc('swap-all', min_bytes=10_000, budget=tight_budget('residual', 'swap-all')):
        training = GpuTraining('residual')
        training.iterate(10)
        calls = pinned.calls
        training.iterate(20)
    assert pinned.calls <= calls + 2, 'pinning costs milliseconds and has to be over after the first iterations'


def test_all_is_given_back_at_reset(device_memory):
    from support.gpu.gpu_allocations import Pinned

    with ooc('swap-all', min_bytes=10_000):
        GpuTraining('residual').iterate(2)
    chainer_ooc.reset(unpin=True)
    before_bytes = device_memory()
    with Pinned().watched() as pinned:
        for _ in range(5):
            with ooc('swap-all', min_bytes=10_000):
                GpuTraining('residual').iterate(3)
            assert pinned.nbytes > 0
            chainer_ooc.reset(unpin=True)
            assert pinned.nbytes == 0
    assert device_memory() <= before_bytes + 4 * MB
