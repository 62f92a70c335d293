"""Each step of the order of streams, left out once: the fake device has to notice (see `transfer`).

`exercise` goes through a training's moves and checks every byte. On a sound device nothing is wrong; on each mutant
some seed shows wrong bytes or a misuse.
"""
import random

import numpy as np
import pytest

from chainer_ooc.backends.cuda import CudaBackend
from chainer_ooc.backends.cuda.pinned import PinnedMemory
from chainer_ooc.backends.cuda.transfer import CudaTransfer
from chainer_ooc.errors import SpillError
from support.fake_driver import FakeDriver
from support.mutant_devices import (
    AlwaysPassed,
    BlocksUsedEarly,
    ComputeGoesOn,
    CopiesBeforeKernels,
    EndBeforeCopy,
    HostGoesOn,
    InBeforeItsOut,
    InBeforeKernels,
    NeverWaits,
    OutBeforeKernels,
)

SIZES_BYTES = (400, 800, 1200)
SEEDS = range(4)


def exercise(driver, seed, host_limit_bytes):
    """What is wrong after some iterations of swap-outs in forward and swap-ins in backward."""
    wrong = []
    backend = CudaBackend(host_limit_bytes=host_limit_bytes, driver=driver)
    draw = random.Random(seed)
    for iteration in range(6):
        away = _forward(backend, draw, iteration)
        wrong += _backward(backend, draw, away)
    backend.close()
    return wrong + driver.misuses + driver.left_behind()


def _forward(backend, draw, iteration):
    away = []
    for number in range(8):
        source = backend.allocate(SIZES_BYTES[draw.randrange(2 + iteration // 3)])
        value = 16 * iteration + number
        source[:] = value
        copy, transfer = backend.swap_out(source)
        away.append((copy, value))
        if draw.random() < 0.5:
            transfer.wait()
        while not transfer.done:
            pass
        source[:] = 99  # its next owner's
        del source
    return away


def _backward(backend, draw, away):
    wrong, coming = [], []
    while away or coming:
        if away and (len(coming) < 3 or draw.random() < 0.3):
            copy, value = away.pop()
            into = backend.allocate(copy.nbytes)
            coming.append((copy, value, into, backend.swap_in(copy, into)))
            continue
        copy, value, into, transfer = coming.pop(0)
        if draw.random() < 0.5:
            backend.release(copy)  # its block is lent again at once
            other = backend.allocate(draw.choice([copy.nbytes, *SIZES_BYTES]))
            other[:] = 98
            backend.swap_out(other)
        transfer.wait()
        if not (into == value).all():
            wrong.append(f'a copy of {value} came back as {into[0]}')
        again, out = backend.swap_out(into)
        into = backend.allocate(copy.nbytes)
        backend.swap_in(again, into).wait()
        if not (into == value).all():
            wrong.append(f'a copy of {value} came back from a second swap as {into[0]}')
        out.wait()
    return wrong


@pytest.mark.parametrize('seed', SEEDS)
@pytest.mark.parametrize('host_limit_bytes', [1 << 20, 6000, 1500, 0])
def test_a_sound_device_has_nothing_wrong(host_limit_bytes, seed):
    assert exercise(FakeDriver(seed), seed, host_limit_bytes) == []


MUTANTS = [(NeverWaits, 1 << 20), (NeverWaits, 0), (ComputeGoesOn, 1 << 20), (CopiesBeforeKernels, 1 << 20),
           (CopiesBeforeKernels, 0), (OutBeforeKernels, 1 << 20), (OutBeforeKernels, 0), (InBeforeKernels, 1 << 20),
           (InBeforeKernels, 0), (InBeforeItsOut, 1 << 20), (HostGoesOn, 1 << 20), (HostGoesOn, 0),
           (AlwaysPassed, 1 << 20), (EndBeforeCopy, 1 << 20)]


def found_by_a_seed(make, host_limit_bytes):
    return any(_found(make(seed), seed, host_limit_bytes) for seed in SEEDS)


def _found(driver, seed, host_limit_bytes):
    try:
        return exercise(driver, seed, host_limit_bytes)
    except SpillError as error:
        return [str(error)]


@pytest.mark.parametrize(('mutant', 'host_limit_bytes'), MUTANTS)
def test_a_device_that_leaves_a_wait_out_is_found(mutant, host_limit_bytes):
    assert found_by_a_seed(mutant, host_limit_bytes)


@pytest.mark.parametrize('mutant', [OutBeforeKernels, InBeforeKernels, InBeforeItsOut])
def test_a_wait_between_streams_that_is_left_out_is_found_whatever_the_seed(mutant):
    """By the order that is guaranteed, not by the one that came true."""
    for seed in SEEDS:
        driver = mutant(seed)
        exercise(driver, seed, 1 << 20)
        assert driver.misuses


def wrong_with_a_block_that_is_lent_at_once(driver):
    """A released copy's block takes the next one while a swap-in still reads it."""
    backend = CudaBackend(host_limit_bytes=400, driver=driver)
    first, second = backend.allocate(400), backend.allocate(400)
    first[:], second[:] = 1, 2
    copy, out = backend.swap_out(first)
    out.wait()
    into = backend.allocate(400)
    back = backend.swap_in(copy, into)
    backend.release(copy)
    _, out = backend.swap_out(second)
    out.wait()
    back.wait()
    assert driver.pins == 1
    backend.close()
    return driver.misuses + ([] if (into == 1).all() else ['the next copy was read'])


def test_a_block_that_is_used_too_early_is_found():
    wrong = [wrong_with_a_block_that_is_lent_at_once(BlocksUsedEarly(seed)) for seed in SEEDS]
    assert all('two copies used the same pinned memory in no order' in each for each in wrong)
    assert any('the next copy was read' in each for each in wrong)
    assert all(wrong_with_a_block_that_is_lent_at_once(FakeDriver(seed)) == [] for seed in SEEDS)


def test_a_block_that_is_unpinned_in_use_is_found(monkeypatch):
    def unpin(self, region):
        for block in region.blocks:
            self._unused[block.nbytes].remove(block)
        self._regions.remove(region)
        self._driver.unpin(region.address)

    monkeypatch.setattr(PinnedMemory, '_unpin', unpin)
    found = [each for seed in SEEDS for each in exercise(FakeDriver(seed), seed, 1500)]
    assert 'pinned memory was unpinned while a copy used it' in found


def test_a_source_that_is_let_go_early_is_found(monkeypatch):
    """The backend keeps what is copied, also where the caller does not."""
    begin = CudaTransfer.__init__

    def holds_nothing(self, line, array):
        begin(self, line, array)
        self._array = None

    def misuses():
        driver = FakeDriver()
        backend = CudaBackend(host_limit_bytes=1 << 20, driver=driver)
        backend.swap_out(backend.allocate(400))
        copy, out = backend.swap_out(backend.allocate(400))
        out.wait()
        backend.swap_in(copy, backend.allocate(400))
        backend.close()
        return driver.misuses

    assert misuses() == []
    monkeypatch.setattr(CudaTransfer, '__init__', holds_nothing)
    assert misuses() == [*['the source of a copy was freed before it was made'] * 2,
                         'the target of a copy was freed before it was made']


def test_poison_is_not_a_number():
    assert np.isnan(FakeDriver().empty(400).view(np.float32)).all()
