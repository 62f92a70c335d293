"""Functions of the program's own that say that they may run again, and are wrong: never other bits without a word."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import LostMapError
from chainer_ooc.execute.functions import prototype
from chainer_ooc.problem import Verdict
from support.trainings.ooc_training import bits_of, ooc

pytestmark = pytest.mark.usefixtures('verdict_mixes')


class Declared(chainer.FunctionNode):
    ooc_recompute = True

    def backward(self, indexes, grads):
        y, = self.get_retained_outputs()
        return grads[0] * (y.array > 0).astype(y.dtype),


def in_place():
    """A new class each time, of which nothing is known yet."""
    class InPlace(Declared):
        def forward(self, inputs):
            self.retain_outputs((0,))
            return np.subtract(np.float32(0.25), inputs[0], out=inputs[0]),
    return InPlace


def scaling():
    class Scaling(Declared):
        factor = 1.0

        def forward(self, inputs):
            self.retain_outputs((0,))
            return inputs[0] * np.float32(self.factor),
    return Scaling


def forward(model, kind, x):
    """The function's input is read by another function too, which may run again."""
    h = model[0](x)
    y = F.sin(h)
    return F.sum(F.tanh(model[1](F.tanh(kind().apply((h,))[0]) * y)))


def iteration(model, kind, number):
    kind.factor = 1.0
    loss = forward(model, kind, np.random.RandomState(number).uniform(-1, 1, (16, 32)).astype(np.float32))
    kind.factor = 2.0
    model.cleargrads()
    loss.backward()
    bits = [bits_of(loss.array), *(bits_of(each.grad) for _, each in sorted(model.namedparams()))]
    for each in model.params():
        each.array -= np.float32(0.01) * each.grad
    return bits


def new_model():
    np.random.seed(0)
    return chainer.ChainList(L.Linear(32, 32), L.Linear(32, 32))


def run(kind, iterations=3):
    model = new_model()
    return [iteration(model, kind, number) for number in range(iterations)]


def test_who_writes_to_his_input_is_found_out_and_swapped(caplog):
    expected, kind = run(in_place()), in_place()
    with caplog.at_level('WARNING', 'chainer_ooc'), ooc('recompute-all'):
        assert run(kind) == expected
        trace, plan = chainer_ooc.trace(), chainer_ooc.plan()
        assert chainer_ooc.stats().recomputed_calls > 0
    call = next(each for each in trace.calls if each.label == 'InPlace')
    assert trace.maps[call.inputs[0]].written
    assert not call.repeatable
    assert plan.verdicts[call.inputs[0]] is not Verdict.RECOMPUTE
    warning, = [each.getMessage() for each in caplog.records if 'InPlace' in each.getMessage()]
    assert 'leave ooc_recompute out' in warning


def test_who_writes_to_his_input_under_a_loaded_plan_is_found_out_and_swapped(tmp_path):
    """Nothing is recorded then; what another function has read before is made from what was written otherwise."""
    expected, kind = run(in_place()), in_place()
    with ooc('recompute-all'), chainer.using_config('ooc_plan', str(tmp_path / 'plans.json')):
        assert run(kind) == expected
        chainer_ooc.reset()
        del prototype.believed[kind]  # as in another process
        assert iteration(new_model(), kind, 0) == expected[0]
        assert chainer_ooc.stats().phase == 'run'
        assert chainer_ooc.stats().recomputed_calls > 0


def test_other_values_at_the_second_run_are_refused_and_then_swapped():
    kind = scaling()
    expected = run(kind)
    with ooc('recompute-all'):
        model = new_model()
        assert iteration(model, kind, 0) == expected[0]
        with pytest.raises(LostMapError, match=r'Scaling .*gave other values .*leave ooc_recompute out of the class'):
            iteration(model, kind, 1)
        assert run(kind) == expected


def test_the_same_values_in_another_layout_are_taken():
    class Turning(Declared):
        def forward(self, inputs):
            self.retain_outputs((0,))
            y = inputs[0] * np.float32(3)
            return np.asfortranarray(y) if chainer.config.in_recomputing else y,

    expected = run(Turning)
    with ooc('recompute-all'):
        assert run(Turning) == expected
        assert chainer_ooc.stats().recomputed_calls > 0
