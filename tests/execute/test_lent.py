"""Backward passes over graphs that another thread has made: part of that one's iteration, under its plan and budget."""
import concurrent.futures
import contextlib
import functools
import gc
import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.owned import RoomMakers
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.session import Session
from chainer_ooc.trace import Trace
from support.trainings.ooc_training import bits_of, ooc


class Training:
    def __init__(self, layers=6):
        np.random.seed(0)
        self.model = chainer.ChainList(*[L.Linear(100, 100) for _ in range(layers)])
        self.optimizer = chainer.optimizers.MomentumSGD(0.1).setup(self.model)

    def forward(self, number):
        h = chainer.Variable(np.random.RandomState(number).uniform(-1, 1, (200, 100)).astype('f4'))
        for layer in self.model:
            h = F.tanh(layer(h))
        return F.mean(h * h)

    def iterate(self, number, forward, backward):
        loss = forward(self.forward, number)
        self.model.cleargrads()
        backward(loss.backward)
        bits = [bits_of(loss.array), *(bits_of(each.grad) for each in self.model.params())]
        self.optimizer.update()
        return bits


def lent():
    return [each for thread, each in sessions._current.items() if each.owner is not thread]


def at_once(call, *given):
    return call(*given)


def in_new_thread(call, *given):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *given).result()


@pytest.fixture
def in_pool():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield lambda call, *given: pool.submit(call, *given).result()


def run(forward=at_once, backward=at_once, iterations=5):
    training = Training()
    return [training.iterate(number, forward, backward) for number in range(iterations)]


