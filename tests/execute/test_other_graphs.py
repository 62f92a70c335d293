"""P8: another graph is no error, and several backward passes, evaluation and double backprop work."""
import contextlib
import gc
import itertools
import os
import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.host import meter
from chainer_ooc.backends.host.measure import SAMPLE_BYTES
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.graphs import graphs
from chainer_ooc.execute.graphs.graph import Graph
from support import resident
from support.trainings.ooc_networks import Choosy
from support.trainings.ooc_training import POLICIES, Training, assert_same_bits, live_storages, ooc, spill_bytes


@pytest.fixture(params=POLICIES)
def policy(request):
    return request.param


def same(program, policy, **entries):
    """Runs a program, which gives an array or a nest of arrays, in plain Chainer and out-of-core."""
    np.random.seed(0)
    with chainer.using_config('ooc', None):
        plain = program()
    np.random.seed(0)
    with ooc(policy, **entries):
        ours = program()
    np.testing.assert_equal(ours, plain)


def sizes(order):
    def program():
        training = Training('residual')
        for size in order:
            training.iterate(size=size)
        return training.finish().bits
    return program


@pytest.mark.parametrize('order', [
    (4, 4, 2, 4, 4, 2, 2), (4, 3, 2, 1, 4, 3, 2, 1, 4), (2, 4, 2, 4, 2, 4, 2, 4), (4, 4, 4, 1)])
def test_batch_sizes_that_change(policy, order):
    same(sizes(order), policy)


def test_known_sizes_run_under_their_plans():
    training = Training('residual')
    with ooc('swap-all'):
        for _ in range(4):
            training.iterate(size=4)
            training.iterate(size=2)
    assert [each.phase for each in training.outcome.stats[-4:]] == ['run'] * 4
    assert [each.phase for each in training.outcome.stats[:2]] == ['profile', 'run']  # the other size is estimated


@pytest.mark.parametrize('network', ['residual', 'inception', 'views'])
def test_sizes_that_were_never_seen_run_under_estimates(policy, network, monkeypatch):
    starts = []
    start = meter.HostMeter.start
    monkeypatch.setattr(meter.HostMeter, 'start', lambda self: starts.append(self) or start(self))

    def run(name):
        training = Training(network)
        with chainer.using_config('ooc', None) if name is None else ooc(name):
            for size in (4, 3, 5, 8, 1, 6, 5, 2, 7, 4, 3):
                training.iterate(size=size)
        return training.finish()
    assert_same_bits(found := run(policy), run(None).bits)
    assert [each.phase for each in found.stats] == ['profile'] + 10 * ['run']
    assert len(starts) == 1


@pytest.mark.parametrize('sizes', [(5, 5, 3, 3, 4, 2, 6, 1), (3, 3, 5, 5, 1, 6, 2, 4)])
def test_an_estimate_that_does_not_know_what_is_retained_is_left(policy, sizes):
    def program():
        fc = L.Linear(20, 30)
        found = []
        for number, size in enumerate(sizes):
            fc.cleargrads()
            x = np.random.RandomState(number).randn(size, 20).astype(np.float32)
            loss = F.sum(F.sin(Choosy(lambda rows: rows < 4).apply((F.tanh(fc(x)),))[0]))
            loss.backward()
            found += [loss.array.copy(), fc.W.grad.copy()]
        return found
    same(program, policy)
    same(program, policy, budget='80 kB')


def test_an_estimate_that_is_too_large_for_the_budget_is_not_used(policy):
    """In an estimate all bytes grow, parameters' gradients too: a budget for the truth may be too small for it."""
    def run(name, sizes, budget=None):
        training, phases = Training('views'), []
        chainer_ooc.reset()
        with chainer.using_config('ooc', None) if name is None else ooc(name, budget=budget):
            for size in sizes:
                training.iterate(size=size)
                phases.append(None if name is None else chainer_ooc.stats().phase)
        return training.finish(), phases
    sizes = (1, 1, 4, 4, 2)
    assert run(policy, sizes)[1][2] == 'run'
    peak_bytes = max(each.peak_bytes for each in run(policy, (4, 4))[0].stats)
    found, phases = run(policy, sizes, int(1.05 * peak_bytes))
    assert phases[2] == 'profile'
    assert_same_bits(found, run(None, sizes)[0].bits)


