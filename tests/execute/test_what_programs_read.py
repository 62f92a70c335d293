"""Maps that the program reads, or shows to its hooks, between forward and backward: what is made from them is right.

Each program trains first without reading, so that plans make maps again from what is read at last.
"""
import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.problem import Verdict
from support.trainings.ooc_training import ooc
from support.trainings.verdict_mixes import MAPPED, MIXES

pytestmark = [pytest.mark.usefixtures('verdict_mixes'), pytest.mark.usefixtures('prompt_swap_outs')]


class Look(chainer.FunctionHook):
    """Only looks; but it is the program's, which may write."""

    name = 'look'

    def backward_preprocess(self, function, in_data, out_grad):
        pass


HOOKS = {'no hook': None, 'a hook of its own': Look, "Chainer's hook": chainer.function_hooks.TimerHook}


def batch(number):
    return chainer.Variable(np.random.RandomState(number).uniform(-1, 1, (16, 64)).astype(np.float32))


def results(x, loss):
    return [x.grad.tobytes(), loss.array.tobytes()]


def shown_dependent(is_last, number, hook):
    """What was made from the map that is written to is shown by a Variable alone, which dies before backward."""
    x = batch(number)
    hidden = F.tanh(x)
    shown = hidden + 1
    y = F.sigmoid(shown)
    loss = F.sum(y * y)
    del y
    if is_last:
        hidden.array[...] *= 2
    del shown, hidden
    backward(loss, is_last and hook)
    return results(x, loss)


def read_then_let_go(is_last, number, hook):
    """The map leaves after its last use while Chainer's loop, or a hook, has it still; a mask is made from it later."""
    x = batch(number)
    hidden = F.cos(x)
    if is_last:
        hidden.array.sum()
    sine, more, masked = F.sin(hidden), hidden + 1, F.dropout(hidden, 0.4)
    if is_last:
        masked.array.sum()
    loss = F.sum(sine) + (F.sum(more) + F.sum(masked * masked) * 2)
    del hidden, sine, more, masked
    backward(loss, is_last and hook)
    return results(x, loss)


def retained_output(is_last, number, hook):
    """A step whose retained output is away when it begins, and a mask that another loss makes from that."""
    x = batch(number)
    hidden = F.sigmoid(F.tanh(x))
    more, masked = hidden + 1, F.dropout(hidden, 0.4)
    if is_last and hook:
        hidden.creator.add_hook(hook())
    first, second = F.sum(more * 2), F.sum(masked + 3)
    del hidden, more, masked
    first.backward()
    second.backward()
    return results(x, second)


def backward(loss, hook):
    if hook:
        with hook():
            loss.backward()
    else:
        loss.backward()


def train(program, hook):
    np.random.seed(0)
    return [program(number == 4, number, hook) for number in range(5)]


@pytest.mark.parametrize('hook', HOOKS)
@pytest.mark.parametrize('policy', ['sublinear', 'tensor-cache', *MIXES, *MAPPED])
@pytest.mark.parametrize('program', [shown_dependent, read_then_let_go, retained_output])
def test_what_is_made_from_a_map_that_was_read_has_the_bits_of_plain_chainer(program, policy, hook):
    with chainer.using_config('ooc', None):
        expected = train(program, HOOKS[hook])
    with ooc(policy):
        assert train(program, HOOKS[hook]) == expected


def test_what_a_program_begins_to_read_is_made_again_no_more():
    made_again = []
    with ooc('recompute-all'):
        for number in range(6):
            h = batch(number)
            for function in (F.sin, F.tanh, F.cos) * 4:
                before, h = h, function(h)
                if number > 2:
                    before.array.sum()
            loss = F.sum(h * h)
            del before, h
            loss.backward()
            plan = chainer_ooc.plan()
            made_again.append(plan.verdicts.count(Verdict.RECOMPUTE) if plan else None)
    assert made_again[2] == made_again[3] > 0
    assert made_again[4:] == [0, 0]


def test_a_mask_that_dropout_itself_looks_at_can_be_made_again():
    with ooc('recompute-all'):
        for number in range(3):
            F.sum(F.cos(F.dropout(F.tanh(F.sin(batch(number))), 0.5))).backward()
        masks = [each for each in chainer_ooc.trace().maps if each.hidden]
        assert len(masks) == 1
        assert not masks[0].written
        assert chainer_ooc.plan().verdicts[masks[0].id] is Verdict.RECOMPUTE
