"""Each allocator of `chainer.config.ooc_allocator` trains with the same bits, and gives back what it took."""
import contextlib
import gc
import random

import pytest

import chainer_ooc
from chainer_ooc.config import ALLOCATORS
from support.gpu.gpu_training import plain, tight_budget, train
from support.trainings.ooc_training import assert_same_bits

MB = 1 << 20


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch'])
@pytest.mark.parametrize('allocator', ALLOCATORS)
def test_the_bits_are_those_of_plain_chainer(allocator, policy):
    budget = None if policy == 'keep' else tight_budget('residual', policy, allocator=allocator)
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


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('allocator', ['pool', 'virtual'])  # 'async' refuses 5 MB where 21 of 67 MB live
def test_what_lives_keeps_its_content_whatever_is_allocated_and_freed_beside_it(allocator, seed):
    """Also where a chunk of memory is behind several addresses; nothing waits for the device between two kernels."""
    import cupy

    from chainer_ooc.backends.cuda.budget import budget_of

    draws, live = random.Random(seed), {}
    wrong = cupy.zeros((), 'i8')
    budget = budget_of(allocator)
    budget.install()
    try:
        budget.limit_bytes = 64 * MB + budget.outside_bytes()
        for number in range(400):
            while live and (draws.random() < 0.4 or sum(each.nbytes for each in live.values()) > 28 * MB):
                old = draws.choice([*live])
                wrong += (live.pop(old) != old).sum()
            with contextlib.suppress(MemoryError):
                live[number] = cupy.full(draws.randrange(1, 24 * MB) // 4, number, 'i4')
        for number, array in live.items():
            wrong += (array != number).sum()
        assert int(wrong) == 0
        assert budget.held_bytes() <= 64 * MB
    finally:
        live.clear()
        budget.close()
