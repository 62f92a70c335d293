"""Each allocator of `chainer.config.ooc_allocator` trains with the same bits, and gives back what it took."""
import gc

import pytest

import chainer_ooc
from chainer_ooc.config import ALLOCATORS
from support.gpu.gpu_training import plain, tight_budget, train
from support.trainings.ooc_training import assert_same_bits

MB = 1 << 20


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch'])
@pytest.mark.parametrize('allocator', ALLOCATORS)
def test_the_bits_are_those_of_plain_chainer(allocator, policy):
    budget = None if policy == 'keep' else tight_budget('residual', policy)
    outcome = train('residual', policy, allocator=allocator, budget=budget)
    assert_same_bits(outcome, plain('residual'))
    if budget is not None:
        assert policy != 'swap-all' or outcome.stats[-1].swapped_in_bytes > 0
        assert max(each.peak_bytes for each in outcome.stats[1:]) <= budget


@pytest.mark.parametrize('allocator', ALLOCATORS)
def test_it_is_the_one_that_arrays_come_from(allocator):
    from support.gpu.gpu_allocations import each_malloc

    asked = []
    with each_malloc(lambda malloc, nbytes: asked.append(malloc.allocator.name) or malloc(nbytes)):
        train('residual', 'swap-all', 2, allocator=allocator)
    assert set(asked) == {allocator}
    assert len(asked) > 20


@pytest.mark.parametrize('allocator', ALLOCATORS)
def test_memory_goes_back_when_training_ends(allocator, device_memory):
    train('hidden', 'swap-all', 2, allocator=allocator)  # what each allocator takes once
    chainer_ooc.reset()
    before_bytes = device_memory()
    for _ in range(3):
        train('hidden', 'swap-all', 2, allocator=allocator)
        chainer_ooc.reset()
    assert device_memory() <= before_bytes + 4 * MB


@pytest.mark.parametrize('allocator', ALLOCATORS)
def test_the_allocator_that_cupy_had_is_back_after_reset(allocator):
    import cupy

    before = cupy.cuda.get_allocator()
    train('residual', 'swap-all', 2, allocator=allocator)
    chainer_ooc.reset()
    assert cupy.cuda.get_allocator() == before


@pytest.mark.parametrize('allocator', ALLOCATORS)
def test_an_array_outlives_the_session_that_it_was_made_in(allocator):
    import cupy

    from support.gpu.gpu_training import GpuTraining
    from support.trainings.ooc_training import ooc

    with ooc('swap-all', allocator=allocator, min_bytes=10_000):
        training = GpuTraining('residual')
        training.iterate(2)
        array = cupy.arange(MB)
    chainer_ooc.reset()
    others = [cupy.full(MB, number) for number in range(8)]
    gc.collect()
    assert int(array.sum()) == MB * (MB - 1) // 2
    assert len(others) == 8
