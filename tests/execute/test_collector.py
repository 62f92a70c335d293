"""What a finalizer still reads while the garbage collector ends the cycle that it is in."""
import contextlib
import gc

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.collector import untrack
from chainer_ooc.backends.host import HostBackend
from support.trainings.ooc_training import ooc


class Reading:
    """Garbage as soon as it is made, as it refers to itself; as it ends it reads maps that are garbage with it."""

    def __init__(self, maps, loss, found):
        self.maps, self.loss, self.found, self.itself = maps, loss, found, self

    def __del__(self):
        self.found.append([each.array.tobytes() for each in self.maps])


def forward(seed):
    h, maps = chainer.Variable(np.random.RandomState(seed).rand(64, 64).astype('f4')), []
    for _ in range(6):
        h = F.tanh(1.01 * h)
        maps.append(h)
    return maps, F.sum(h * h)


def read_by_a_finalizer():
    """What it reads of the maps of a graph that is garbage."""
    for seed in range(4):
        forward(seed)[1].backward()
    gc.collect()
    found, (maps, loss) = [], forward(5)
    Reading(maps, loss, found)
    del maps, loss
    gc.collect()
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'vdnn-all'])
def test_a_finalizer_reads_maps_that_are_garbage_with_it(policy, prompt_swap_outs):
    with chainer.using_config('ooc', None):
        expected = read_by_a_finalizer()
    with ooc(policy, min_bytes=0):
        found = read_by_a_finalizer()
        assert (chainer_ooc.stats().swapped_out_bytes > 0) == (policy != 'keep')
        chainer_ooc.reset()
    assert found == expected


def test_an_object_that_is_not_tracked_ends_with_its_last_reference():
    class Cycle:
        def __del__(self):
            ended.append(type(self.of).__name__)

    class Part:
        def __del__(self):
            ended.append('ended')

    ended, cycle = [], Cycle()
    cycle.itself, cycle.of = cycle, Part()
    untrack(cycle.of)
    del cycle
    gc.collect()
    assert ended == ['Part', 'ended']


def test_copies_are_not_tracked_and_are_in_no_cycle():
    backend = HostBackend()
    source = backend.allocate(1000)
    copy, transfer = backend.swap_out(source)
    transfer.wait()
    reading = backend.swap_in(copy, backend.allocate(1000))
    reading.wait()
    assert not gc.is_tracked(copy)
    place = copy.place
    gc.disable()
    try:
        del copy, transfer, reading
        assert place.unwanted
    finally:
        gc.enable()
        backend.close()


@contextlib.contextmanager
def garbage():
    """Collects what Python's collector alone finds meanwhile."""
    gc.collect()
    found, was_enabled = [], gc.isenabled()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [type(each).__name__ for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        if was_enabled:
            gc.enable()


class Tower(chainer.Chain):
    """Layers whose maps move, and behind them some that are too small to."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.wide, self.narrow = L.Linear(64, 64), L.Linear(64, 4)

    def __call__(self, x):
        h = F.relu(self.wide(F.tanh(F.tanh(self.wide(chainer.Variable(x))))))
        h = F.dropout(F.sigmoid(F.tanh(self.narrow(h))), 0.2)
        return F.sum(F.tanh(F.tanh(h)))


@pytest.mark.parametrize('sizes', [[256], [256, 128, 192]], ids=['one size', 'sizes in turn'])
@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'sublinear', 'pooch', 'auto', 'unified', 'tensor-cache'])
def test_iterations_leave_nothing_to_the_collector(policy, sizes):
    """A program that has switched it off, as some do for speed, would fill its memory with what is left."""
    model = Tower()
    optimizer = chainer.optimizers.MomentumSGD().setup(model)
    batches = [np.random.RandomState(1).rand(each, 64).astype('f4') for each in sizes]
    with ooc(policy, min_bytes=16_000, budget=None if policy in ('keep', 'swap-all') else '450 kB'):
        def train(iterations):
            for number in range(iterations):
                model.cleargrads()
                model(batches[number % len(batches)]).backward()
                optimizer.update()

        train(5 * len(batches))
        for _ in range(5):  # a search for a better plan may end meanwhile, which leaves types of ctypes'
            with garbage() as found:
                train(3 * len(batches))
            if not found:
                break
        assert chainer_ooc.stats().phase == 'run'
        chainer_ooc.reset()
    assert found == []


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch'])
def test_nor_do_iterations_that_fail_or_are_given_up(policy):
    model, batch = Tower(), np.random.RandomState(1).rand(256, 64).astype('f4')

    def fail(iterations):
        for number in range(iterations):
            loss = model(batch)
            if number % 2:
                with pytest.raises(TypeError):
                    loss + 'not a number'
                del loss
            else:
                with pytest.raises(chainer.utils.type_check.InvalidType):
                    F.reshape(loss, (2, 3))

    with ooc(policy, min_bytes=16_000):
        for _ in range(4):
            model.cleargrads()
            model(batch).backward()
        fail(4)
        with garbage() as found:
            fail(6)
        chainer_ooc.reset()
    assert found == []
