"""Iterations that run as in plain Chainer, since nothing has to leave; and what happens when something has to."""
import gc
import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
import chainer_ooc.errors
from chainer_ooc.execute import sessions
from chainer_ooc.execute.iteration import quiet
from chainer_ooc.execute.storage.account import Account, find
from support.combinations import spread
from support.interrupting import interrupted_at
from support.trainings.ooc_networks import NETWORKS
from support.trainings.ooc_training import Training, assert_same_bits, ooc, plain
from support.trainings.pressing import Pressing

UNITS, CALLS = 64, 9
BATCH = np.linspace(-1, 1, 16 * UNITS, dtype=np.float32).reshape(16, UNITS)


def is_quiet():
    """Whether the iteration in hand, or the last one, has run quietly up to now."""
    return sessions.current()._iteration.quiet is not None


class Chain(chainer.Chain):
    """A chain of calls, of which the program can change one."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.l1, self.l2 = L.Linear(UNITS, UNITS), L.Linear(UNITS, UNITS)
        self.change = {}

    def __call__(self, x):
        made = [chainer.Variable(x)]
        steps = [self.l1, F.tanh, F.sigmoid, self.l2, F.relu, lambda h: h + made[2], lambda h: F.reshape(h, (-1,)),
                 F.tanh]
        for number, step in enumerate(steps, 1):
            made.append(self.change.get(number, step)(made[-1]))
        return F.sum(made[-1])


def iterate(model, x=BATCH):
    """One iteration; gives the bits of its loss and gradients."""
    loss = model(x)
    model.cleargrads()
    loss.backward()
    return [loss.array.tobytes(), *[each.grad.tobytes() for _, each in sorted(model.namedparams())]]


def settled(model, **settings):
    """Trains until iterations are quiet."""
    for _ in range(4):
        iterate(model)
    assert is_quiet()


def expected(change=None, x=BATCH):
    """What plain Chainer makes of one iteration."""
    model = Chain()
    model.change = change(model) if change else {}
    with chainer.using_config('ooc', None):
        return iterate(model, x)


@pytest.fixture
def model():
    """A chain that trains quietly."""
    model = Chain()
    with ooc('pooch'):
        settled(model)
        yield model


@pytest.mark.parametrize('policy', chainer_ooc.policies())
def test_every_policy_is_quiet_where_all_fits(policy):
    model = Chain()
    with ooc(policy):
        found = [iterate(model) for _ in range(5)]
        moves = chainer_ooc.stats().swap + chainer_ooc.stats().recompute
        assert is_quiet() or moves
        assert is_quiet() or policy not in ('keep', 'pooch', 'capacity', 'auto')
    assert found == [expected()] * 5


@pytest.mark.parametrize('network', sorted(NETWORKS))
def test_networks_have_the_bits_of_plain_chainer(network):
    with ooc('keep'):
        training = Training(network)
        training.iterate(5)
        outcome = training.finish()
    assert_same_bits(outcome, plain(network, 5))


def test_nothing_is_known_of_what_runs_quietly(model):
    loss = model(BATCH)
    assert find(loss.array) is None
    model.cleargrads()
    loss.backward()
    assert chainer_ooc.stats().phase == 'run'
    assert chainer_ooc.stats().peak_bytes == chainer_ooc.stats().predicted_peak_bytes > 0


@pytest.mark.parametrize('keeps_loss', [False, True])
def test_what_has_ended_quietly_is_not_in_the_recording_that_follows(keeps_loss):
    """Its registration set the memory up for itself: maps were measured as buffers, and the next floor was too high."""
    with ooc('keep'):
        model, other = Chain(), Chain()
        other.change = {1: lambda h: other.l1(F.tanh(h))}
        settled(model)
        loss = model(BATCH)
        loss.backward()
        if not keeps_loss:
            del loss
        iterate(other)
        iteration = sessions.current()._iteration
        assert iteration.recorder.measures
        assert not any(each.other_bytes for each in iteration.recorder.calls)
        assert sessions.current().memory.context.on_exposed.__self__ is iteration


CHANGES = {
    'function': lambda h: F.elu(h),
    'two functions': lambda h: F.relu(F.tanh(h)),
    'none': lambda h: h,
    'other shape': lambda h: F.concat((h, h), axis=0),
    'batch': lambda h: h + np.float32(2) * chainer.Variable(np.ones(h.shape, np.float32)),
    'parameter': lambda h: h * chainer.Parameter(np.full(h.shape, 2, np.float32)),
    'itself': lambda h: h + h,
    'no graph': lambda h: h * F.tanh(np.full(h.shape, 0.5, np.float32)),
}


@pytest.mark.parametrize('change', sorted(CHANGES))
@pytest.mark.parametrize('number', [1, 2, 3, 5, 6, 8])
def test_another_call_anywhere_is_another_graph(model, number, change):
    def changed(model):
        first = model.l1 if number == 1 else lambda h: h  # whose parameters must get gradients all the same
        also = {6: lambda h: h * h} if change == 'other shape' else {}  # what is added there would have another shape
        return {number: lambda h: CHANGES[change](first(h)), **also}

    want = expected(changed)
    model.change = changed(model)
    for _ in range(3):
        assert iterate(model) == want
    model.change = {}
    for _ in range(4):
        assert iterate(model) == expected()


@pytest.mark.parametrize('made', [lambda model: Chain(), lambda model: model.copy('copy')])
@pytest.mark.parametrize('policy', ['keep', 'pooch', 'swap-all'])
def test_another_model_of_the_same_graph_is_no_other_graph(policy, made):
    """Each of its iterations was recorded, for ever."""
    with ooc(policy):
        model = Chain()
        for _ in range(4):
            iterate(model)
        other, recorded = made(model), []
        for _ in range(4):
            iterate(other)
            recorded.append(sessions.current()._iteration.recorder.measures)
        assert recorded == [False] * 4
        assert policy == 'swap-all' or is_quiet()


def test_what_a_quiet_iteration_has_left_stands_in_the_next_one(model):
    """It was looked for before it was registered, and floors did not count it. The batch is the program's own."""
    held = []
    model.change = {3: lambda h: held.append(h.array) or F.sigmoid(h)}
    loss = model(BATCH)
    loss.backward()
    assert is_quiet()
    iterate(Chain())  # whose parameters are not known, so that it is not quiet
    assert not is_quiet()
    sessions.current().traces()
    left_bytes = sessions.current()._graphs.latest().left_bytes
    assert held[0].nbytes <= left_bytes < held[0].nbytes + BATCH.nbytes


