"""Floors say when they may not be the last: `InfeasibleBudgetError.doubt`."""
import gc
import threading
import time

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import sessions
from support.trainings.ooc_training import Training, ooc


def refusal(training):
    with pytest.raises(InfeasibleBudgetError) as refused:
        training.iterate()
    return refused.value


def test_a_floor_that_a_recording_without_disturbance_tells_is_named_without_doubt():
    training = Training('residual')
    with ooc(budget=1):
        training.iterate()
        error = refusal(training)
    assert error.doubt == ''
    assert 'smallest that works' in str(error)


@pytest.mark.parametrize('policy', ['swap-all', 'pooch', 'tensor-cache'])
def test_floors_of_double_backprop_are_in_doubt(policy):
    """The second graph begins like the first, and what stands of both was in no floor: 7, 13 and 16 maps in turn."""
    def iterate():
        y = F.tanh(p * np.ones((64, 1000), 'f'))
        slope, = chainer.grad([F.sum(F.sin(y) * y)], [p], enable_double_backprop=True)
        curvature, = chainer.grad([F.sum(slope * slope)], [p], enable_double_backprop=True)
        p.cleargrad()
        F.sum(curvature * curvature).backward()

    p, refused = chainer.Parameter(np.full((64, 1000), 0.5, 'f')), []
    with ooc(policy, budget=1):
        while True:
            assert len(refused) < 6
            try:
                for _ in range(4):
                    iterate()
                break
            except InfeasibleBudgetError as error:
                refused.append(error.doubt)
                chainer.config.ooc_budget = int(1.02 * error.floor_bytes)
                chainer_ooc.reset()
    assert len(refused) > 1
    assert all(refused)
    assert 'double backprop' in refused[0]


def test_a_floor_is_in_doubt_while_another_thread_trains():
    step, end = threading.Event(), threading.Event()

    def train_beside():
        with ooc():
            beside = Training('old')
            beside.iterate()
            step.set()
            end.wait(20)
    other = threading.Thread(target=train_beside)
    other.start()
    assert step.wait(20)
    training = Training('residual')
    try:
        with ooc(budget=1):
            training.iterate()
            error = refusal(training)
    finally:
        end.set()
        other.join()
    assert 'other threads' in error.doubt
    assert error.doubt in str(error)
    assert 'smallest that works' not in str(error)


def test_a_floor_that_is_named_within_an_iteration_is_in_doubt():
    """Gradients that updates have used are not cleared any more. They went out of the account when it was looked at
    again, as backward's own table holds them then, and the budget was passed by all of them.
    """
    np.random.seed(0)
    model = chainer.Sequential(L.Linear(64, 512), F.relu, L.Linear(512, 2048))
    optimizer = chainer.optimizers.SGD().setup(model)

    def iterate(number, clears):
        loss = F.sum(model(np.full((2, 64), number, np.float32)))
        if clears:
            model.cleargrads()
        loss.backward()
        optimizer.update()

    with ooc(budget=1):
        iterate(0, clears=True)
        with pytest.raises(InfeasibleBudgetError) as refused:
            iterate(1, clears=True)
    assert refused.value.doubt == ''
    with ooc(budget=int(1.02 * refused.value.floor_bytes)):
        iterate(2, clears=True)
        with pytest.raises(InfeasibleBudgetError) as refused:
            iterate(3, clears=False)
    assert 'under way' in refused.value.doubt


def iterate(*dtypes):
    """An iteration for each dtype, which is another graph."""
    for dtype in dtypes:
        F.sum(F.tanh(F.sin(chainer.Variable(np.ones((64, 64), dtype))))).backward()


@pytest.mark.parametrize(('dtypes', 'doubt'), [('ff', ''), ('fdf', ''), ('fdd', 'not come back'), ('fded', 'not come')])
def test_a_floor_is_in_doubt_while_the_program_has_not_come_back_to_its_first_graph(dtypes, doubt):
    """A graph that begins like a known one, as in an inner loop with a step more, is known when it was recorded."""
    with ooc(budget=1), pytest.raises(InfeasibleBudgetError) as refused:
        iterate(*dtypes)
    assert bool(refused.value.doubt) == bool(doubt)
    assert doubt in refused.value.doubt


