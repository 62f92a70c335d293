"""`benchmarks/engines.py` asks about the convolutions that training asks about; what cuDNN says is not tested."""
import sys

import chainer
import numpy as np
import pytest

import engines
from chainer_ooc.kernels.cudnn import facade, handles
from chainer_ooc.kernels.cudnn.operations import Port
from chainer_ooc.kernels.cudnn.settings import PlanSettings
from layers import layers_of
from support.fake_cudnn import Engine, HostDevice, Library, numerical_note


def test_a_layer_is_asked_about_as_training_does():
    device = HostDevice()
    ours, settings = handles.Handle(Library(device), device), PlanSettings(None, True, False)
    for layer in filter(lambda each: each.weights, layers_of('googlenet', 224)):
        asked = engines.operation_of(layer, 2, 'float32', Port.Y)
        x, w, y = (np.zeros(shape, np.float32) for shape in (asked.x_shape, asked.w_shape, asked.y_shape))
        expected = chainer.functions.convolution_2d(x, w, **dict(layer.geometry))
        assert expected.shape == y.shape
        windows = tuple(dict(layer.geometry)[name] for name in ('stride', 'pad', 'dilate'))
        assert facade.convolve(ours, settings, Port.Y, x, w, y, windows)
        assert ours.asked()[-1][0] == asked


def test_rows_tell_what_a_limit_costs(monkeypatch):
    small, copies = Engine('small', 0), Engine('copies', 9 << 20, notes=(numerical_note.TENSOR_CORE,))
    monkeypatch.setattr(engines, 'engines', lambda cudnn, device, operation, settings: [
        (each.name, each.workspace_bytes) for each in (copies, small) if settings.tensor_cores or each is small])
    arguments = engines.options_of(['--networks', 'alexnet', '--batchsize', '64'])
    rows = list(engines.asked(None, None, 'alexnet', 'tf32', arguments))
    assert [row['limit'] for row in rows] == ['none', 'usual', '8 MiB'] * 3
    for none, usual, least in zip(*[iter(rows)] * 3, strict=True):
        assert none['count'] == none['first_count'] == none['tensor_core_count'] == usual['first_count']
        assert (least['first_count'], least['tensor_core_count'], least['most_bytes']) == (0, 0, 0)
    assert [row['count'] for row in rows[::3]] == [5, 4, 5]


def test_without_cudnn_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(engines, '_load_empty_driver', lambda: None)
    monkeypatch.setitem(sys.modules, 'cudnn', None)
    with pytest.raises(SystemExit, match='pip install nvidia-cudnn-frontend'):
        engines.loaded()