def recorded_and_unknown(numbers, is_other):
    """Runs iterations, some of which end otherwise; which of them were recorded, and which had no known graph."""
    model, recorded, unknown = Chain(), [], []
    for number in numbers:
        model.change = {7: lambda h: F.sigmoid(F.reshape(h, (-1,)))} if is_other(number) else {}
        iterate(model)
        iteration = sessions.current()._iteration
        recorded.append(iteration.recorder.measures)
        unknown.append(iteration.following.graph is None)
    return recorded, unknown


def test_a_graph_that_is_met_once_is_not_waited_for_for_ever():
    with ooc('swap-all'):
        recorded, unknown = recorded_and_unknown(range(20), lambda number: number == 6)
    assert (recorded[0], recorded[6], recorded[7]) == (True, False, True)
    assert not any(recorded[1:7]) and not any(recorded[-5:])
    assert sum(unknown) == 2


@pytest.mark.parametrize(('every', 'most'), [(2, 2), (3, 2), (7, 3), (30, 4)])
def test_a_graph_that_comes_again_is_known_in_the_end(every, most):
    """It comes so many times until it is, the first time and the one that is recorded included."""
    with ooc('swap-all'):
        recorded, unknown = recorded_and_unknown(range(every * 8), lambda number: number % every == every - 1)
    assert sum(unknown[1:]) <= most
    assert not any(recorded[-2 * every:]) and not any(unknown[-2 * every:])


def test_another_batch_size_is_another_graph(model):
    for x in (BATCH[:8], BATCH, BATCH[:4], BATCH[:8]):
        assert iterate(model, x) == expected(x=x)


@pytest.mark.parametrize('kind', ['of bytes', 'of a file', 'overlapping rows'])
def test_a_batch_in_memory_that_numpy_does_not_own_is_another_graph(model, tmp_path, kind):
    """It has no root that could be remembered: a TypeError in place of a training."""
    batches = {
        'of bytes': lambda: np.frombuffer(BATCH.tobytes(), BATCH.dtype).reshape(BATCH.shape),
        'of a file': lambda: np.asarray(np.memmap(tmp_path / 'batch', BATCH.dtype, 'w+', shape=BATCH.shape)),
        'overlapping rows': lambda: np.lib.stride_tricks.as_strided(BATCH.copy(), BATCH.shape, BATCH.strides)}
    x = batches[kind]()
    assert [iterate(model, x) for _ in range(3)] == [expected(x=x)] * 3