def test_a_floor_is_without_doubt_when_some_graph_has_returned():
    with ooc():
        iterate(*'fded')
    with ooc(budget=1), pytest.raises(InfeasibleBudgetError) as refused:
        iterate('e')
    assert refused.value.doubt == ''


def test_a_floor_is_in_doubt_while_a_graph_that_began_like_a_known_one_is_not_recorded():
    def iterate(depth):
        h = chainer.Variable(np.ones((64, 64), np.float32))
        for _ in range(depth):
            h = F.tanh(F.sin(h))
        F.sum(h).backward()

    doubts = []
    for depths in ((2, 2), (2, 2, 3), (2, 2, 3, 3)):
        chainer_ooc.reset()
        with ooc():
            for depth in depths:
                iterate(depth)
        with ooc(budget=1), pytest.raises(InfeasibleBudgetError) as refused:
            iterate(2)
        doubts.append(refused.value.doubt)
    assert doubts[0] == doubts[2] == ''
    assert 'not recorded yet' in doubts[1]


def test_a_floor_stays_in_doubt_until_that_graph_is_recorded():
    """Another one was recorded meanwhile: the doubt was gone with that, and the floor was not enough."""
    def iterate(depth):
        h = chainer.Variable(np.ones((64, 64), np.float32))
        for _ in range(depth):
            h = F.tanh(F.sin(h))
        F.sum(h).backward()

    doubts, depths = [], (2, 3, 4, 3, 3)  # recorded, unknown, recorded, unknown, recorded
    for count in range(1, len(depths) + 1):
        chainer_ooc.reset()
        with ooc():
            for depth in depths[:count]:
                iterate(depth)
        with ooc(budget=1), pytest.raises(InfeasibleBudgetError) as refused:
            iterate(2)
        doubts.append('not recorded yet' in refused.value.doubt)
    assert doubts == [False, True, True, True, False]


@pytest.mark.parametrize('every', [1, 2, 4])
def test_a_floor_counts_what_iterations_have_left_that_ran_quietly(every):
    """It was looked for before they were registered, in the iteration after them, and where the floor was named."""
    model = chainer.Sequential(L.Linear(64, 256), F.relu, L.Linear(256, 128))
    held, refusals = [], []

    def iterate(number, depth):
        h = model(np.full((128, 64), 1 + number % 3, np.float32))
        for _ in range(depth):
            h = F.tanh(h)
        loss = F.sum(h)
        model.cleargrads()
        loss.backward(retain_grad=True)
        if number % every == 0:
            held[:] = [h, loss]

    with ooc('keep', min_bytes=10**6):
        for number in range(24):
            iterate(number, 1 + number % 4)
        assert sessions.current()._iteration.quiet is not None
        nbytes = 1
        for number in range(24, 48):
            with chainer.using_config('ooc_budget', nbytes):
                try:
                    iterate(number, 1 + number % 4)
                except InfeasibleBudgetError as error:
                    refusals.append((number, error.floor_bytes, error.doubt))
                    nbytes = int(1.02 * error.floor_bytes) + 1_000
    assert len(refusals) == 1, refusals


def test_a_floor_is_in_doubt_when_a_thread_has_come_and_gone_while_it_was_recorded():
    """Half of the forward pass in a thread of its own: it was looked for when the iteration began and had ended."""
    model = chainer.ChainList(L.Linear(64, 64), L.Linear(64, 64))

    def half(h, found):
        with ooc(budget=1):
            found.append(F.tanh(model[1](h)))

    def iterate():
        h, found = F.tanh(model[0](np.ones((256, 64), np.float32))), []
        worker = threading.Thread(target=half, args=(h, found))
        worker.start()
        worker.join()
        F.sum(found.pop()).backward()

    with ooc(budget=1):
        iterate()
        with pytest.raises(InfeasibleBudgetError) as refused:
            iterate()
    assert 'other threads' in refused.value.doubt


