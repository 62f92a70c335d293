"""The arrays of an iteration never take more than the budget, by what NumPy tells tracemalloc, not by our account."""
import gc
import tracemalloc

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.host import meter
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.errors import InfeasibleBudgetError
from support.combinations import spread
from support.trainings.ooc_training import ooc
from support.trainings.verdict_mixes import MIXES

#: Arrays of a few bytes that no account knows.
BESIDE_BYTES = 10_000
ITERATIONS = 4
#: Made before anything is traced: it is the program's, and not in the budget.
BATCH = np.ones((16, 8, 64, 64), np.float32)


class Network(chainer.Chain):
    """Calls of very different appetites between maps of 2 MiB: most of one's memory is in a single call."""

    batch = BATCH

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first, self.second = L.Convolution2D(8, 8, 3, pad=1), L.Convolution2D(8, 8, 3, pad=1)

    def forward(self, x):
        h = F.sigmoid(self.first(x))
        h = F.local_response_normalization(h)
        h = F.sigmoid(self.second(h))
        h = F.local_response_normalization(F.tanh(h))
        return F.sum(F.max_pooling_2d(F.tanh(h), 2))


class Residual(chainer.Chain):
    """Steps that allocate next to nothing follow on ones that do, whose gradients Chainer has for a moment longer."""

    batch = np.ones((1024, 4), np.float32)

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = L.Linear(4, 512)

    def forward(self, x):
        h = self.first(x)
        for number in range(6):
            y = F.relu(F.relu(h))
            h = y + h if number % 2 else y
        return F.sum(h)


def true_peak(policy, budget, make=Network):
    """Trains, and returns the most that arrays took in any iteration after the first."""
    network = make()
    optimizer = chainer.optimizers.SGD(lr=1e-3).setup(network)
    peaks = []
    with ooc(policy, budget=budget, workspace='1MB'):
        for _ in range(ITERATIONS):
            tracemalloc.reset_peak()
            optimizer.update(network, network.batch)
            peaks.append(tracemalloc.get_traced_memory()[1])
        stats = chainer_ooc.stats()
    assert stats.phase == 'run'
    return max(peaks[1:])


@pytest.fixture
def tracing():
    """Traces what is allocated from here on."""
    with meter._allocators_kept():  # objects of Python are not traced, which would take most of the time
        tracemalloc.start()
    yield
    chainer_ooc.reset()
    tracemalloc.stop()


@pytest.mark.usefixtures('verdict_mixes', 'tracing')
@pytest.mark.parametrize(('policy', 'share', 'make'), spread(
    [*POLICIES, *MIXES], [1.02, 1.3], [Network, Residual], every=6))
def test_arrays_take_no_more_than_the_budget(policy, share, make):
    with pytest.raises(InfeasibleBudgetError) as refused:
        true_peak(policy, 1, make)
    chainer_ooc.reset()
    budget = int(share * refused.value.floor_bytes)
    assert true_peak(policy, budget, make) <= budget + BESIDE_BYTES


def passes(policy, budget, optimizer, call):
    """Trains with three backward passes for each update; yields what is said of each, and the most that arrays took."""
    gc.collect()  # the model of another training hangs together in cycles
    np.random.seed(0)
    model = chainer.Sequential(L.Linear(500, 300), F.relu, L.Linear(300, 10))
    batch = np.ones((4, 500), np.float32)
    update = optimizer().setup(model).update
    with ooc(policy, budget=budget, min_bytes=0):
        for _ in range(3):
            model.cleargrads()
            for _ in range(3):
                tracemalloc.reset_peak()
                F.sum(call(model, batch)).backward()
                yield chainer_ooc.stats(), tracemalloc.get_traced_memory()[1]
            update()


def call_plainly(model, batch):
    return model(batch)


def forget(model, batch):
    return F.forget(model, chainer.Variable(batch))


PASSES = [(chainer.optimizers.SGD, call_plainly), (chainer.optimizers.Adam, call_plainly),
          (chainer.optimizers.SGD, forget), (chainer.optimizers.Adam, forget)]


@pytest.mark.usefixtures('tracing')
@pytest.mark.parametrize('policy', ['auto', 'keep', 'swap-all'])
@pytest.mark.parametrize(('optimizer', 'call'), PASSES)
def test_the_peak_that_is_said_has_sums_of_gradients_and_state(policy, optimizer, call):
    """Where nothing moved it was that of the recording, before there were any: half of what was in use."""
    for number, (stats, true_bytes) in enumerate(passes(policy, None, optimizer, call)):
        if number:
            assert true_bytes - BESIDE_BYTES <= stats.peak_bytes <= 1.1 * true_bytes, number


