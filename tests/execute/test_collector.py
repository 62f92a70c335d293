"""What a finalizer still reads while the garbage collector ends the cycle that it is in."""
import gc

import chainer
import chainer.functions as F
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
