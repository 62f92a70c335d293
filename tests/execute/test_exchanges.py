"""What several ranks exchange after an iteration: room for the buffers that it will need, and the time it takes."""
import types
import unittest.mock

import chainer
import numpy as np
import pytest
from chainer import _ooc

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.recording.expected import to_come_bytes
from support.trainings.ooc_training import Training, ooc

NETWORK = 'residual'
ELEMENTS = 1000


class Optimizer:
    """What an optimizer over several ranks shows.

    Args:
        communicator: 'naive', 'flat' or 'pure_nccl', as it is before the first exchange.
    """

    def __init__(self, communicator, target, dtype=None):
        buffers = {'naive': (), 'flat': ('a', 'b'), 'pure_nccl': ('a', 'b')}[communicator]
        self.communicator = types.SimpleNamespace(
            **{f'gpu_buffer_{name}': types.SimpleNamespace(size=0) for name in buffers})
        if communicator == 'pure_nccl':
            self.communicator.gpu_tmp_buffer = types.SimpleNamespace(size=0)
            self.communicator.allreduce_grad_dtype = dtype
        self.target = target


class Link(chainer.Link):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.w, self.lazy = chainer.Parameter(np.zeros(ELEMENTS, 'f')), chainer.Parameter()


@pytest.fixture
def link(monkeypatch):
    monkeypatch.setattr(_ooc, 'exchanging', [])
    return Link()


@pytest.mark.parametrize(('communicator', 'dtype', 'itemsizes'), [
    ('naive', None, 0), ('flat', None, 4 + 4), ('pure_nccl', None, 4 + 4 + 4), ('pure_nccl', np.float16, 4 + 2 + 2)])
def test_buffers_that_are_to_come_are_known(link, communicator, dtype, itemsizes):
    optimizer = _ooc.note_optimizer(Optimizer(communicator, link, dtype))
    assert to_come_bytes([link.w]) == itemsizes * ELEMENTS
    for name, each in vars(optimizer.communicator).items():
        if 'buffer' in name:
            each.size = 4 * ELEMENTS
    assert to_come_bytes([link.w]) == 0


def test_the_copy_of_the_model_for_double_buffering_is_to_come_until_it_is_there(link):
    optimizer = _ooc.note_optimizer(Optimizer('naive', link))
    optimizer.communicated_target = None
    assert to_come_bytes([link.w]) == 2 * 4 * ELEMENTS
    optimizer.communicated_target = link
    assert to_come_bytes([link.w]) == 0


def test_a_communicator_of_another_make_is_no_error(link):
    optimizer = _ooc.note_optimizer(Optimizer('naive', link))
    optimizer.communicator = unittest.mock.MagicMock()
    assert to_come_bytes([link.w]) == 0


def test_optimizers_of_other_models_and_those_that_are_gone_do_not_count(link):
    optimizer = _ooc.note_optimizer(Optimizer('flat', Link()))
    without_target = _ooc.note_optimizer(Optimizer('flat', None))
    _ooc.note_optimizer(Optimizer('flat', link))
    assert to_come_bytes([link.w]) == 0
    del optimizer, without_target


def test_a_refusal_names_a_budget_that_is_enough_for_the_buffers_too(monkeypatch):
    monkeypatch.setattr(_ooc, 'exchanging', [])
    floors = []
    for communicator in ('naive', 'flat'):
        training = Training(NETWORK)
        optimizer = _ooc.note_optimizer(Optimizer(communicator, training.model))
        with ooc('swap-all', budget=1), pytest.raises(InfeasibleBudgetError) as caught:
            training.iterate(2)
        floors.append(caught.value.floor_bytes)
        del optimizer
        chainer_ooc.reset()
    assert floors[1] - floors[0] == 2 * sum(each.array.nbytes for each in training.model.params())


def exchange(model, seconds, monkeypatch):
    """One exchange of gradients that takes so long by the device's clock."""
    now = [0.0]

    def run(target, zero_fill):
        assert (target, zero_fill) == (model, True)
        now[0] += seconds

    with monkeypatch.context() as patch:
        patch.setattr(type(sessions.current().finished._tally.device), 'timestamp', lambda self: now[0])
        _ooc.exchange(run, model, True)


def test_a_trace_has_the_median_of_what_exchanges_took(monkeypatch):
    with ooc('swap-all'):
        training = Training(NETWORK)
        training.iterate()
        exchange(training.model, 9.0, monkeypatch)  # of a recorded iteration: the first update sends parameters
        assert chainer_ooc.trace().exchange_seconds == 0
        for seconds in (1.0, 5.0, 2.0):
            training.iterate()
            exchange(training.model, seconds, monkeypatch)
        trace = chainer_ooc.trace()
    assert trace.exchange_bytes == sum(each.array.nbytes for each in training.model.params())
    assert trace.exchange_seconds == pytest.approx(2.0)
    assert type(trace).from_json(trace.to_json()) == trace


def test_an_exchange_without_out_of_core_or_before_any_iteration_is_run_and_not_looked_at(link, monkeypatch):
    ran = []
    for policy in (None, 'swap-all'):
        with ooc(policy):
            _ooc.exchange(lambda target, zero_fill: ran.append((target, zero_fill)), link, False)
    assert ran == 2 * [(link, False)]