@pytest.mark.usefixtures('tracing')
@pytest.mark.parametrize('policy', ['auto', 'keep', 'pooch', 'tensor-cache'])
@pytest.mark.parametrize(('optimizer', 'call'), PASSES)
@pytest.mark.parametrize('share', [0.6, 0.75, 0.95])
def test_sums_of_gradients_keep_within_the_budget_or_are_refused(policy, optimizer, call, share):
    most_bytes = max(true_bytes for _, true_bytes in passes(policy, None, optimizer, call))
    chainer_ooc.reset()
    budget = int(share * most_bytes)

    def train():
        for stats, true_bytes in passes(policy, budget, optimizer, call):
            assert true_bytes <= budget + BESIDE_BYTES or stats.phase == 'profile'

    with pytest.raises(InfeasibleBudgetError):
        train()


@pytest.mark.usefixtures('tracing')
@pytest.mark.parametrize('policy', ['keep', 'swap-all'])
@pytest.mark.parametrize('share', [None, 0.8])
def test_the_peak_has_arrays_of_a_graph_that_backward_makes(policy, share):
    """They were in no account once the iteration that had made them was over: half of what was in use."""
    batch = np.ones((500, 300), np.float32)

    def train(budget):
        gc.collect()
        layers, found = chainer.ChainList(L.Linear(300, 300), L.Linear(300, 300)), []
        layers.cleargrads()
        with ooc(policy, budget=budget, min_bytes=0):
            for _ in range(4):
                tracemalloc.reset_peak()
                layers.cleargrads()
                x = h = chainer.Variable(batch.copy())
                for layer in layers:
                    h = F.tanh(layer(h))
                gradient, = chainer.grad([F.sum(h)], [x], enable_double_backprop=True)
                loss = F.sum(gradient * gradient)
                loss.backward()
                found.append((chainer_ooc.stats(), tracemalloc.get_traced_memory()[1]))
                del x, h, gradient, loss
        chainer_ooc.reset()
        return found

    if share is None:
        for stats, true_bytes in train(None)[1:]:
            assert 0.85 * true_bytes <= stats.peak_bytes <= true_bytes + BESIDE_BYTES
    else:
        budget = int(share * max(true_bytes for _, true_bytes in train(None)))
        with pytest.raises(InfeasibleBudgetError) as refused:
            train(int(0.8 * budget))
        assert refused.value.floor_bytes > 0.8 * budget


@pytest.mark.usefixtures('tracing')
@pytest.mark.parametrize('policy', ['swap-all', 'pooch'])
@pytest.mark.parametrize('clears', ['before forward', 'before backward'])
def test_gradients_that_are_freed_while_a_program_traces_memory_hide_no_buffers(policy, clears):
    """tracemalloc, when the program has begun it, knows of them: what went seemed to make room for what came."""
    gc.collect()
    batch = np.ones((400, 300), np.float32)
    layers = chainer.ChainList(*[L.Linear(300, 300) for _ in range(6)])
    update = chainer.optimizers.SGD(1e-3).setup(layers).update
    peaks = []
    with ooc(policy, budget=6_500_000, min_bytes=0):
        for _ in range(4):
            tracemalloc.reset_peak()
            if clears == 'before forward':
                layers.cleargrads()
            h = batch
            for layer in layers:
                h = F.relu(layer(h))
            loss = F.sum(h)
            del h
            layers.cleargrads()
            loss.backward()
            peaks.append(tracemalloc.get_traced_memory()[1])
            update()
            del loss
        assert chainer_ooc.stats().phase == 'run'
    chainer_ooc.reset()
    assert max(peaks[1:]) <= 6_500_000 + BESIDE_BYTES


@pytest.mark.usefixtures('tracing')
def test_a_plan_whose_recording_has_no_sums_keeps_within_the_budget_with_them():
    """Gradients that stood were taken out of the buffers of such a recording, which has none of them."""
    batches = np.ones((2, 150, 400), np.float32)  # the program's, and made before: each counts while it is used

    def train(policy, budget):
        gc.collect()
        model, found = chainer.Sequential(*[each for _ in range(5) for each in (L.Linear(400, 400), F.relu)]), []
        update = chainer.optimizers.MomentumSGD(1e-3).setup(model).update
        before_bytes = tracemalloc.get_traced_memory()[0] - sum(each.array.nbytes * 2 for each in model.params())
        with ooc(policy, budget=budget, min_bytes=0):
            for _ in range(3):
                model.cleargrads()
                for batch in batches:
                    tracemalloc.reset_peak()
                    F.sum(model(batch)).backward()
                    found.append(tracemalloc.get_traced_memory()[1] - before_bytes + batch.nbytes)
                update()
            phase = chainer_ooc.stats().phase
        chainer_ooc.reset()
        return phase, max(found[1:])

    budget = int(0.95 * train('keep', None)[1])
    phase, true_bytes = train('swap-all', budget)
    assert phase == 'run'
    assert true_bytes <= budget + BESIDE_BYTES