def test_another_batch_in_place_of_one_that_was_given_before_is_another_graph():
    """Asked once more, what was compared in vain was known: the first graph was followed for ever."""
    def run(is_other):
        first, second = [chainer.Variable(np.random.RandomState(each).randn(16, UNITS).astype('f')) for each in (0, 1)]
        F.sum(F.tanh(first) * (second if is_other else first)).backward()
        return first.grad.tobytes()

    def multiplied():
        """The maps that are multiplied in the graph that was followed; whether quietly."""
        iteration = sessions.current()._iteration
        return iteration.following.graph.trace.calls[1].inputs, iteration.quiet is not None

    want = run(False), run(True)
    with ooc('keep'):
        for _ in range(4):
            assert run(False) == want[0]
        assert multiplied() == ((1, 0), True)
        for _ in range(4):
            assert run(True) == want[1]
        assert multiplied() == ((1, 2), True)
        for is_other in (False, True, True, False, True, False):
            assert run(is_other) == want[is_other]
            assert multiplied() == ((1, 2 if is_other else 0), True)


def test_an_exception_in_backward_ends_it_for_what_is_registered_later(model):
    """What was left was registered in the forward pass of the next iteration, and that was taken for backward then."""
    class Fails(chainer.FunctionHook):
        name = 'fails'

        def backward_preprocess(self, function, inputs, gradients):
            raise KeyError('of the program')

    loss = model(BATCH)
    with Fails(), pytest.raises(KeyError):
        loss.backward()
    with chainer.using_config('ooc', 'swap-all'):
        F.tanh(chainer.Variable(BATCH))
        assert sessions.current().memory.deferred is None


def test_inputs_that_change_places_are_another_graph():
    """The same functions of the same forms, wired otherwise."""
    def run(swapped):
        x = chainer.Variable(BATCH.copy())
        a, b = F.tanh(x), F.sigmoid(x)
        F.sum(F.exp(b if swapped else a) * a).backward()
        return x.grad.tobytes()

    want = run(False), run(True)
    with ooc('keep'):
        for _ in range(4):
            assert run(False) == want[0]
        assert is_quiet()
        assert run(True) == want[1]
        assert not is_quiet()


@pytest.mark.parametrize(('change', 'number'), spread(
    sorted({*CHANGES} - {'no graph', 'parameter'}), [1, 5, 8], every=3))  # these two never run quietly
def test_a_graph_that_turns_out_to_be_another_known_one_stays_quiet(model, number, change):
    first = (lambda model: model.l1) if number == 1 else lambda model: lambda h: h

    def changed(model):
        also = {6: lambda h: h * h} if change == 'other shape' else {}
        return {number: lambda h: CHANGES[change](first(model)(h)), **also}
    want, other, quiet_ones = expected(), expected(changed), []
    for each in range(30):
        model.change = changed(model) if each % 3 == 2 else {}
        assert iterate(model) == (other if model.change else want)
        quiet_ones.append(is_quiet())
    assert all(quiet_ones[9:])


def test_a_graph_with_new_parameters_each_time_is_always_taken_note_of(model):
    """Else each iteration would begin quietly, differ, and have the next one recorded."""
    want, other, ran = expected(), expected(lambda model: {8: CHANGES['parameter']}), []
    for number in range(60):
        model.change = {8: CHANGES['parameter']} if number % 3 == 2 else {}
        assert iterate(model) == (other if model.change else want)
        iteration = sessions.current()._iteration
        ran.append((iteration.quiet is not None, iteration.recorder.measures, iteration.following.graph is None))
    assert sum(is_unknown for _, _, is_unknown in ran) <= 3
    assert ran[-30:] == [(False, False, False)] * 30


def test_a_step_that_forward_did_not_see_is_taken_note_of():
    """Backward goes on into the graphs of earlier iterations, which nothing has cut off."""
    def run(count):
        weight, h, found = chainer.Parameter(np.full((16, UNITS), 0.5, np.float32)), chainer.Variable(BATCH), []
        for _ in range(count):
            h = F.tanh(h * weight)
            loss = F.sum(h)
            weight.cleargrad()
            loss.backward(retain_grad=True)
            found.append(weight.grad.tobytes())
        return found

    want = run(8)
    with ooc('keep'):
        assert run(8) == want
        assert not is_quiet()


