"""Users' hooks beside ours, debug mode, and a session for each thread."""
import gc
import itertools
import os
import sys
import threading

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.function_hooks import TimerHook

import chainer_ooc
from chainer_ooc.errors import SpillError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.storage.account import Account
from support.trainings.ooc_training import POLICIES, SWAPPING, Training, assert_same_bits, ooc, plain, train


class Looking(chainer.FunctionHook):
    """Notes what a hook is shown before and after each function."""

    name = 'Looking'

    def __init__(self):
        self.seen = []

    def _look(self, function, in_data, out_grad=None):
        self.seen.append((function.label, [None if each is None else each.copy() for each in in_data], None
                          if out_grad is None else [None if each is None else each.copy() for each in out_grad]))

    forward_preprocess = forward_postprocess = backward_preprocess = backward_postprocess = _look


def looked(network, policy):
    with ooc(policy), Looking() as hook:
        training = Training(network)
        training.iterate(3)
    return hook.seen, training.finish()


@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('network', ['residual', 'hidden', 'views', 'reused'])
def test_hooks_are_shown_what_they_are_shown_in_plain_chainer(network, policy):
    seen, outcome = looked(network, policy)
    plain_seen, plain_outcome = looked(network, None)
    assert_same_bits(outcome, plain_outcome.bits)
    assert [label for label, *_ in seen] == [label for label, *_ in plain_seen]
    np.testing.assert_equal(seen, plain_seen)


def test_what_trains_apart_and_cannot_be_closed_is_closed_by_a_reset(monkeypatch):
    def refuse():
        raise SpillError('the disk is full')

    def train_apart():
        with monkeypatch.context() as patched, sessions.apart():
            Training('residual').iterate()
            patched.setattr(sessions.current(), 'close', refuse)
            apart.append(sessions.current())

    apart = []
    with ooc('swap-all'):
        Training('residual').iterate()
        outer = sessions.current()
        with pytest.raises(SpillError):
            train_apart()
        assert sessions.current() is outer
        assert not (apart[0].memory.closed or outer.memory.closed)
        chainer_ooc.reset()
        assert apart[0].memory.closed and outer.memory.closed


@pytest.mark.parametrize('policy', POLICIES)
def test_timer_hook_beside_ours(policy):
    with TimerHook() as timer:
        outcome = train('residual', policy)
    assert_same_bits(outcome, plain('residual'))
    assert timer.total_time() > 0
    assert {name for name, _ in timer.call_history} >= {'Convolution2DFunction', 'ReLU'}


@pytest.mark.parametrize('policy', POLICIES)
def test_hook_that_comes_after_the_recording(policy):
    training = Training('reused')
    with ooc(policy):
        training.iterate(2)
        with TimerHook():
            training.iterate()
        training.iterate()
    assert_same_bits(training.finish(), plain('reused'))


def test_keep_shows_a_hook_the_input_that_another_function_used_last():
    """Chainer gathers in_data for hooks, also of functions that retain nothing of it."""
    def program():
        weight, seen = chainer.Parameter(np.ones((50, 50), np.float32)), []
        for _ in range(4):
            h = F.tanh(np.full((50, 50), 0.01, np.float32) @ weight)
            loss = F.sum(F.sin(h) * (h + 1))
            del h
            with Looking() as hook:
                weight.cleargrad()
                loss.backward()
            seen += [hook.seen, weight.grad.copy()]
        return seen

    plain_seen = program()
    with ooc('keep'):
        np.testing.assert_equal(program(), plain_seen)


@pytest.mark.parametrize('policy', POLICIES)
def test_local_hook_of_one_function(policy):
    def program():
        seen = []
        for _ in range(3):
            x = chainer.Variable(np.arange(2000, dtype=np.float32))
            h = F.tanh(x * 1e-3)
            hook = Looking()
            y = F.exp(h)
            y.creator_node.add_hook(hook)
            del h
            F.sum(y).backward()
            seen += [hook.seen, x.grad.copy()]
        return seen

    plain_seen = program()
    with ooc(policy):
        np.testing.assert_equal(program(), plain_seen)


@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('network', ['residual', 'hidden', 'several'])
def test_debug_mode(network, policy):
    with chainer.using_config('debug', True):
        outcome = train(network, policy)
    assert_same_bits(outcome, plain(network))


def in_thread(program):
    """Starts a program in a thread; the function that is given back waits for it and gives its result."""
    results = []

    def run():
        try:
            results.append(program())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result():
        thread.join(60)
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0]
    return result


def test_two_threads_train_at_once_with_sessions_of_their_own():
    pairs = [('residual', 'swap-all'), ('several', 'swap-all-naive')]
    expected, trainings = {}, {}
    for network, _ in pairs:
        training = Training(network)
        training.iterate(6)
        expected[network] = training.finish().bits
        del expected[network]['random stream']
        trainings[network] = Training(network)  # the random stream belongs to all threads
    running = []
    for network, policy in pairs:
        def program(network=network, policy=policy):
            with ooc(policy):
                trainings[network].iterate(6)
                bits = trainings[network].finish().bits
            del bits['random stream']
            stats = chainer_ooc.stats()
            return bits, stats
        running.append(in_thread(program))
    assert chainer_ooc.stats() is None
    for (network, policy), result in zip(pairs, running, strict=True):
        bits, stats = result()
        assert_same_bits(bits, expected[network])
        assert (stats.policy, stats.phase) == (policy, 'run')


def test_entries_of_one_thread_do_not_reach_another():
    with ooc('swap-all'):
        assert in_thread(lambda: chainer.config.ooc)() is None
        result = in_thread(lambda: (train('old', None), chainer_ooc.stats())[1])
        assert result() is None


@pytest.mark.parametrize('policy', SWAPPING)
def test_variable_made_in_one_thread_is_read_in_another(policy):
    with ooc(policy):
        kept = [chainer.Variable(np.arange(4000, dtype=np.float32))]
        for _ in range(5):
            kept.append(F.sin(kept[-1]))
        gc.collect()
        shown = in_thread(lambda: [each.array.copy() for each in kept])()
    for before, after in itertools.pairwise(shown):
        assert np.array_equal(np.sin(before), after)


def reset_by_another_thread_at(number, call):
    """Has another thread reset everything before a line of ours; it waits where this thread holds the lock."""
    left, resets = number, threading.Thread(target=chainer_ooc.reset)

    def trace(frame, kind, argument):
        nonlocal left
        if f'chainer_ooc{os.sep}execute' not in frame.f_code.co_filename:
            return None
        left -= kind == 'line'
        if not left and not resets.ident:
            resets.start()
            resets.join(0.02)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(before)
        assert resets.ident, f'there are only {number - left} lines'
        resets.join()


@pytest.mark.parametrize('policy', [pytest.param('keep', marks=pytest.mark.long), 'swap-all'])
def test_reset_by_another_thread_at_any_line_leaves_nothing_behind(policy):
    """What went on in a session that was closed meanwhile counted the batch for ever, and kept a spill file open."""
    batch = np.ones((16, 8), np.float32)

    def step():
        x = chainer.Variable(batch)
        F.sum(F.tanh(F.tanh(x))).backward()
        return x.grad

    expected = step()
    with ooc(policy):
        step()
    chainer_ooc.reset()
    files = len(os.listdir('/proc/self/fd'))
    for number in range(1, 700, 13):
        with ooc(policy):
            np.testing.assert_array_equal(reset_by_another_thread_at(number, step), expected)
        chainer_ooc.reset()
        gc.collect()
        assert not Account._blocks, f'line {number}'
        assert len(os.listdir('/proc/self/fd')) == files, f'line {number}'
