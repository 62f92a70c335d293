"""Nothing in a training waits for the device, but for copies (`benchmarks/device_calls.py` counts ResNet50)."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
import device_calls
from chainer_ooc.errors import LostMapError
from support.combinations import spread
from support.networks import Perceptron

UNITS = (1, 1, 1, 1)
#: These wait at the end of each call, or step, for its copies, though they are over here.
SYNCHRONOUS = ('vdnn-all', 'vdnn-conv')
#: These recompute where others copy, or keep all.
WITHOUT_COPIES = ('keep', 'sublinear', 'superneurons', 'tensor-cache')


@pytest.fixture(scope='module')
def budget_bytes():
    return int(device_calls.peak_bytes(UNITS) * 0.7)


@pytest.mark.parametrize('policy', spread(list(chainer_ooc.policies()), every=4))
def test_a_known_iteration_waits_for_no_computation_and_pins_nothing(policy, budget_bytes):
    row = device_calls.measured(policy, budget_bytes, UNITS)
    assert row['phase'] == 'run'
    assert policy in SYNCHRONOUS or row['waits'] == 0
    assert (row['checksums'], row['pinned']) == (0, 0)
    assert policy in WITHOUT_COPIES or row['copies'] > 0
    assert policy != 'sublinear' or row['proofs'] > 0


class Squares(Perceptron):
    def __init__(self):
        super().__init__(20, 200, 200, 5, activations=(F.sigmoid, F.sigmoid))

    def forward(self, x):
        return F.sum(super().forward(x) ** 2)


@pytest.fixture
def recomputing(verdict_mixes):
    with device_calls.on_the_stand_in() as counts, device_calls.out_of_core('recompute-all', 1 << 30):
        yield counts


def test_what_is_recomputed_from_changed_weights_is_told_before_the_update(recomputing):
    np.random.seed(0)
    model, x = Squares(), np.random.rand(7, 20).astype(np.float32)
    optimizer = chainer.optimizers.SGD(lr=1e-4).setup(model)
    for number in range(4):
        loss = model(x)
        model.cleargrads()
        before = recomputing(number)
        if number == 3:
            model.l2.W.array[0, 0] += 1
            kept = [each.array.copy() for each in model.params()]
            changed = r'160000 bytes, shape \(200, 200\), that it is given has changed since'
            with pytest.raises(LostMapError, match=changed):
                loss.backward()
            assert all(np.array_equal(*each) for each in zip(kept, [p.array for p in model.params()], strict=True))
        else:
            loss.backward()
            optimizer.update()
    assert (recomputing(3) - before)['proofs'] > 0
    for _ in range(2):  # the next plan knows, and nothing is left to be proven
        loss = model(x)
        model.cleargrads()
        model.l2.W.array[0, 0] += 1
        loss.backward()
    assert np.isfinite(loss.array)


def test_what_the_program_reads_outside_of_backward_is_proven_at_once(recomputing):
    np.random.seed(0)
    model, x = Squares(), np.random.rand(7, 20).astype(np.float32)
    for _ in range(3):
        loss = model(x)
        model.cleargrads()
        loss.backward()
    loss = model(x)
    hidden = loss.creator_node.inputs[0].creator_node.inputs[0].creator_node.inputs[0]
    assert hidden.creator_node.label == 'Sigmoid'
    model.l2.W.array[0, 0] += 1
    with pytest.raises(LostMapError, match='that it is given has changed since'):
        hidden.get_variable().array  # noqa: B018
