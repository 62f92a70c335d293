"""Writes of the program's functions and hooks in a backward pass: each is noticed, by one checksum a step."""
import types

import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.execute.iteration.iteration import Iteration
from chainer_ooc.execute.iteration.writes import Writes
from chainer_ooc.execute.storage.storage import Storage
from support.combinations import spread
from support.trainings.ooc_training import ooc, send_all_away

CALLS = 8
POLICIES = ['keep', 'swap-all', 'pooch', 'sublinear', 'tensor-cache', 'unified']


class Handing(chainer.Function):
    """Hands its first input on as it is, as the stack of a recursive network; backward may write to it.

    Args:
        factor: What backward multiplies its input by; None if it only reads.
        keeps: Keeps the input of its backward for another function to write to.
        writes_to: Has kept what this function's backward multiplies in place of its input.
    """

    def __init__(self, factor=None, keeps=False, writes_to=None):
        self._factor, self._keeps, self._writes_to, self.kept = factor, keeps, writes_to, None

    def forward(self, inputs):
        return inputs[0].sum(axis=1, keepdims=True), inputs[0]

    def backward(self, inputs, gradients):
        x = inputs[0]
        if self._keeps:
            self.kept = x
        if self._factor is not None:
            written = x if self._writes_to is None else self._writes_to.kept
            written[:7] *= np.float32(self._factor)
        gradient = np.zeros_like(x) if gradients[1] is None else gradients[1]
        if gradients[0] is not None:
            gradient = gradient + gradients[0] * x
        return gradient,


class Shown(chainer.FunctionHook):
    """Writes to what the function before the given one is shown in backward, once an iteration."""

    name = 'Shown'

    def __init__(self, step):
        self._step, self._seen = step, 0

    def backward_postprocess(self, function, in_data, out_grad):
        self._seen += isinstance(function, Handing) or 'Handing' in function.label
        if self._seen == self._step and in_data[0] is not None:
            in_data[0][3:9] += np.float32(0.25)
            self._seen += CALLS


def iteration(functions, hooks=()):
    x = chainer.Variable(np.random.RandomState(0).rand(256, 64).astype('f'))
    h = F.tanh(x)
    left = F.sigmoid(F.sin(h))
    stack, total = h, 0
    for function in functions():
        value, stack = function(stack)
        total = total + F.sum(F.tanh(value))
    loss = total + F.sum(left * h)
    del h, left, stack, value, total
    for hook in hooks:
        hook.__enter__()
    try:
        loss.backward()
    finally:
        for hook in hooks:
            hook.__exit__(None, None, None)
    return [loss.array.tobytes(), x.grad.tobytes()]


def only_reading():
    return [Handing() for _ in range(CALLS)]


def writing():
    return [Handing(factor=1.5 if number in (2, 3, 6) else None) for number in range(CALLS)]


def writing_to_what_another_has_kept():
    keeping = Handing(keeps=True)
    return [Handing(), Handing(), Handing(factor=0.5, writes_to=keeping), Handing(), Handing(), keeping, Handing()]


@pytest.fixture
def all_leave_after_each_step(monkeypatch, prompt_swap_outs):
    """As if memory were so short that the next function has to fetch whatever it reads."""
    after_step = Iteration.after_step

    def after(self, function, needed, span):
        after_step(self, function, needed, span)
        send_all_away()
    monkeypatch.setattr(Iteration, 'after_step', after)


@pytest.mark.parametrize(('functions', 'hook', 'policy'), spread(
    [only_reading, writing, writing_to_what_another_has_kept], [None, 1, 3, 6], POLICIES, every=2))
def test_what_functions_and_hooks_write_in_backward_counts(policy, functions, hook, all_leave_after_each_step):
    def program():
        return [iteration(functions, () if hook is None else (Shown(hook),)) for _ in range(4)]

    with chainer.using_config('ooc', None):
        expected = program()
    if functions is not only_reading or hook is not None:
        assert expected[0] != iteration(only_reading), 'nothing was written'
    with ooc(policy):
        assert program() == expected


def test_a_step_computes_one_checksum_of_what_the_step_before_has_left(monkeypatch, prompt_swap_outs):
    counted = []

    def checksum(storage, original=Storage.checksum):
        counted.append(storage)
        return original(storage)

    with ooc('swap-all'):
        for _ in range(3):
            iteration(only_reading)
        monkeypatch.setattr(Storage, 'checksum', checksum)
        iteration(only_reading)
        assert chainer_ooc.stats().phase == 'run'
    most = max(counted.count(storage) for storage in set(counted))
    assert CALLS <= most <= CALLS + 1, most


def test_what_a_hook_has_written_is_not_taken_for_the_next_functions_doing(monkeypatch):
    spoilt = []
    monkeypatch.setattr(Storage, 'is_relied_on', lambda storage: True)
    monkeypatch.setattr(Storage, 'spoil_readers', lambda storage: spoilt.append(storage))
    monkeypatch.setattr(Storage, 'expose', lambda storage: None)
    root = np.zeros(2000)
    memory = types.SimpleNamespace(open=lambda storage: None)
    storage, function, writes = Storage(memory, root), Handing(), Writes()

    def step(write=False):
        writes.look_at_shown()
        writes.expect(function, True, [storage])
        root[0] += write
        writes.look_at_given()

    writes.begin_backward()
    step()
    writes.show((), True)  # the hook's array is not one of the storage, such as one that it has kept
    root[0] += 1
    step()
    assert not spoilt
    step(write=True)
    assert spoilt == [storage]


class Letting(chainer.FunctionNode):
    """Keeps an array as an attribute and lets it go in its backward, to free it early.

    Args:
        how: One of `LETS_GO`.
        of_input: The array is its input, which the program may hold, in place of one of its own.
    """

    def __init__(self, how, of_input):
        self._how, self._of_input = how, of_input

    def forward(self, inputs):
        self.mask = inputs[0] if self._of_input else inputs[0] * np.float32(0.5)
        return inputs[0] * self.mask,

    def backward(self, indexes, gradients):
        gradient = gradients[0] * self.mask
        LETS_GO[self._how](self)
        return gradient * np.float32(2),


def let_written_go(function):
    function.mask *= np.float32(2)
    function.mask = None


LETS_GO = {
    'set to None': lambda function: setattr(function, 'mask', None),
    'deleted': lambda function: delattr(function, 'mask'),
    'replaced': lambda function: setattr(function, 'mask', function.mask * np.float32(2)),
    'written to': let_written_go,
}


@pytest.mark.parametrize(('how', 'of_input', 'policy'), spread(sorted(LETS_GO), [False, True], POLICIES, every=1))
def test_an_array_that_a_function_lets_go_in_backward_is_not_missed(how, of_input, policy, all_leave_after_each_step):
    def program():
        x = chainer.Variable(np.random.RandomState(0).rand(256, 64).astype('f'))
        shown = F.tanh(x)
        loss = F.sum(F.sin(Letting(how, of_input).apply((F.sigmoid(Letting(how, of_input).apply((shown,))[0]),))[0]))
        loss.backward()
        return [loss.array.tobytes(), x.grad.tobytes(), shown.array.tobytes()]
    with chainer.using_config('ooc', None):
        want = program()
    with ooc(policy):
        assert [program() for _ in range(4)] == [want] * 4