@contextlib.contextmanager
def without_collections():
    """One that comes in a thread which has begun to wait is work of that."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def floor_of(policy, backward, forward=at_once):
    with ooc(policy, budget=1000), without_collections():
        training = Training()
        training.iterate(0, forward, backward)
        with pytest.raises(InfeasibleBudgetError) as refused:
            training.iterate(1, forward, backward)
    chainer_ooc.reset()
    return refused.value


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch', 'sublinear', 'unified'])
@pytest.mark.parametrize('where', ['a thread of a pool', 'new threads'])
def test_a_backward_pass_in_another_thread_follows_the_plan(policy, where, in_pool):
    backward = in_new_thread if where == 'new threads' else in_pool
    expected = run()
    refused, alone = floor_of(policy, backward), floor_of(policy, at_once)
    assert refused.doubt == ''
    assert refused.floor_bytes == pytest.approx(alone.floor_bytes, rel=0.01)
    with ooc(policy, budget=int(1.02 * refused.floor_bytes)):
        assert run(backward=backward) == expected
        stats = chainer_ooc.stats()
        assert stats.phase == 'run'
        assert stats.peak_bytes <= stats.budget_bytes
        assert (stats.swapped_out_bytes > 0) == (policy not in ('keep', 'sublinear'))
    assert not lent()


def set_entries(policy, budget):
    chainer.config.ooc_min_bytes, chainer.config.ooc_budget, chainer.config.ooc = 0, budget, policy


def test_a_forward_pass_in_another_thread_has_its_plan_there(in_pool):
    expected = run()
    budget = int(1.02 * floor_of('swap-all', at_once).floor_bytes)
    in_pool(set_entries, 'swap-all', budget)
    assert run(forward=in_pool) == expected
    stats = in_pool(chainer_ooc.stats)
    assert stats.phase == 'run'
    assert stats.swapped_out_bytes > 0
    assert stats.peak_bytes <= budget
    assert chainer_ooc.stats() is None
    chainer_ooc.reset()


def test_a_thread_that_trains_too_has_its_own_session_back_afterwards(in_pool):
    expected = run()
    in_pool(set_entries, 'swap-all', None)
    assert in_pool(run) == expected
    own = in_pool(sessions.current)
    with ooc('pooch'):
        assert run(backward=in_pool) == expected
        assert chainer_ooc.stats().policy == 'pooch'
        assert chainer_ooc.stats().phase == 'run'
    assert in_pool(sessions.current) is own
    assert in_pool(run) == expected
    assert in_pool(chainer_ooc.stats).policy == 'swap-all'
    chainer_ooc.reset()


def test_where_ooc_is_unset_on_purpose_a_backward_pass_is_plain(in_pool):
    in_pool(set_entries, None, None)
    expected = run()
    with ooc('swap-all'):
        assert run(backward=in_pool) == expected
        assert chainer_ooc.stats() is None


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch'])
def test_the_next_forward_pass_may_run_beside_the_backward_pass(policy, in_pool):
    """The pass goes on without a plan then, and the next iteration is none of its business."""
    def run_both():
        training, bits = Training(), []
        for number in range(5):
            loss = training.forward(number)
            training.model.cleargrads()
            began, done = threading.Event(), threading.Event()

            def hooked(began=began, done=done):
                class Waits(chainer.FunctionHook):
                    name = 'Waits'

                    def backward_preprocess(self, function, inputs, grads):
                        if not began.is_set():
                            began.set()
                            assert done.wait(60)
                with Waits():
                    loss.backward()  # noqa: B023 - it is over before the next one is made
            thread = threading.Thread(target=hooked)
            thread.start()
            assert began.wait(60)
            beside = training.forward(100 + number)
            done.set()
            thread.join()
            bits += [bits_of(each) for each in (loss.array, beside.array, *(p.grad for p in training.model.params()))]
            training.optimizer.update()
            del beside
        return bits

    expected = run_both()
    with ooc(policy):
        with pytest.warns(RuntimeWarning, match='applied a function, .* 3 times in a row: ') as told:
            assert run_both() == expected
        assert len(told) == 1
        assert told[0].filename == __file__
        assert run(backward=in_pool, iterations=3) == run(iterations=3)


@pytest.mark.filterwarnings('ignore:a thread applied a function, or began a backward pass:RuntimeWarning')
@pytest.mark.parametrize('first', ['the own thread', 'another thread'])
@pytest.mark.parametrize('policy', ['swap-all', 'pooch', 'sublinear'])
def test_two_passes_over_one_graph_at_once_are_right(policy, first):
    """One of them at most is part of the iteration. They share no parameters, whose gradients come in any order."""
    def run_both(first):
        trainings, bits = [Training(4), Training(4)], []
        for number in range(5):
            losses = [each.forward(number) for each in trainings]
            for each in trainings:
                each.model.cleargrads()
            threads = [threading.Thread(target=loss.backward) for loss in losses[1:] * (first == 'the own thread') + (
                losses * (first == 'another thread'))]
            for each in threads:
                each.start()
            if first == 'the own thread':
                losses[0].backward()
            for each in threads:
                each.join()
            bits += [bits_of(each.grad) for training in trainings for each in training.model.params()]
            for each in trainings:
                each.optimizer.update()
        return bits

    expected = run_both(first)
    with ooc(policy):
        assert run_both(first) == expected
        assert run(backward=in_new_thread) == run()
        assert chainer_ooc.stats().phase == 'run'


def test_an_error_in_the_backward_pass_ends_it_as_in_one_thread(in_pool):
    class FailsError(Exception):
        pass

    class Fails(chainer.FunctionHook):
        name = 'Fails'

        def backward_preprocess(self, function, inputs, grads):
            raise FailsError

    expected = run()
    with ooc('swap-all'):
        training = Training()
        for _ in range(3):
            loss = training.forward(0)
            with pytest.raises(FailsError):
                in_pool(lambda: [Fails().__enter__(), loss.backward()])  # noqa: B023
            in_pool(lambda: chainer.get_function_hooks().clear())
        assert run(backward=in_pool) == expected
        assert chainer_ooc.stats().phase == 'run'
    assert not lent()


def test_what_an_interrupt_has_left_of_a_lent_pass_is_no_more(in_pool):
    """It came before the pass was over for the session, or before the thread had its own session back."""
    expected = run()
    with ooc('swap-all'):
        assert run(backward=in_pool) == expected
        own = sessions.current()
        borrower = in_pool(threading.current_thread)
        own.passing, sessions._current[borrower] = borrower, own
        assert run(backward=in_pool) == expected
        assert chainer_ooc.stats().phase == 'run'
        sessions._current[borrower] = own
        assert in_pool(sessions.current) is None
        assert not lent()
        sessions._current[borrower] = own
    chainer_ooc.reset()
    assert not lent()


def test_gradients_of_gradients_may_be_had_in_another_thread(in_pool):
    def penalised(call):
        x = chainer.Variable(np.random.RandomState(0).uniform(-1, 1, (50, 40)).astype('f4'))
        y = F.sum(F.tanh(x * x))
        bits = []
        for _ in range(3):
            gradient, = call(lambda: chainer.grad([y], [x], enable_double_backprop=True))
            x.cleargrad()
            call(F.sum(gradient * gradient).backward)
            bits.append(bits_of(x.grad))
        return bits

    expected = penalised(at_once)
    for policy in ('keep', 'swap-all', 'pooch'):
        with ooc(policy):
            for _ in range(3):
                assert penalised(in_pool) == expected
        chainer_ooc.reset()


def test_room_is_made_for_the_thread_that_it_is_lent_to(in_pool):
    makers, owner = RoomMakers(), object()
    makers.set(owner, 'room')
    with makers.lent(owner):
        assert makers.of_this_thread() == 'room'
    def lent():
        assert makers.of_this_thread() is None
        with makers.lent(owner):
            return makers.of_this_thread()
    assert in_pool(lent) == 'room'
    assert makers.of_this_thread() == 'room'
    def set_meanwhile():
        with makers.lent(owner):
            makers.set(owner, 'another')
            return makers.of_this_thread()
    assert in_pool(set_meanwhile) == 'another'
    assert (makers.of_this_thread(), in_pool(makers.of_this_thread)) == ('another', None)


def test_room_is_made_for_its_own_thread_meanwhile(in_pool):
    makers, owner = RoomMakers(), object()
    in_pool(makers.set, owner, 'room')
    with makers.lent(owner):
        assert in_pool(makers.of_this_thread) == 'room'
        in_pool(makers.set, owner, 'another')  # as it goes on
        assert in_pool(makers.of_this_thread) == 'another'
    assert (makers.of_this_thread(), in_pool(makers.of_this_thread)) == (None, 'another')


class Meets(chainer.FunctionNode):
    """Waits in its forward call until the test lets it go on."""

    def __init__(self, began, may_end):
        super().__init__()
        self.began, self.may_end = began, may_end

    def forward(self, inputs):
        self.began.set()
        assert self.may_end.wait(60)
        return inputs[0] * np.float32(2),

    def backward(self, indexes, gradients):
        return gradients[0] * np.float32(2),


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch'])
def test_no_session_is_lent_in_the_midst_of_a_forward_call(policy, in_pool):
    """A pass over the first part would be recorded between that call and the ones before."""
    def iterate(training, number):
        h = chainer.Variable(np.random.RandomState(number).uniform(-1, 1, (200, 100)).astype('f4'))
        for layer in training.model[:3]:
            h = F.tanh(layer(h))
        first = F.mean(h * h)
        training.model.cleargrads()
        began, may_end = threading.Event(), threading.Event()

        def pass_over_the_first_part():
            assert began.wait(60)
            first.backward()
            may_end.set()
        thread = threading.Thread(target=pass_over_the_first_part)
        thread.start()
        h, = Meets(began, may_end).apply((h,))
        thread.join()
        for layer in training.model[3:]:
            h = F.tanh(layer(h))
        loss = F.mean(h * h)
        loss.backward()
        bits = [bits_of(each) for each in (loss.array, *(p.grad for p in training.model.params()))]
        training.optimizer.update()
        return bits

    def train():
        training = Training()
        return [iterate(training, number) for number in range(5)]

    expected = train()
    with ooc(policy):
        assert train() == expected
        for each in sessions.current().traces():
            assert [step.position for step in each.steps] == [*range(len(each.calls), each.positions)]
            assert Trace.from_json(each.to_json()) == each


class Switch:
    """A hook that lets its own thread go on only after the test has done something."""

    def __init__(self, steps, act):
        self.steps, self.act, self.count = steps, act, 0
        self.found, self.acted = threading.Event(), threading.Event()

    def step(self, session, thread, run, arguments, _step=Session.step):
        if thread is not threading.main_thread():
            self.count += 1
            if self.count == self.steps:
                self.found.set()
                assert self.acted.wait(60)
        return _step(session, thread, run, arguments)

    def run(self, call):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            ended = pool.submit(call)
            assert self.found.wait(60)
            given = self.act()
            self.acted.set()
            return ended.exception(60), given


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch'])
def test_a_step_is_never_one_of_the_iteration_that_the_owner_has_begun_meanwhile(policy, monkeypatch):
    expected = run()
    with ooc(policy):
        assert run() == expected
        training, next_ = Training(), Training()
        loss = training.forward(0)
        switch = Switch(3, lambda: next_.forward(1))
        monkeypatch.setattr(Session, 'step', lambda *given: switch.step(*given))
        error, beside = switch.run(loss.backward)
        assert error is None
        iteration = sessions.current()._iteration
        assert not iteration.finished
        assert not iteration._in_backward
        assert not iteration.recorder.steps
        del iteration, beside, loss
        assert run() == expected


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch'])
def test_an_error_of_a_pass_leaves_what_the_owner_has_begun_meanwhile(policy, monkeypatch):
    class FailsError(Exception):
        pass

    def fails_then(run, *given):
        if switch.acted.is_set():
            raise FailsError
        run(*given)

    with ooc(policy):
        run()
        training, next_ = Training(), Training()
        loss = training.forward(0)
        switch = Switch(3, lambda: next_.forward(1))
        monkeypatch.setattr(Session, 'step', lambda session, thread, run, arguments: switch.step(
            session, thread, functools.partial(fails_then, run), arguments))
        error, beside = switch.run(loss.backward)
        assert isinstance(error, FailsError)
        assert sessions.current()._iteration is not None
        monkeypatch.undo()
        beside.backward()
        assert chainer_ooc.stats().policy == policy
        assert sessions.current().finished is not None


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch'])
def test_a_thread_that_only_runs_backward_passes_has_no_session(policy, in_pool, monkeypatch):
    """Nor if the owner goes on meanwhile: others would take what it does for a training of its own, as it lives."""
    with ooc(policy):
        run()
        training, next_ = Training(), Training()
        loss = training.forward(0)
        switch = Switch(1, lambda: next_.forward(1))
        monkeypatch.setattr(Session, 'step', lambda *given: switch.step(*given))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            ended = pool.submit(loss.backward)
            assert switch.found.wait(60)
            beside = switch.act()
            switch.acted.set()
            ended.result()
            assert [thread for thread, _ in sessions._sessions] == [threading.main_thread()]
        del beside


def test_the_session_of_a_thread_that_has_ended_is_not_closed_in_the_midst_of_a_pass(in_pool):
    with ooc('keep'):
        training, losses = Training(), []
        thread = threading.Thread(target=lambda: (set_entries('keep', None), losses.append(training.forward(0))))
        thread.start()
        thread.join()
        lent, = sessions._sessions.values()

        class TrainsBeside(chainer.FunctionHook):
            name = 'TrainsBeside'

            def backward_preprocess(self, function, inputs, gradients):
                in_pool(set_entries, 'keep', None)
                in_pool(Training(2).forward, 0)
                assert not lent.is_closed
        with TrainsBeside():
            losses[0].backward()
        assert lent.finished is not None
        chainer_ooc.reset()


def test_what_is_lent_is_for_arrays_of_its_device_alone(in_pool, monkeypatch):
    class Asked(Exception):  # noqa: N818
        pass

    def ask(device, options):
        raise Asked(device)

    class LooksElsewhere(chainer.FunctionHook):
        name = 'LooksElsewhere'

        def backward_preprocess(self, function, inputs, gradients):
            assert sessions.session_for('host') is sessions.session_for(None) is own
            with pytest.raises(Asked, match='cuda'):
                sessions.session_for('cuda')

    with ooc('swap-all'):
        loss, own = Training().forward(0), sessions.current()
        monkeypatch.setattr(sessions, 'choose', ask)

        def passes():
            with LooksElsewhere():
                loss.backward()
        in_pool(passes)


@pytest.mark.parametrize('passes', ['its own pass', 'another pass in a thread'])
def test_work_of_a_pass_is_no_reason_for_doubt_in_a_later_one(in_pool, passes):
    """Of one graph: the second pass ends what is recorded."""
    def iterate(training, number):
        loss = training.forward(number)
        training.model.cleargrads()
        in_pool(loss.backward)
        loss.cleargrad()
        loss.backward() if passes == 'its own pass' else in_pool(loss.backward)

    with ooc('swap-all', budget=1000), without_collections():
        training = Training()
        iterate(training, 0)
        with pytest.raises(InfeasibleBudgetError) as refused:
            iterate(training, 1)
    assert refused.value.doubt == ''


@pytest.mark.parametrize('work', ['evaluates', 'evaluates a little', 'reads a map', 'makes a batch'])
def test_what_the_owner_does_during_the_pass_is_a_reason_for_doubt(in_pool, work):
    large = np.ones((3000, 3000), 'f4')

    def iterate(training, number):
        h = F.tanh(training.model[0](np.ones((200, 100), 'f4')))
        loss = F.mean(F.tanh(training.model[1](h)))
        training.model.cleargrads()
        began, may_end = threading.Event(), threading.Event()

        class Waits(chainer.FunctionHook):
            name = 'Waits'

            def backward_preprocess(self, function, inputs, gradients):
                began.set()
                assert may_end.wait(60)

        def passes():
            with Waits():
                loss.backward()
        thread = threading.Thread(target=passes)
        thread.start()
        assert began.wait(60)
        if work.startswith('evaluates'):
            with chainer.no_backprop_mode():
                held = F.tanh(large[:10] if work == 'evaluates a little' else large)
        elif work == 'reads a map':
            held = h.array
        else:
            held = np.tanh(large)
        may_end.set()
        thread.join()
        del held

    with ooc('swap-all', budget=1000):
        training = Training()
        iterate(training, 0)
        with pytest.raises(InfeasibleBudgetError, match='other threads were at work'):
            iterate(training, 1)


def test_a_graph_half_of_which_another_thread_has_made_is_told_of_once(in_pool, recwarn):
    training = Training()

    def first_half(number):
        h = chainer.Variable(np.random.RandomState(number).uniform(-1, 1, (200, 100)).astype('f4'))
        for layer in training.model[:3]:
            h = F.tanh(layer(h))
        return h

    def iterate(number, forward):
        h = forward(first_half, number)
        for layer in training.model[3:]:
            h = F.tanh(layer(h))
        loss = F.mean(h * h)
        training.model.cleargrads()
        loss.backward()

    in_pool(set_entries, 'swap-all', None)
    with ooc('swap-all'):
        for number in range(3):
            iterate(number, at_once)
        for number in range(2):
            iterate(number, in_pool)
        assert not recwarn
        for number in range(5):
            iterate(number, in_pool)
    told, = recwarn
    assert str(told.message).startswith('3 backward passes in a row have read feature maps of a forward pass in anot')