@pytest.mark.parametrize('goes_on', [True, False])
def test_a_floor_is_in_doubt_while_a_state_may_go_on_as_another_graph(goes_on):
    """A recurrent link without a state runs other functions than with one, and begins like those."""
    model = chainer.Chain()
    with model.init_scope():
        model.word, model.state, model.out = L.EmbedID(20, 48), L.LSTM(48, 64), L.Linear(64, 20)

    def iterate(number):
        if not goes_on:
            model.state.reset_state()
        loss = 0
        for step in range(3):
            words = np.random.RandomState(3 * number + step).randint(0, 20, 128).astype(np.int32)
            loss += F.softmax_cross_entropy(model.out(model.state(model.word(words))), words)
        model.cleargrads()
        loss.backward()
        loss.unchain_backward()

    with ooc(budget=1):
        iterate(0)
        with pytest.raises(InfeasibleBudgetError) as refused:
            iterate(1)
    assert ('unchain' in refused.value.doubt) is goes_on
    with ooc():
        for number in range(3):
            iterate(number)
    with ooc(budget=1), pytest.raises(InfeasibleBudgetError) as refused:
        iterate(3)
    assert refused.value.doubt == ''


@pytest.mark.parametrize('policy', ['swap-all', 'keep', 'pooch'])
@pytest.mark.parametrize('optimizer', [chainer.optimizers.MomentumSGD, chainer.optimizers.Adam])
def test_a_floor_is_in_doubt_when_a_model_begins_as_another_one_did_in_whose_graph_it_was(optimizer, policy):
    """Two models in one graph, then the second model's graph begins like that: nobody knew that it is another one."""
    def train():
        models = [chainer.ChainList(*[L.Linear(32, 32) for _ in range(3)]) for _ in range(2)]
        optimizers = [optimizer().setup(model) for model in models]
        for number in range(4):
            first, second = [through(model, number) for model in models]
            for model in models:
                model.cleargrads()
            first.backward()
            through([models[1][0], *models[0]], number).backward()
            second.backward()
            for each in optimizers:
                each.update()

    def through(layers, number):
        h = np.full((16, 32), number, np.float32)
        for layer in layers:
            h = F.relu(layer(h))
        return F.mean(F.square(h))

    refusals, nbytes = [], 1
    while True:
        chainer_ooc.reset()
        try:
            with ooc(policy, budget=nbytes):
                train()
            break
        except InfeasibleBudgetError as error:
            refusals.append(error.doubt)
            nbytes = int(1.02 * error.floor_bytes)
    assert 'another model begins' in refusals[0]
    assert all(refusals[:-1])
    assert len(refusals) < 2 or 'another model' not in refusals[-1]


def batches_from_a_thread(makes_one_now):
    """An iteration that is recorded while a thread makes a batch, or waits, and then one that is refused."""
    asked, made, ends = threading.Event(), threading.Event(), threading.Event()

    def load():
        asked.wait(20)
        np.ones((512, 512)).sum()
        made.set()
        ends.wait(20)

    loader = threading.Thread(target=load)
    loader.start()
    if not makes_one_now:
        asked.set()
        assert made.wait(20)
        time.sleep(0.05)  # until it waits again
    with ooc(budget=1):
        h = F.sin(chainer.Variable(np.ones((64, 64), np.float32)))
        asked.set()
        assert made.wait(20)
        F.sum(F.tanh(h)).backward()
        with pytest.raises(InfeasibleBudgetError) as refused:
            iterate('f')
    ends.set()
    loader.join()
    return refused.value.doubt


def test_a_floor_is_in_doubt_when_a_thread_has_made_batches_while_it_was_recorded():
    assert 'other threads' in batches_from_a_thread(makes_one_now=True)


def test_a_thread_that_only_waits_is_no_reason_for_doubt():
    assert batches_from_a_thread(makes_one_now=False) == ''