def test_graphs_that_differ_in_a_later_shape_only_have_plans_of_their_own():
    def forward(rows):
        h = F.tanh(chainer.Variable(np.ones((40, 50), np.float32)))
        return F.sum(F.exp(F.sin(h[:rows])))

    phases, plans = [], {}
    with ooc('swap-all'):
        for rows in (30, 20) * 4:
            loss = forward(rows)
            loss.backward()
            phases.append(chainer_ooc.stats().phase)
            if phases[-1] == 'run':
                plans[rows] = chainer_ooc.plan()
                assert max(each.nbytes for each in chainer_ooc.trace().maps[1:]) == 40 * 50 * 4
                assert rows * 50 * 4 in {each.nbytes for each in chainer_ooc.trace().maps}
    assert phases[-4:] == ['run'] * 4
    assert plans[20] is not plans[30]  # their peaks differ by less than Python's own objects vary


def test_image_sizes_that_change(policy):
    def program():
        training = Training('residual')
        for side in (12, 12, 9, 12, 9, 9):
            training.iterate(side=side)
        return training.finish().bits
    same(program, policy)


class Branching(chainer.Chain):
    """Chooses its graph by a coin that the caller tosses."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.fc0 = L.Linear(20, 16)
            self.fc1 = L.Linear(16, 16)
            self.fc2 = L.Linear(16, 5)

    def __call__(self, x, t, way):
        h = F.tanh(self.fc0(x))
        for number in range(way % 3 + 1):
            h = F.sigmoid(self.fc1(h)) * h if (way + number) % 2 else F.relu(self.fc1(h)) + h
        return F.softmax_cross_entropy(self.fc2(h), t, enable_double_backprop=True)


def vectors(number, size=6):
    random = np.random.RandomState(number)
    return random.uniform(-1, 1, (size, 20)).astype(np.float32), random.randint(0, 5, size).astype(np.int32)


def step(model, loss):
    model.cleargrads()
    loss.backward()
    for parameter in model.params():
        if parameter.grad is not None:
            parameter.array -= 0.1 * parameter.grad
    return loss.array.copy()


@pytest.mark.parametrize('seed', range(3))
def test_graphs_that_part_after_a_common_beginning(policy, seed):
    ways = np.random.RandomState(seed).randint(0, 6, 20)

    def program():
        model = Branching()
        return [step(model, model(*vectors(number), way)) for number, way in enumerate(ways)]
    same(program, policy)


def test_more_graphs_than_are_remembered(policy, monkeypatch):
    monkeypatch.setattr(graphs, 'GRAPHS', 16)

    def program():
        model = Branching()
        return [step(model, model(*vectors(number, 1 + number % 20), number)) for number in range(45)]
    same(program, policy)


def test_evaluation_between_iterations_and_between_forward_and_backward(policy):
    def program():
        training, seen = Training('hidden'), []
        for number in range(5):
            loss = training.forward()
            with chainer.no_backprop_mode(), chainer.using_config('train', False):
                seen.append(training.model(*training.batch(np.random.RandomState(100 + number), size=3)).array)
            training.model.cleargrads()
            loss.backward()
            training.note_gradients()
            training.optimizer.update()
            with chainer.using_config('train', False):  # a graph that nobody runs backward
                seen.append(training.model(*training.batch(np.random.RandomState(200 + number))).array)
            training.number += 1
        return seen, training.finish().bits
    same(program, policy)


def test_evaluation_within_forward(policy):
    def program():
        model, seen = Branching(), []
        for number in range(4):
            x, t = vectors(number)
            h = F.tanh(model.fc0(x))
            with chainer.no_backprop_mode():
                seen.append(F.softmax(model.fc2(model.fc1(h))).array)
            h = F.sigmoid(model.fc1(h)) * h
            with chainer.no_backprop_mode():
                seen.append(F.sum(h * h).array)
            seen.append(step(model, F.softmax_cross_entropy(model.fc2(h), t)))
        return seen
    same(program, policy)


def test_forward_whose_graph_is_dropped(policy):
    def program():
        model, seen = Branching(), []
        for number in range(8):
            loss = model(*vectors(number), number % 2)
            if number % 3 == 1:
                seen.append(loss.array)
                del loss
                continue
            seen.append(step(model, loss))
        return seen
    same(program, policy)


def test_losses_that_are_kept_and_run_backward_later(policy):
    def program():
        model, seen, waiting = Branching(), [], []
        for number in range(9):
            waiting.append(model(*vectors(number), number % 3))
            if len(waiting) == 3:
                for loss in waiting[::-1] if number % 2 else waiting:
                    seen.append(step(model, loss))
                waiting = []
        return seen
    same(program, policy)


def test_gradients_accumulated_over_several_batches(policy):
    def program():
        model = Branching()
        for number in range(12):
            if number % 3 == 0:
                model.cleargrads()
            model(*vectors(number), 2).backward()
        return [parameter.grad for parameter in model.params()]
    same(program, policy)


def test_sum_of_losses(policy):
    def program():
        model, seen = Branching(), []
        for number in range(5):
            total = sum(model(*vectors(10 * number + each), each) for each in range(3))
            seen.append(step(model, total))
        return seen
    same(program, policy)


class Adversaries:
    """A generator and a discriminator whose losses share the generated images."""

    def __init__(self):
        self.generator, self.judge = chainer.ChainList(L.Linear(8, 30), L.Linear(30, 20)), L.Linear(20, 1)
        self.hidden = L.Linear(20, 20)

    def judged(self, x):
        return self.judge(F.leaky_relu(self.hidden(x)))

    def iterate(self, number):
        z = np.random.RandomState(number).uniform(-1, 1, (6, 8)).astype(np.float32)
        fake = F.tanh(self.generator[1](F.relu(self.generator[0](z))))
        y_fake, y_real = self.judged(fake), self.judged(vectors(number)[0])
        loss_judge = F.sum(F.softplus(-y_real)) / 6 + F.sum(F.softplus(y_fake)) / 6
        loss_generator = F.sum(F.softplus(-y_fake)) / 6
        seen = []
        for loss, parts in ((loss_judge, (self.judge, self.hidden)), (loss_generator, (self.generator,))):
            for part in (self.generator, self.judge, self.hidden):
                part.cleargrads()
            loss.backward()
            for part in parts:
                for parameter in part.params():
                    seen.append(parameter.grad.copy())
            seen.append(loss.array.copy())
        return seen


def test_two_backward_passes_with_shared_parts(policy):
    if policy == 'keep':
        pytest.skip('see test_keep_learns_two_backward_passes_with_shared_parts')
    same(lambda: [Adversaries().iterate(number) for number in range(1)], policy)

    def program():
        both = Adversaries()
        return [both.iterate(number) for number in range(5)]
    same(program, policy)


def test_keep_knows_two_backward_passes_from_the_recording():
    def program():
        both = Adversaries()
        return [both.iterate(number) for number in range(5)]
    same(program, 'keep')


def test_generator_that_is_judged_twice_with_unchaining(policy):
    def program():
        both, seen = Adversaries(), []
        for number in range(4):
            z = np.random.RandomState(number).uniform(-1, 1, (6, 8)).astype(np.float32)
            fake = F.tanh(both.generator[1](F.relu(both.generator[0](z))))
            loss = F.sum(F.softplus(-both.judged(fake)))
            both.generator.cleargrads()
            loss.backward()
            seen += [parameter.grad.copy() for parameter in both.generator.params()]
            fake.unchain_backward()
            loss = F.sum(F.softplus(both.judged(fake))) + F.sum(F.softplus(-both.judged(vectors(number)[0])))
            both.judge.cleargrads()
            loss.backward()
            seen += [parameter.grad.copy() for parameter in both.judge.params()]
        return seen
    same(program, policy)


def test_chainer_grad(policy):
    def program():
        model, seen = Branching(), []
        for number in range(4):
            x = chainer.Variable(vectors(number)[0])
            loss = model(x, vectors(number)[1], 2)
            gradients = chainer.grad([loss], [x, model.fc0.W, model.fc1.b])
            seen += [each.array for each in gradients]
            seen += [each.array for each in chainer.grad([loss], [x])]
            seen.append(step(model, loss))
        return seen
    same(program, policy)


def test_double_backprop(policy):
    def program():
        model, seen = Branching(), []
        for number in range(4):
            x = chainer.Variable(vectors(number)[0])
            loss = model(x, vectors(number)[1], 1)
            gradient, = chainer.grad([loss], [x], enable_double_backprop=True)
            penalty = F.sum(gradient * gradient)
            seen.append(step(model, loss + 0.1 * penalty))
            seen.append(gradient.array.copy())
        return seen
    same(program, policy)


def test_backward_of_backward(policy):
    def program():
        seen = []
        for number in range(4):
            x = chainer.Variable(vectors(number)[0])
            y = F.sum(F.tanh(x) * F.exp(x) + F.sigmoid(x) ** 3)
            y.backward(enable_double_backprop=True)
            first = x.grad_var
            x.cleargrad()
            F.sum(first * first).backward(enable_double_backprop=True)
            second = x.grad_var
            x.cleargrad()
            F.sum(second).backward()
            seen += [first.array.copy(), second.array.copy(), x.grad.copy()]
        return seen
    same(program, policy)


def test_double_backprop_through_batch_normalisation(policy):
    def program():
        training, seen = Training('residual'), []
        for number in range(3):
            images, t = training.batch(np.random.RandomState(number))
            x = chainer.Variable(images)
            loss = training.model(x, t)
            gradient, = chainer.grad([loss], [x], enable_double_backprop=True)
            seen.append(step(training.model, loss + F.sum(gradient ** 2)))
        return seen, training.finish().bits
    same(program, policy)


def test_unchain_backward_and_state_that_lives_on(policy):
    class Words(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.lstm = L.LSTM(20, 16)
                self.fc = L.Linear(16, 5)

    def program():
        model, seen, total = Words(), [], 0
        for number in range(15):
            x, t = vectors(number)
            total += F.softmax_cross_entropy(model.fc(model.lstm(x)), t)
            if number % 3 == 2:
                seen.append(step(model, total))
                total.unchain_backward()
                total = 0
        return seen, model.lstm.h.array, model.lstm.c.array
    same(program, policy)


def test_backward_from_a_variable_in_the_middle(policy):
    def program():
        model, seen = Branching(), []
        for number in range(4):
            x, t = vectors(number)
            h = F.tanh(model.fc0(x))
            g = F.sigmoid(model.fc1(h))
            loss = F.softmax_cross_entropy(model.fc2(g), t)
            model.cleargrads()
            h.grad = np.ones_like(h.array)
            h.backward()
            seen.append(model.fc0.W.grad.copy())
            seen.append(step(model, loss))
        return seen
    same(program, policy)


def test_backward_of_several_outputs_at_once(policy):
    def program():
        model, seen = Branching(), []
        for number in range(4):
            x, t = vectors(number)
            h = F.tanh(model.fc0(x))
            one, two = F.sum(model.fc1(h) ** 2), F.softmax_cross_entropy(model.fc2(h), t)
            model.cleargrads()
            one.grad, two.grad = np.ones_like(one.array), np.full_like(two.array, 0.5)
            chainer.backward([one, two])
            seen += [parameter.grad.copy() for parameter in model.params()]
        return seen
    same(program, policy)


def test_retain_grad_and_loss_scaling(policy):
    def program():
        model, seen = Branching(), []
        for number in range(4):
            x, t = vectors(number)
            h = F.tanh(model.fc0(x))
            g = F.sigmoid(model.fc1(h))
            loss = F.softmax_cross_entropy(model.fc2(g), t)
            model.cleargrads()
            loss.backward(retain_grad=True, loss_scale=16.0)
            seen += [h.grad.copy(), g.grad.copy(), model.fc0.W.grad.copy()]
        return seen
    same(program, policy)


def test_checkpointing_of_chainer_within_ours(policy):
    def program():
        model, seen = Branching(), []
        for number in range(4):
            x, t = vectors(number)
            h = F.forget(lambda a: F.dropout(F.tanh(model.fc0(a)), 0.0), x)
            h = F.forget(lambda a, b: F.sigmoid(model.fc1(a)) * b, h, h)
            seen.append(step(model, F.softmax_cross_entropy(model.fc2(h), t)))
        return seen
    same(program, policy)


def test_policies_that_change_between_iterations():
    training = Training('hidden')
    order = ['keep', 'swap-all', None, 'swap-all-naive', 'keep', None, 'swap-all', 'swap-all', 'keep']
    for each in order:
        with ooc(each):
            training.iterate()
    plain = Training('hidden')
    plain.iterate(len(order))
    assert_same_bits(training.finish(), plain.finish().bits)


def test_policy_that_changes_between_forward_and_backward():
    def program(names):
        training = Training('hidden')
        for each in names:
            with ooc(each[0]):
                loss = training.forward()
            training.model.cleargrads()
            with ooc(each[1]):
                loss.backward()
            training.note_gradients()
            training.optimizer.update()
            training.number += 1
            del loss
        return training.finish()

    names = [('keep', 'swap-all'), ('swap-all', 'keep'), ('swap-all', None), (None, 'swap-all'), ('swap-all', 'keep'),
             ('keep', 'keep'), ('swap-all-naive', 'swap-all')]
    assert_same_bits(program(names), program([(None, None)] * len(names)).bits)


def test_static_graph_within_a_graph_of_ours(policy):
    """A static graph knows arrays by their addresses, so that none of its own may leave."""
    class Static(chainer.Chain):
        def __init__(self):
            super().__init__(first=L.Linear(10, 20), norm=L.BatchNormalization(20), second=L.Linear(20, 8))

        @chainer.static_graph
        def __call__(self, x):
            return F.relu(self.second(F.relu(self.norm(self.first(x)))))

    class Model(chainer.Chain):
        def __init__(self):
            super().__init__(first=L.Linear(12, 10), static=Static(), last=L.Linear(8, 4))

        def __call__(self, x):
            return F.sum(F.tanh(self.last(F.tanh(self.static(F.tanh(self.first(x)))))) ** 2)

    def program():
        model = Model()
        found = []
        for number in range(4):
            model.cleargrads()
            loss = model(np.random.RandomState(number).randn(6, 12).astype(np.float32))
            loss.backward()
            found += [loss.array.copy(), *(each.grad.copy() for _, each in sorted(model.namedparams()))]
        return found
    with contextlib.redirect_stdout(None):  # it tells what it does
        same(program, policy)


@pytest.mark.parametrize(('policy', 'iterations'), [('swap-all', 500), *(
    pytest.param(each, 1000, marks=pytest.mark.long) for each in ('swap-all', 'swap-all-naive', 'recompute-all'))])
def test_many_iterations_of_changing_shapes_grow_nothing(policy, iterations, verdict_mixes, monkeypatch):
    """Sizes and branches are drawn, so that most graphs are new; every seventh ends without a backward pass."""
    monkeypatch.setattr(meter, 'MOST_STARTS', 100)  # each start of tracemalloc leaves some kilobytes: no more after 300
    monkeypatch.setattr(meter, '_starts', itertools.count())
    monkeypatch.setattr(graphs, 'GRAPHS', 16)
    model, random, marks = Branching(), np.random.RandomState(0), []
    with ooc(policy):
        for number in range(iterations + 1):
            loss = model(*vectors(number, int(random.randint(1, 40))), int(random.randint(0, 4)))
            if number % 7 != 3:
                step(model, loss)
            del loss
            if number in (300, iterations):
                model(*vectors(0), 0)  # ends the last iteration
                sessions.current().memory.finish_swap_outs()  # what leaves still holds its iteration
                sessions.current().memory.backend.trim()  # pages for the most that was in use, whenever that was
                marks.append(standing())
    for what in ('descriptors', 'threads'):
        assert marks[1][what] == marks[0][what], what
    assert marks[1]['threads'] <= 3  # this one and the two that copy
    assert marks[1]['plans'] <= 16
    assert marks[1]['estimates'] <= 4 * 16
    assert marks[1]['spilled'] < 2_000_000 + SAMPLE_BYTES  # the file keeps the room of the bandwidth measurement
    assert marks[1]['objects'] < marks[0]['objects'] + 2_000
    assert marks[1]['resident'] < marks[0]['resident'] + (2 << 20)
    chainer_ooc.reset()
    assert live_storages() == 0


def standing():
    """What should not grow from iteration to iteration."""
    gc.collect()
    return {
        'threads': threading.active_count(), 'descriptors': len(os.listdir('/proc/self/fd')),
        'plans': sum(type(each) is Graph and not each.is_estimate for each in gc.get_objects()),
        'estimates': sum(type(each) is Graph and each.is_estimate for each in gc.get_objects()),
        'storages': live_storages(), 'objects': len(gc.get_objects()), 'spilled': spill_bytes(),
        'resident': resident.rss_bytes()}


class Normalized(chainer.Chain):
    """Normalizations, whose running statistics training writes to and an evaluation reads."""

    def __init__(self, count=3):
        super().__init__()
        with self.init_scope():
            self.norms = chainer.ChainList(*[L.BatchNormalization(8) for _ in range(count)])
            self.last = L.Linear(2048, 10)

    def forward(self, x):
        for norm in self.norms:
            x = F.relu(norm(x))
        return self.last(x)


@pytest.mark.parametrize('policy', ['sublinear', 'tensor-cache', 'superneurons', 'pooch'])
def test_running_statistics_that_an_evaluation_has_read_are_no_maps_of_the_next_training(policy):
    """They belong to the evaluation's iteration then, which had a graph and no backward pass."""
    def train(name):
        np.random.seed(0)
        model, outcome = Normalized(), []
        optimizer = chainer.optimizers.SGD().setup(model)
        x, labels = np.random.randn(4, 8, 16, 16).astype(np.float32), np.zeros(4, np.int32)
        budget = None if name is None else 1
        for number in range(6):
            with ooc(name, min_bytes=1, budget=budget):
                if number == 1 and name:
                    with pytest.raises(InfeasibleBudgetError) as refused:
                        model(x)
                    budget = refused.value.floor_bytes * 51 // 50
            with ooc(name, min_bytes=1, budget=budget):
                if number >= 2:
                    with chainer.using_config('train', False):
                        outcome.append(model(x).array.copy())
                loss = F.softmax_cross_entropy(model(x), labels)
                model.cleargrads()
                loss.backward()
                optimizer.update()
            outcome.append(loss.array.copy())
            del loss
        return [each.tobytes() for each in (*outcome, *(each.array for each in model.params()))]

    assert train(policy) == train(None)


def test_a_program_that_iterates_over_a_variable_has_plans(policy):
    """Python finds the end by an IndexError, which ends no iteration."""
    layer, graphs_known = L.Linear(64, 64), []

    def program():
        x = chainer.Variable(np.random.uniform(-1, 1, (4, 8, 64)).astype(np.float32))
        for _ in range(4):
            layer.cleargrads()
            F.sum(sum(F.tanh(layer(h)) for h in F.sigmoid(x))).backward()
            if chainer.config.ooc is not None:
                graphs_known.append((chainer_ooc.stats().phase, chainer_ooc.trace().calls[0].label))
        return layer.W.grad, x.grad
    same(program, policy)
    assert graphs_known[-1] == ('run', 'Sigmoid')
    with chainer.using_config('ooc', policy), pytest.raises(IndexError):
        F.sigmoid(np.ones((3, 2), np.float32))[3]
