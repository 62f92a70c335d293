"""P6: a map dies after its last backward use, although the graph lives."""
import time
import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.execute import sessions
from support.trainings.ooc_training import POLICIES, ooc

LAYERS = 8
MAP_BYTES = 16 * 1000 * 4


class Chain(chainer.Chain):
    """Equal layers in a row, each of which retains one map."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = L.Linear(10, 1000)
            self.last = L.Linear(1000, 3)

    def __call__(self, x, t):
        h = self.first(x)
        for _ in range(LAYERS):
            h = F.sin(h)
        return F.softmax_cross_entropy(self.last(h), t)


def batch(number=0):
    random = np.random.RandomState(number)
    return random.uniform(-1, 1, (16, 10)).astype(np.float32), random.randint(0, 3, 16).astype(np.int32)


def root_of(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Alive(chainer.FunctionHook):
    """Counts the maps that are alive before each function's backward; looks through weak references only.

    Args:
        is_short: memory is; then maps that are spare go before it looks.
    """

    name = 'Alive'

    def __init__(self, is_short):
        self.is_short = is_short
        self.references = []
        self.counts = []

    def forward_postprocess(self, function, in_data):
        if function.label == 'sin':
            self.references.append(weakref.ref(root_of(in_data[0])))

    def backward_preprocess(self, function, in_data, out_grad):
        if function.label == 'sin':
            self.count()

    def count(self):
        if self.is_short:
            sessions.current().memory.spare_at_most(0)
        self.counts.append(sum(each() is not None for each in self.references))


def watched_iteration(model, number, is_short=False):
    with Alive(is_short) as alive:
        loss = model(*batch(number))
        model.cleargrads()
        loss.backward()
        alive.count()
    return alive.counts, loss


def test_plain_chainer_keeps_every_map_to_the_end():
    counts, _ = watched_iteration(Chain(), 0)
    assert counts == [LAYERS] * (LAYERS + 1)


@pytest.mark.usefixtures('nothing_quiet')
@pytest.mark.parametrize('is_short', [False, True])
def test_keep_gives_up_each_map_after_its_last_use_where_memory_is_short(is_short):
    model = Chain()
    with ooc('keep', min_bytes=1000):
        for number in range(2):
            watched_iteration(model, number)
        counts, _ = watched_iteration(model, 2, is_short)
        assert chainer_ooc.stats().phase == 'run'
        assert chainer_ooc.stats().swapped_out_bytes == 0
    assert counts == (list(range(LAYERS, -1, -1)) if is_short else [LAYERS] * (LAYERS + 1))


@pytest.mark.parametrize('policy', ['swap-all-naive', 'swap-all'])
def test_swapped_maps_are_away_when_forward_ends_and_after_their_use(policy):
    model = Chain()
    with ooc(policy, min_bytes=1000, budget='500kB'):
        for number in range(3):
            _, loss = watched_iteration(model, number)
            nodes = []
            function = loss.creator_node
            while function is not None:
                nodes.append(function.inputs[0])
                function = function.inputs[0].creator_node
            time.sleep(0.02)  # the last copies are under way
            F.identity(chainer.Variable(np.zeros(1, np.float32)))  # the next computation lets go of what they moved
            in_near_memory = [node for node in nodes if node._data is not None and node._data.nbytes == MAP_BYTES]
            assert len(in_near_memory) <= 1, number
        last = chainer_ooc.stats()
    assert last.phase == 'run'
    assert LAYERS * MAP_BYTES <= last.swapped_out_bytes <= (LAYERS + 2) * MAP_BYTES
    assert last.swapped_in_bytes <= last.swapped_out_bytes


def test_peaks_are_ordered_as_policies_promise():
    peaks = {}
    for policy in POLICIES:
        model = Chain()
        chainer_ooc.reset()
        with ooc(policy, min_bytes=1000, budget=None if policy == 'keep' else '700kB'):
            for number in range(3):
                loss = model(*batch(number))
                model.cleargrads()
                loss.backward()
                del loss
            peaks[policy] = chainer_ooc.stats().peak_bytes
    assert peaks['keep'] > LAYERS * MAP_BYTES
    assert max(peaks['swap-all'], peaks['swap-all-naive']) <= 700_000 < peaks['keep']


def test_views_of_one_block_die_together():
    class Sliced(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.fc = L.Linear(10, 1000)

        def __call__(self, x, seen):
            h = F.sin(self.fc(x))
            seen.append(weakref.ref(root_of(h.array)))
            parts = F.split_axis(h, 4, axis=1)
            turned = [F.transpose(F.reshape(each, (16, 10, 25)), (2, 0, 1)) for each in parts]
            return sum(F.sum(F.cos(each)) for each in turned)

    model = Sliced()
    with ooc('swap-all', min_bytes=1000):
        for number in range(3):
            seen = []
            loss = model(batch(number)[0], seen)
            model.cleargrads()
            loss.backward()
            time.sleep(0.02)
            F.identity(chainer.Variable(np.zeros(1, np.float32)))
            assert seen[0]() is None
            del loss
        assert chainer_ooc.stats().swapped_out_bytes < 4 * MAP_BYTES