@pytest.mark.parametrize('policy', ['keep', 'pooch', 'swap-all', 'sublinear'])
@pytest.mark.parametrize('where', ['forward', 'backward'])
@pytest.mark.parametrize('number', [2, 5, 8])
def test_what_the_device_has_no_room_for_leaves(monkeypatch, policy, where, number):
    model = Chain()
    model.change = {number: lambda h: Pressing().apply((h,))[0]}
    want = expected(lambda other: model.change)
    with ooc(policy):
        for _ in range(4):
            iterate(model)

        def press(way):
            if way == where:
                iteration = sessions.current()._iteration
                iteration.room._relieve(10**9)
                assert iteration.quiet is None

        monkeypatch.setattr(Pressing, 'act', staticmethod(press))
        assert iterate(model) == want
        monkeypatch.undo()
        for _ in range(3):
            assert iterate(model) == want


def account_is_true():
    """Whether each map that is near and whose storage is known counts once."""
    blocks = [each for each in Account._blocks.values() if each.root() is not None and each.kind == 'maps']
    return sessions.current().memory.bytes_of('maps') == sum(each.nbytes for each in blocks)


def test_what_earlier_iterations_left_counts_when_a_budget_is_short(model):
    """Losses that the program holds keep their graphs, of which nothing was known."""
    losses = [model(BATCH) for _ in range(1)]
    for loss in losses:
        loss.backward()
    kept = model(BATCH)
    kept.backward()
    floor = None
    with ooc('swap-all', budget=1):
        try:
            iterate(model)
        except chainer_ooc.errors.InfeasibleBudgetError as error:
            floor = error.floor_bytes
    with ooc('swap-all', budget=int(floor * 1.02) + 1):
        for _ in range(3):
            assert iterate(model) == expected()
            assert chainer_ooc.stats().peak_bytes <= floor * 1.02 + 1
        assert not is_quiet()
        assert account_is_true()
    del losses, kept


def test_graphs_that_pile_up_are_counted():
    """A program that holds every loss, within a budget that some of the graphs fill."""
    model = Chain()
    with ooc('keep'):
        settled(model)
        budget = 4 * chainer_ooc.stats().peak_bytes
    losses, were_quiet = [], []
    with ooc('pooch', budget=budget):
        for _ in range(4):
            iterate(model)
        for _ in range(20):
            loss = model(BATCH)
            model.cleargrads()
            loss.backward()
            losses.append(loss)
            were_quiet.append(is_quiet())
        assert chainer_ooc.stats().peak_bytes <= budget
        assert account_is_true()
    assert were_quiet[0]
    assert not all(were_quiet)


def test_another_thread_that_takes_a_map_ends_it(model):
    loss = model(BATCH)
    assert is_quiet()
    found = []

    def work():
        with ooc('swap-all'):
            found.append(F.tanh(loss).array.tobytes())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [F.tanh(loss.array).array.tobytes()]
    loss.backward()
    assert not is_quiet()
    chainer_ooc.reset()


def test_backward_twice_and_of_a_part(model):
    for _ in range(2):
        x = chainer.Variable(BATCH.copy())
        h = F.tanh(model.l1(x))
        loss = F.sum(h * h)
        loss.backward(retain_grad=True)
        first = x.grad.copy()
        loss.backward()
        np.testing.assert_array_equal(x.grad, first * 2)


def test_double_backprop_is_noticed():
    def run():
        x = chainer.Variable(BATCH.copy())
        y = F.sum(F.tanh(x) ** 2)
        gradient, = chainer.grad([y], [x], enable_double_backprop=True)
        F.sum(gradient ** 2).backward()
        return x.grad.tobytes()

    want = run()
    with ooc('pooch'):
        assert [run() for _ in range(6)] == [want] * 6
        assert not is_quiet()


@pytest.mark.parametrize('policy', ['keep', 'pooch'])
def test_interrupts_between_any_two_lines(policy):
    model, want = Chain(), expected()
    with ooc(policy):
        settled(model)
        number = 1
        while interrupted_at(number, lambda: iterate(model), 'line', lambda code: code.co_filename == quiet.__file__):
            assert iterate(model) == want
            number += 3
        assert number > 100
        for _ in range(4):
            assert iterate(model) == want
        assert is_quiet()


def test_nothing_is_left_behind(model):
    iterate(model)
    chainer_ooc.reset()
    gc.collect()
    assert not Account._blocks
