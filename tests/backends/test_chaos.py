"""What the chaos backend alone promises: whoever breaks the contract sees it, each time, whatever the seed."""
import gc
import itertools

import numpy as np
import pytest

from chainer_ooc import backends
from chainer_ooc.errors import SpillError
from support.chaos import ChaosBackend
from support.chaos.streams import MOST_PATIENCE
from support.devices import chosen

SEEDS = range(20)


@pytest.fixture(params=SEEDS)
def backend(request):
    made = ChaosBackend(request.param)
    yield made
    made.close()


def floats(backend, value, dtype=np.float32):
    """Near memory that was not wrong so far: 100 floats."""
    array = backend.allocate(100 * np.dtype(dtype).itemsize)
    array.view(dtype)[:] = value
    return array


def out(backend, array):
    copy, transfer = backend.swap_out(array)
    transfer.wait()
    return copy


def back(backend, copy, dtype=np.float32):
    into = backend.allocate(copy.nbytes)
    backend.swap_in(copy, into).wait()
    return into.view(dtype)


# What a caller may not do


@pytest.mark.parametrize('dtype', [np.float16, np.float32, np.float64])
def test_a_target_that_is_read_without_a_wait_is_not_a_number(backend, dtype):
    copy = out(backend, floats(backend, 1, dtype))
    into = floats(backend, 2, dtype)
    transfer = backend.swap_in(copy, into)
    assert np.isnan(into.view(dtype)).all()
    transfer.wait()
    assert (into.view(dtype) == 1).all()


def test_memory_that_was_only_allocated_is_not_a_number(backend):
    assert np.isnan(backend.allocate(400).view(np.float32)).all()
    assert (backend.allocate(400).view(np.int32) == -1).all()


def test_a_source_that_is_overwritten_early_shows(backend):
    source = floats(backend, 1)
    copy, transfer = backend.swap_out(source)
    source.view(np.float32)[:] = 2
    transfer.wait()
    source.view(np.float32)[:] = 3
    assert (back(backend, copy) == 2).all()


def test_a_source_that_is_freed_early_is_not_a_number_and_is_named(backend):
    source = floats(backend, 1)
    copy, transfer = backend.swap_out(source)
    del source
    transfer.wait()
    assert np.isnan(back(backend, copy)).all()
    assert backend.misuses == ['swap-out of copy 0 (400 bytes) had its source freed before it was done']


def test_a_source_that_a_view_keeps_is_not_freed(backend):
    source = floats(backend, 1)
    copy, transfer = backend.swap_out(source[:200])
    kept = source[300:]
    del source
    transfer.wait()
    assert (back(backend, copy) == 1).all()
    assert kept.size == 100
    assert backend.misuses == []


def test_a_target_that_is_freed_early_is_named(backend):
    copy = out(backend, floats(backend, 1))
    transfer = backend.swap_in(copy, backend.allocate(400))
    transfer.wait()
    assert backend.misuses == ['swap-in of copy 0 (400 bytes) had its target freed before it was done']
    assert (back(backend, copy) == 1).all()


def test_a_source_may_be_freed_once_nobody_wants_its_copy(backend):
    copy, transfer = backend.swap_out(floats(backend, 1))
    backend.release(copy)
    transfer.wait()
    assert backend.misuses == []


def test_a_released_copy_may_be_released_but_not_used_again(backend):
    copy = out(backend, floats(backend, 1))
    backend.release(copy)
    backend.release(copy)
    with pytest.raises(ValueError, match='released'):
        backend.swap_in(copy, floats(backend, 2))


def test_a_copy_of_another_chaos_backend_is_refused(backend):
    other = ChaosBackend()
    with pytest.raises(ValueError, match='another backend'):
        backend.swap_in(out(other, floats(other, 1)), floats(backend, 2))


def test_far_memory_that_is_given_back_is_poisoned(backend):
    copy = out(backend, floats(backend, 1))
    content = backend._far._contents[0]
    backend.release(copy)
    backend.reserve(0)
    assert np.isnan(content.view(np.float32)).all()
    assert backend.events[-1] == 'copy 0 is given back'


# When copies are made


def test_nothing_moves_before_somebody_waits(backend):
    sources = [floats(backend, value) for value in range(5)]
    swaps = [backend.swap_out(source) for source in sources]
    targets = [backend.allocate(400) for _ in swaps]
    reads = [backend.swap_in(copy, into) for (copy, _), into in zip(swaps, targets, strict=True)]
    assert all('is asked for' in event for event in backend.events)
    assert all(np.isnan(into.view(np.float32)).all() for into in targets)
    reads[-1].wait()
    assert all(into.view(np.float32)[0] == value for value, into in enumerate(targets))


def made(backend, direction):
    return [int(event.split()[3]) for event in backend.events if event.startswith(direction) and 'is made' in event]


def test_each_direction_keeps_its_order_and_a_swap_in_comes_after_its_swap_out(backend):
    sources = [floats(backend, value) for value in range(6)]
    swaps = [backend.swap_out(source) for source in sources]
    targets = [backend.allocate(400) for _ in swaps]
    reads = [backend.swap_in(swaps[number][0], targets[number]) for number in (3, 0, 5)]
    reads[1].wait()
    assert made(backend, 'swap-out')[:4] == [0, 1, 2, 3]
    assert made(backend, 'swap-in')[:2] == [3, 0]
    assert backend.events.index('swap-out of copy 3 (400 bytes) is made') < backend.events.index(
        'swap-in of copy 3 (400 bytes) is made')
    swaps[4][1].wait()
    assert made(backend, 'swap-out') in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5])