def test_a_known_graph_that_takes_over_within_an_iteration_is_refused_with_the_floor_of_all():
    """It named what it needed itself, without what parameters will bring, and without the other graphs."""
    np.random.seed(0)
    model = chainer.ChainList(*[L.Linear(256, 256) for _ in range(3)])
    optimizer = chainer.optimizers.Adam().setup(model)

    def iterate(repeats):
        h = F.tanh(model[0](np.ones((64, 256), np.float32)))
        h = F.tanh(model[repeats](F.concat([h] * 4 * repeats, axis=0)))
        model.cleargrads()
        F.sum(h).backward()

    with ooc():
        for repeats in (2, 1, 2, 1, 2, 1, 2, 1):
            iterate(repeats)
    with ooc(budget=1), pytest.raises(InfeasibleBudgetError) as refused:
        iterate(1)
    floor_bytes = refused.value.floor_bytes
    del refused
    gc.collect()  # what the frames of a refused iteration held
    with ooc(budget=2_000_000):
        iterate(1)
        with pytest.raises(InfeasibleBudgetError) as refused:
            iterate(2)
    assert refused.value.floor_bytes == floor_bytes
    assert refused.value.expected_bytes > 0
    del optimizer


@pytest.mark.parametrize('batchsize', [2, 32, 64])
def test_another_model_on_a_smaller_batch_is_refused_as_on_the_same(batchsize):
    """It was followed as a smaller size of the first one's graph, and passed the budget by its parameters, twice."""
    def model():
        return chainer.Sequential(*[layer for _ in range(8) for layer in (L.Linear(256, 256), F.relu)])

    def iterate(model, batchsize):
        loss = F.sum(model(np.ones((batchsize, 256), 'f')))
        model.cleargrads()
        loss.backward()

    first, second = model(), model()
    with ooc(budget=4_500_000, min_bytes=1000):
        for _ in range(3):
            iterate(first, 64)
        for _ in range(2):
            with pytest.raises(InfeasibleBudgetError) as refused:
                iterate(second, batchsize)
            assert 'under way' in refused.value.doubt
    with ooc(budget=int(1.02 * refused.value.floor_bytes), min_bytes=1000):
        for _ in range(3):
            iterate(second, batchsize)
        iterate(first, 64)


def test_a_smaller_batch_that_fits_is_not_refused_for_what_a_larger_one_takes():
    """The program holds maps of it, for which there is no room beside all that the larger one's graph takes."""
    layer, held = L.Linear(64, 64), []

    def iterate(batchsize, holds):
        h = np.ones((batchsize, 64), 'f')
        for _ in range(6):
            h = F.sin(layer(h))
            if holds:
                held.append(h.array)
        layer.cleargrads()
        F.sum(h).backward()

    with ooc(budget=1, min_bytes=1000):
        iterate(1024, False)
        with pytest.raises(InfeasibleBudgetError) as refused:
            iterate(1024, False)
    with ooc(budget=int(1.02 * refused.value.floor_bytes), min_bytes=1000):
        for _ in range(3):
            iterate(1024, False)
        for _ in range(3):
            iterate(64, True)
            held.clear()
            assert chainer_ooc.stats().peak_bytes <= 1.02 * refused.value.floor_bytes


def test_a_floor_is_in_doubt_while_a_larger_size_was_only_estimated():
    """Memory was ample for it, so that it ran under the estimate and was never recorded."""
    random, model = np.random.RandomState(0), chainer.Sequential(L.Linear(6, 32), F.tanh, L.Linear(32, 3))

    def iterate(batchsize):
        model.cleargrads()
        F.sum(model(random.rand(batchsize, 6).astype(np.float32))).backward()

    with ooc('swap-all'):
        for batchsize in (100, 400) * 3:
            iterate(batchsize)
        chainer.config.ooc_budget = 1
        with pytest.raises(InfeasibleBudgetError, match='not recorded yet') as refused:
            iterate(100)
        chainer.config.ooc_budget = floor_bytes = int(1.02 * refused.value.floor_bytes)
        iterate(100)
        iterate(400)
        with pytest.raises(InfeasibleBudgetError) as refused:  # it is recorded by now
            iterate(400)
        assert refused.value.floor_bytes > floor_bytes
        chainer.config.ooc_budget = int(1.02 * refused.value.floor_bytes)
        for batchsize in (100, 400) * 2:
            iterate(batchsize)
            assert chainer_ooc.stats().peak_bytes <= chainer.config.ooc_budget
