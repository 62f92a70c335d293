"""P9 on a GPU: what is refused costs time or one iteration, never a bit, and the next iteration works."""
import contextlib
import gc
import traceback

import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError, SpillError
from support.gpu.gpu_training import GpuTraining, plain, tight_budget, train
from support.trainings.ooc_training import assert_same_bits, ooc

LARGE_BYTES = 500_000


@pytest.mark.parametrize('policy', ['swap-all', 'swap-all-naive'])
@pytest.mark.parametrize('refuse_from', [2, 6])
def test_where_pinned_memory_is_refused_maps_go_to_the_spill_file(policy, refuse_from):
    from support.gpu.gpu_allocations import Pinned

    budget = tight_budget('residual', policy)
    with Pinned().watched() as pinned:
        pinned.refuse_from = refuse_from
        outcome = train('residual', policy, budget=budget)
    assert pinned.refused > 0
    assert_same_bits(outcome, plain('residual'))
    assert outcome.stats[-1].swapped_in_bytes > 0


def test_where_nothing_at_all_can_be_pinned_an_error_says_so_or_training_goes_on():
    # Not even a staging block: then nothing can leave, and only a budget that needs no swap works.
    from support.gpu.gpu_allocations import Pinned

    with Pinned().watched() as pinned:
        pinned.refuse_from = 0
        try:
            bits = train('residual', 'swap-all').bits
        except SpillError as refused:
            text = str(refused)
        else:
            text = 'pinned'
            assert bits == plain('residual')
    assert 'pin' in text.lower()
    assert_same_bits(train('residual', 'swap-all'), plain('residual'))


def test_a_small_limit_on_pinned_memory_is_kept_and_changes_no_bit():
    from support.gpu.gpu_allocations import Pinned

    limit_bytes, budget = 32 << 20, tight_budget('residual', 'swap-all')
    chainer_ooc.reset(unpin=True)
    with Pinned().watched() as pinned:
        outcome = train('residual', 'swap-all', budget=budget, host_limit=limit_bytes)
    assert_same_bits(outcome, plain('residual'))
    assert 0 < pinned.highest_bytes <= limit_bytes + (64 << 20), 'beside far copies there are staging blocks'


class Refusals:
    """Has the device refuse requests of `LARGE_BYTES` and more, in the iteration that a test chooses."""

    def __init__(self, after, times):
        self.after, self.times = after, times
        self.counts, self.seen, self.refused = False, 0, 0

    def __call__(self, malloc, nbytes):
        if self.counts and nbytes >= LARGE_BYTES:
            self.seen += 1
            if self.after < self.seen <= self.after + self.times:
                self.refused += 1
                raise MemoryError(f'planted: no {nbytes} bytes')
        return malloc(nbytes)


@contextlib.contextmanager
def counting(refusals):
    refusals.counts = True
    try:
        yield
    finally:
        refusals.counts = False


@pytest.mark.parametrize('at', [1, 2])
@pytest.mark.parametrize('after', [1, 7, 15])  # the first is the batch, which the program sends outside of functions
def test_a_refusal_in_the_midst_of_an_iteration_is_met_by_making_room(after, at):
    from support.gpu.gpu_allocations import each_malloc

    refusals = Refusals(after, 2)  # as many as the tries before somebody is asked to make room
    with each_malloc(refusals), ooc('swap-all', min_bytes=10_000, budget=tight_budget('residual', 'swap-all')):
        training = GpuTraining('residual')
        for number in range(4):
            with counting(refusals) if number == at else contextlib.nullcontext():
                training.iterate()
        training.finish()
    assert refusals.refused == 2
    assert_same_bits(training.outcome, plain('residual'))


@pytest.mark.parametrize('after', [2, 12])
def test_a_device_that_goes_on_refusing_ends_the_iteration_and_no_more(after):
    from support.gpu.gpu_allocations import FUNCTION, each_malloc

    refusals = Refusals(after, 10**9)
    with each_malloc(refusals), ooc('swap-all', min_bytes=10_000, budget=tight_budget('residual', 'swap-all')):
        training = GpuTraining('residual')
        training.iterate(2)
        with counting(refusals), pytest.raises((MemoryError, InfeasibleBudgetError)) as refused:
            _forward_and_backward(training)
        text = str(refused.value)
        del refused  # its cause has frames too, and these have arrays
        gc.collect()
        training.iterate(2)
        training.finish()
    assert refusals.refused > 0
    assert 'ooc_budget' in text and ('MB' in text or 'bytes' in text)
    assert FUNCTION.search(text), f'the error names no function: {text}'
    assert [each.phase for each in training.outcome.stats[-1:]] == ['run']


def test_after_a_refusal_nothing_is_left(device_memory):
    from support.gpu.gpu_allocations import Pinned, each_malloc

    train('residual', 'swap-all', 2)
    chainer_ooc.reset()
    before_bytes = device_memory()
    refusals = Refusals(10, 10**9)
    with Pinned().watched() as pinned, each_malloc(refusals):
        with ooc('swap-all', min_bytes=10_000):
            training = GpuTraining('residual')
            training.iterate(2)
            with counting(refusals), pytest.raises((MemoryError, InfeasibleBudgetError)) as refused:
                training.iterate()
        traceback.clear_frames(refused.tb)
        del training, refused
        gc.collect()
        chainer_ooc.reset(unpin=True)
    assert pinned.nbytes == 0
    assert device_memory() <= before_bytes + (4 << 20)


def test_an_exception_of_the_user_leaves_the_next_iteration_whole():
    with ooc('swap-all', min_bytes=10_000, budget=tight_budget('residual', 'swap-all')):
        training = GpuTraining('residual')
        training.iterate(2)
        state = {name: value.array.copy() for name, value in training.model.namedparams()}
        persistent = {f'{path}/{name}': getattr(link, name) + 0 for path, link in training.model.namedlinks()
                      for name in link._persistent}
        with pytest.raises(ZeroDivisionError):
            _broken_off(training)
        gc.collect()
        for path, link in training.model.namedlinks():
            for name in link._persistent:
                setattr(link, name, persistent[f'{path}/{name}'])
        assert all(bool((value.array == state[name]).all()) for name, value in training.model.namedparams())
        training.iterate(2)
        training.finish()
    assert_same_bits(training.outcome, plain('residual'))


def _forward_and_backward(training):
    loss = training.forward()
    training.model.cleargrads()
    loss.backward()


def _broken_off(training):
    loss = training.forward()
    assert loss is not None
    raise ZeroDivisionError('the user')
