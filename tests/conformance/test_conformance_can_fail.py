"""Plants faults of the kinds that out-of-core managers have had, and sees the conformance test report each."""
import itertools
import types

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.functions.activation.tanh import Tanh
from chainer.functions.noise.dropout import Dropout
from chainer.functions.normalization.batch_normalization import BatchNormalization

from chainer_ooc.backends.host.backend import HostBackend
from chainer_ooc.classify.policies import POLICIES
from support.conformance.conformance_cases import case, feature
from support.conformance.conformance_mixes import RECOMPUTE_ALL, row
from support.conformance.conformance_runs import assert_conforms, in_core
from support.conformance.conformance_tables import FUNCTIONS, uncovered


@pytest.fixture
def flip_a_bit(monkeypatch):
    """The first bit of the last fraction that comes back, once its copy has ended: the lowest may drown in a sum."""
    honest = HostBackend.swap_in

    def swap_in(backend, copy, into):
        transfer = honest(backend, copy, into)
        transfer.wait()
        into[-2] ^= 0x40
        return transfer
    monkeypatch.setattr(HostBackend, 'swap_in', swap_in)


@pytest.mark.usefixtures('flip_a_bit')
@pytest.mark.parametrize('name', ['sin', 'dropout', 'batch_normalization', 'transpose', 'n_step_lstm'])
def test_one_bit_that_comes_back_wrong_is_reported_as_a_gradient(name):
    with pytest.raises(AssertionError, match='1: gradient of'):
        assert_conforms(FUNCTIONS[name], 'swap-all')


def also_out_of_core(monkeypatch, function, also):
    """Something happens before the forward of a function while chainer.config.ooc is set."""
    honest = function.forward

    def forward(self, inputs):
        if chainer.config.ooc is not None:
            also(self, inputs)
        return honest(self, inputs)
    monkeypatch.setattr(function, 'forward', forward)


def test_running_statistics_that_are_updated_twice_are_reported(monkeypatch):
    also_out_of_core(monkeypatch, BatchNormalization, BatchNormalization.forward)
    with pytest.raises(AssertionError, match='0: argument 3'):
        assert_conforms(FUNCTIONS['batch_normalization'], 'keep')


def test_a_draw_too_many_from_the_random_stream_is_reported(monkeypatch):
    also_out_of_core(monkeypatch, Dropout, lambda self, inputs: np.random.rand())
    with pytest.raises(AssertionError, match='0: random stream'):
        assert_conforms(FUNCTIONS['dropout'], 'keep')


def test_one_bit_that_is_recomputed_wrong_is_reported(monkeypatch):
    monkeypatch.setitem(POLICIES, RECOMPUTE_ALL, row(RECOMPUTE_ALL))
    honest, seen = Tanh.forward_cpu, set()

    def forward(self, inputs):
        outputs = honest(self, inputs)
        content = inputs[0].tobytes()
        if content in seen:
            outputs[0].reshape(-1).view(np.uint8)[2] ^= 0x40
        seen.add(content)
        return outputs
    assert_conforms(FUNCTIONS['tanh'], RECOMPUTE_ALL)  # before the fault is there
    monkeypatch.setattr(Tanh, 'forward_cpu', forward)
    with pytest.raises(AssertionError, match='1: gradient of'):
        assert_conforms(FUNCTIONS['tanh'], RECOMPUTE_ALL)


def test_another_nan_is_another_bit_and_the_same_one_is_none():
    def root(x):
        y = F.sqrt(x)
        return y, np.float32('nan') if chainer.config.ooc is None else -np.float32('nan')
    quiet = (('invalid value encountered', 'half of the numbers have no root'),)
    assert_conforms(case(F.sqrt, feature(3, 4), quiet=quiet), 'keep')
    with pytest.raises(AssertionError, match='0: output 1'):
        assert_conforms(case(root, feature(3, 4), quiet=quiet), 'keep')


def test_a_graph_without_a_plan_is_reported():
    length = itertools.count()
    with pytest.raises(AssertionError, match='profile'):
        assert_conforms(case(lambda x: x[:1 + next(length) % 4], feature(5, 4)), 'swap-all')


def test_a_function_that_nobody_wrote_a_case_for_is_reported():
    def newest():
        pass
    newest.__module__ = 'chainer.functions.math.newest'
    module = types.SimpleNamespace(__name__='chainer.functions', newest=newest, relu=F.relu, also_relu=F.relu)
    assert uncovered(module, ['also_relu/of images'], {}) == ['newest']
    assert uncovered(module, ['also_relu'], {'newest': 'a reason'}) == []


def test_the_bits_of_plain_chainer_are_the_same_each_time():
    for name in ('dropout', 'n_step_lstm', 'batch_normalization'):
        in_core.cache_clear()
        first = in_core(FUNCTIONS[name])
        in_core.cache_clear()
        assert in_core(FUNCTIONS[name]) == first