def interleaved(seed):
    """The events of a caller who polls, waits and releases."""
    backend = ChaosBackend(seed)
    keep, swaps = [], []
    for value in range(12):
        keep.append(floats(backend, value))
        swaps.append(backend.swap_out(keep[-1]))
        if value % 3 == 2:
            keep.append(backend.allocate(400))
            copy, transfer = swaps[value // 2]
            backend.swap_in(copy, keep[-1])
            swaps[value - 1][1].done  # noqa: B018
            transfer.wait()
    backend.release(swaps[4][0])
    backend.close()
    assert backend.misuses == []
    return backend.events


def test_a_seed_repeats_its_events():
    assert all(interleaved(seed) == interleaved(seed) for seed in SEEDS)


def test_seeds_differ_in_their_order():
    assert len({tuple(interleaved(seed)) for seed in SEEDS}) > len(SEEDS) / 2


def outcomes_of_a_wait():
    """How far the other direction got while a swap-in was waited for, over the seeds."""
    for seed in SEEDS:
        backend = ChaosBackend(seed)
        copy, sources = out(backend, floats(backend, 0)), [floats(backend, value) for value in range(5)]
        swaps = [backend.swap_out(source) for source in sources]
        into = backend.allocate(400)
        backend.swap_in(copy, into).wait()
        yield len(made(backend, 'swap-out')) - 1
        assert len(swaps) == 5
        backend.close()


def test_the_other_direction_gets_far_with_one_seed_and_nowhere_with_another():
    assert {0, 5} <= set(outcomes_of_a_wait())


def test_a_caller_who_polls_gets_there(backend):
    sources = [floats(backend, value) for value in range(4)]
    swaps = [backend.swap_out(source) for source in sources]
    polls = next(count for count in itertools.count(1) if swaps[-1][1].done)
    assert polls <= MOST_PATIENCE
    assert made(backend, 'swap-out') == [0, 1, 2, 3]


def test_a_poll_may_carry_out_a_copy_that_was_not_asked_about():
    early = 0
    for seed in SEEDS:
        backend = ChaosBackend(seed)
        sources = [floats(backend, value) for value in range(4)]
        swaps = [backend.swap_out(source) for source in sources]
        while not swaps[0][1].done:
            pass
        early += len(made(backend, 'swap-out')) > 1
        backend.close()
        assert len(swaps) == 4
    assert 0 < early < len(SEEDS)


def test_polls_differ_between_seeds():
    counts = set()
    for seed in SEEDS:
        backend = ChaosBackend(seed)
        source = floats(backend, 1)
        copy, transfer = backend.swap_out(source)
        counts.add(next(count for count in itertools.count(1) if transfer.done))
        backend.release(copy)
        backend.close()
    assert len(counts) > 2


# Faults and limits


def test_a_failed_swap_out_is_told_at_each_wait_and_takes_its_swap_ins_with_it(backend):
    source = floats(backend, 1)
    backend.fail_next('swap_out')
    copy, transfer = backend.swap_out(source)
    into = floats(backend, 2)
    read = backend.swap_in(copy, into)
    for _ in range(2):
        with pytest.raises(SpillError, match='swap-out of copy 0'):
            read.wait()
        with pytest.raises(SpillError, match='source is still whole'):
            transfer.wait()
    assert (source.view(np.float32) == 1).all()
    assert (back(backend, out(backend, source)) == 1).all()


def test_a_failed_swap_in_can_be_tried_again(backend):
    copy = out(backend, floats(backend, 1))
    backend.fail_next('swap_in', 2)
    targets = [backend.allocate(400) for _ in range(3)]
    reads = [backend.swap_in(copy, into) for into in targets]
    for read in reads[:2]:
        with pytest.raises(SpillError, match='far copy is still whole'):
            read.wait()
    reads[2].wait()
    assert (targets[2].view(np.float32) == 1).all()
    assert np.isnan(targets[0].view(np.float32)).all()


def test_far_memory_has_a_size():
    backend = ChaosBackend(far_bytes=1000)
    backend.reserve(1000)
    arrays = [floats(backend, value) for value in range(3)]
    swaps = [backend.swap_out(array) for array in arrays]
    with pytest.raises(SpillError, match='needed 1 byte, free 0 bytes'):
        backend.reserve(1)
    with pytest.raises(SpillError, match='needed 400 bytes, free 200 bytes'):
        swaps[2][1].wait()
    backend.reserve(200)
    backend.release(swaps[0][0])
    backend.reserve(600)
    assert (back(backend, out(backend, arrays[2])) == 2).all()


def test_near_memory_has_a_size():
    backend = ChaosBackend(near_bytes=1000)
    first = backend.allocate(900)
    assert backend.free_bytes() == 100
    with pytest.raises(MemoryError, match='no 200 bytes of near memory'):
        backend.allocate(200)
    kept = first[:1]
    del first
    assert backend.free_bytes() == 100
    del kept
    gc.collect()
    assert backend.allocate(1000).nbytes == 1000


# How a test has a whole training on it


def test_a_device_is_chosen_for_a_while(tmp_path):
    with chosen(lambda spill_dir: ChaosBackend(3)) as made_ones:
        found = backends.choose('host', backends.BackendOptions(str(tmp_path)))
    assert made_ones == [found]
    assert (found.name, found.seed) == ('chaos', 3)
    host = backends.choose('host', backends.BackendOptions(str(tmp_path)))
    assert host.name == 'host'
    host.close()
