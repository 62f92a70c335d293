"""Chainer's convolutions and batch normalization through the facade, against Chainer's own functions on the CPU."""
import itertools
import sys

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.backends import cuda
from chainer.functions.connection import convolution_2d, convolution_nd, deconvolution_2d, deconvolution_nd
from chainer.functions.normalization import batch_normalization

from chainer_ooc.kernels import cudnn as offered
from chainer_ooc.kernels.cudnn import facade, handles, library
from chainer_ooc.kernels.cudnn.settings import PlanSettings
from support.fake_cudnn import Engine, Library

LAST_X, LAST_W = 'CUDNN_CHANNEL_LAST_X', 'CUDNN_CHANNEL_LAST_W'
TOLERANCE = {'float32': 2e-5, 'float16': 2e-2}


@pytest.fixture
def fake(device, monkeypatch):
    """A made-up cuDNN in the place of the real one, with arrays of NumPy."""
    made = Library(device, [Engine(workspace_bytes=1000)])
    ours = handles.Handle(made, device)
    monkeypatch.setattr(handles, 'current', lambda: ours)
    return made


def draw(*shape, dtype='float32', seed=0):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


def assert_close(found, expected, dtype='float32'):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    scale = max(1.0, float(np.abs(expected.astype(float)).max()))
    np.testing.assert_allclose(found.astype(float), expected.astype(float), atol=TOLERANCE[dtype] * scale)


def on_a_gpu(function, *inputs, layouts=None):
    """What the function's GPU branch gives, which hands over before it touches CuPy."""
    function._input_layouts = layouts or (None,) * len(inputs)
    result, = (function.forward if hasattr(function, 'stride') else function.forward_gpu)(inputs)
    return result


# x, filter, pad, stride, dilation, groups: every axis its own numbers, sizes that the stride does not divide
CASES_2D = [
    ((2, 3, 7, 9), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((2, 3, 8, 11), (4, 3, 3, 2), (0, 2), (2, 3), (1, 1), 1),
    ((2, 4, 9, 7), (6, 2, 3, 1), (2, 0), (1, 2), (2, 1), 2),
    ((3, 6, 5, 5), (6, 1, 3, 3), (1, 1), (2, 2), (1, 1), 6),
    ((1, 2, 12, 13), (2, 1, 2, 3), (1, 3), (3, 2), (2, 3), 2),
    ((2, 5, 4, 4), (3, 5, 1, 1), (0, 0), (2, 2), (1, 1), 1),
]


@pytest.mark.parametrize(('case', 'dtype', 'bias'), [
    *itertools.product(CASES_2D, ['float32'], [False, True]), (CASES_2D[1], 'float16', True)])
def test_a_convolution_is_that_of_the_cpu(fake, case, dtype, bias):
    x_shape, w_shape, pad, stride, dilate, groups = case
    inputs = [draw(*x_shape, dtype=dtype), draw(*w_shape, dtype=dtype)] + [draw(w_shape[0], dtype=dtype)] * bias
    make = convolution_2d.Convolution2DFunction
    expected = make(stride, pad, dilate=dilate, groups=groups).apply(inputs)[0].array
    assert_close(on_a_gpu(make(stride, pad, dilate=dilate, groups=groups), *inputs), expected, dtype)
    assert [graph.runs for graph in fake.built] == [1]


@pytest.mark.parametrize('case', CASES_2D)
def test_the_gradient_of_the_filter_is_that_of_the_cpu(fake, case):
    x_shape, w_shape, pad, stride, dilate, groups = case
    x, w = draw(*x_shape), draw(*w_shape)
    conv = convolution_2d.Convolution2DFunction(stride, pad, dilate=dilate, groups=groups)
    y, = conv.apply((x, w))
    gy = draw(*y.shape, seed=1)
    make = convolution_2d.Convolution2DGradW
    expected, = make(conv, w_shape, w.dtype, None).apply((x, gy))
    assert_close(on_a_gpu(make(conv, w_shape, w.dtype, None), x, gy), expected.array)


@pytest.mark.parametrize(('case', 'bias'), [*itertools.product(CASES_2D, [False, True])])
def test_a_deconvolution_is_that_of_the_cpu_also_where_the_stride_leaves_a_rest(fake, case, bias):
    x_shape, w_shape, pad, stride, dilate, groups = case
    y = F.convolution_2d(draw(*x_shape), draw(*w_shape), stride=stride, pad=pad, dilate=dilate, groups=groups)
    inputs = [draw(*y.shape, seed=1), draw(*w_shape)] + [draw(x_shape[1])] * bias
    make = deconvolution_2d.Deconvolution2DFunction
    arguments = {'outsize': x_shape[2:], 'dilate': dilate, 'groups': groups}
    expected = make(stride, pad, **arguments).apply(inputs)[0].array
    assert expected.shape == x_shape
    assert_close(on_a_gpu(make(stride, pad, **arguments), *inputs), expected)


CASES_ND = [
    ((2, 3, 11), (4, 3, 3), (1,), (2,), (1,), 1),
    ((2, 4, 9), (4, 2, 3), (2,), (1,), (2,), 2),
    ((2, 3, 6, 7), (4, 3, 3, 2), (1, 0), (1, 2), (1, 2), 1),
    ((1, 2, 5, 6, 7), (3, 2, 3, 2, 1), (1, 1, 0), (2, 1, 3), (1, 2, 1), 1),
    ((2, 4, 4, 5, 6), (4, 2, 2, 3, 3), (0, 1, 1), (1, 2, 2), (2, 1, 1), 2),
]


@pytest.mark.parametrize('case', CASES_ND)
def test_convolutions_of_any_number_of_axes_are_those_of_the_cpu(fake, monkeypatch, case):
    x_shape, w_shape, pad, stride, dilate, groups = case
    ndim = len(pad)
    x, w, b = draw(*x_shape), draw(*w_shape), draw(w_shape[0])

    def convolve():
        return convolution_nd.ConvolutionND(ndim, stride, pad, dilate=dilate, groups=groups)

    plain = convolve()
    expected = plain.apply((x, w, b))[0].array
    gy, gb = draw(*expected.shape, seed=1), draw(x_shape[1])

    def deconvolve():
        return deconvolution_nd.DeconvolutionND(ndim, stride, pad, x_shape[2:], dilate, groups)

    gw = convolution_nd.ConvolutionNDGradW(plain).apply((x, gy))[0].array
    gx = deconvolve().apply((gy, w, gb))[0].array
    for module in (convolution_nd, deconvolution_nd):
        monkeypatch.setattr(module, 'numpy', object())  # so that the functions take these arrays for a GPU's
    assert_close(on_a_gpu(convolve(), x, w, b), expected)
    assert_close(on_a_gpu(convolution_nd.ConvolutionNDGradW(plain), x, gy), gw)
    assert_close(on_a_gpu(deconvolve(), gy, w, gb), gx)
    assert len(fake.built) == 3


@pytest.mark.parametrize('w_layout', [None, LAST_W])
def test_arrays_with_channels_last_give_the_same(fake, w_layout):
    x, w, b = draw(2, 3, 7, 9), draw(4, 3, 3, 2), draw(4)
    make = convolution_2d.Convolution2DFunction
    expected = make(2, 1).apply((x, w, b))[0].array
    raw_x, raw_w = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), w
    if w_layout is not None:
        raw_w = np.ascontiguousarray(w.transpose(0, 2, 3, 1))
    function = make(2, 1, cudnn_fast=True)
    found = on_a_gpu(function, raw_x, raw_w, b, layouts=(LAST_X, w_layout, None))
    assert_close(found.transpose(0, 3, 1, 2), expected)
    assert function.output_layouts == (LAST_X,)
    gy = draw(*found.shape, seed=1)
    gw = convolution_2d.Convolution2DGradW(make(2, 1), w.shape, w.dtype, w_layout)
    expected_gw, = convolution_2d.Convolution2DGradW(make(2, 1), w.shape, w.dtype, None).apply(
        (x, np.ascontiguousarray(gy.transpose(0, 3, 1, 2))))
    found_gw = on_a_gpu(gw, raw_x, gy, layouts=(LAST_X, LAST_X))
    assert_close(found_gw if w_layout is None else found_gw.transpose(0, 3, 1, 2), expected_gw.array)


def test_arrays_that_cudnn_cannot_read_are_copied(fake):
    w = draw(4, 3, 3, 3)
    memory = np.zeros(2 * 3 * 7 * 9 + 1, 'float32')
    misaligned = memory[1:].reshape(2, 3, 7, 9) if memory.ctypes.data % 16 == 0 else memory[:-1].reshape(2, 3, 7, 9)
    misaligned[...] = draw(2, 3, 7, 9)
    transposed = draw(2, 3, 9, 7).transpose(0, 1, 3, 2)
    for x in (misaligned, transposed):
        expected = F.convolution_2d(x, w).array
        assert_close(on_a_gpu(convolution_2d.Convolution2DFunction(), x, w), expected)


@pytest.mark.parametrize(('x_dtype', 'w_dtype', 'cover_all', 'size'), [
    ('float64', 'float64', False, 2), ('float16', 'float32', False, 2), ('float32', 'float32', True, 2),
    ('float32', 'float32', False, 0)])
def test_what_cudnn_is_not_asked_about_goes_chainers_way(fake, x_dtype, w_dtype, cover_all, size):
    function = convolution_2d.Convolution2DFunction(cover_all=cover_all)
    function._input_layouts = (None, None)
    x, w = draw(size, 3, 7, 7, dtype=x_dtype), draw(4, 3, 3, 3, dtype=w_dtype)
    assert offered.convolution(function, x, w, None) is None
    assert fake.graphs == []


@pytest.mark.parametrize('setting', ['never', 'CHAINER_CUDNN=0', "CuPy's"])
def test_whoever_wants_no_cudnn_of_ours_gets_none(fake, monkeypatch, setting):
    monkeypatch.setattr(cuda, '_cudnn_disabled_by_user', setting == 'CHAINER_CUDNN=0', raising=False)
    monkeypatch.setattr(cuda, 'cudnn_enabled', setting == "CuPy's")
    function = convolution_2d.Convolution2DFunction()
    function._input_layouts = (None, None)
    with chainer.using_config('use_cudnn', 'never' if setting == 'never' else 'auto'):
        assert offered.convolution(function, draw(2, 3, 7, 7), draw(4, 3, 3, 3), None) is None
    assert fake.graphs == []


@pytest.mark.parametrize('wanted', [convolution_2d, deconvolution_2d, 'gradient', 'gradient of another layout'])
def test_channels_last_that_cudnn_refuses_end_with_advice(fake, wanted):
    fake.engines.clear()
    x, w = draw(2, 7, 7, 4), draw(4, 4, 3, 3)
    if wanted is convolution_2d:
        function, inputs = convolution_2d.Convolution2DFunction(), (x, w)
    elif wanted is deconvolution_2d:
        function, inputs = deconvolution_2d.Deconvolution2DFunction(), (x, w)
    else:
        function, inputs = convolution_2d.Convolution2DGradW(
            convolution_2d.Convolution2DFunction(), w.shape, w.dtype, None), (x, draw(2, 5, 5, 4))
    layouts = (LAST_X, LAST_X) if wanted == 'gradient' else (LAST_X, None)
    with pytest.raises(RuntimeError, match=r'channels last of .*float32\[2, 7, 7, 4\].*compute_mode = None'):
        on_a_gpu(function, *inputs, layouts=layouts)


def test_a_refused_convolution_goes_chainers_way_and_is_asked_about_once(fake):
    fake.engines.clear()
    function = convolution_2d.Convolution2DFunction()
    function._input_layouts = (None, None)
    for _ in range(3):
        assert offered.convolution(function, draw(2, 3, 7, 7), draw(4, 3, 3, 3), None) is None
    assert len(fake.graphs) == 2  # once under the limit, once for the fallbacks


@pytest.fixture
def as_gpu(fake, kernels_on_host):
    """Batch normalization takes arrays of NumPy for CuPy's."""
    return fake


@pytest.mark.parametrize(('dtype', 'decay', 'shape'), [
    ('float32', 0.9, (4, 8, 5, 3)), ('float32', 0.0, (2, 4, 1, 1)), ('float16', 0.7, (3, 8, 4, 6))])
def test_batch_normalization_is_that_of_the_cpu(as_gpu, dtype, decay, shape):
    x, gy = draw(*shape, dtype=dtype) + 3, draw(*shape, dtype=dtype, seed=1)
    gamma, beta = draw(shape[1]), draw(shape[1], seed=1)

    def run():
        mean, var = draw(shape[1], seed=2), np.abs(draw(shape[1], seed=3))
        inputs = [chainer.Variable(array) for array in (x, gamma, beta)]
        function = batch_normalization.BatchNormalization(2e-5, mean, var, decay)
        y, = function.apply(inputs)
        y.grad = gy
        y.backward()
        return [y.array, *(v.grad for v in inputs), mean, var, function.mean, function.inv_std], function

    found, ours = run()
    with chainer.using_config('use_cudnn', 'never'):
        expected, plain = run()
    assert isinstance(ours._impl, offered.BatchNormalization)
    assert isinstance(plain._impl, offered.BatchNormalization)
    assert [graph.runs for graph in as_gpu.built] == [1, 1]
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, dtype)


def test_batch_normalization_with_channels_last_is_the_same(fake):
    x, gy = draw(4, 8, 5, 3), draw(4, 8, 5, 3, seed=1)
    gamma, beta, mean, var = draw(8), draw(8, seed=1), draw(8, seed=2), np.abs(draw(8, seed=3))

    def run(layout):
        last = layout is not None
        maps = [np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if last else array for array in (x, gy)]
        running = mean.copy(), var.copy()
        ours = offered.BatchNormalization(None)  # without a way of Chainer's to take instead
        y, y_layout, *_, batch_mean, _, inv_std, _ = ours.forward(
            None, gamma, maps[0], layout, np, None, beta, 1e-5, .9, *running)
        gx, gx_layout, ggamma, gbeta = ours.backward(
            None, gamma, maps[1], maps[0], layout, np, None, batch_mean, inv_std, 1e-5, None, None)
        assert y_layout == gx_layout == layout
        maps = [array.transpose(0, 3, 1, 2) if last else array for array in (y, gx)]
        return [*maps, ggamma, gbeta, batch_mean, inv_std, *running]

    for one, other in zip(run(LAST_X), run(None), strict=True):
        assert_close(one, other)
    assert {tensor.stride[1] for graph in fake.built for tensor in graph.maps} == {1, 15}


@pytest.mark.parametrize('use_cudnn', ['auto', 'never'])
@pytest.mark.parametrize('shape', [(4, 6, 5, 3), (4, 6, 6, 6), (4, 5, 3, 7, 2)])
def test_channels_last_that_cudnn_does_not_normalize_are_the_same(as_gpu, use_cudnn, shape):
    as_gpu.engines.clear()
    x, gy, gamma, beta = draw(*shape), draw(*shape, seed=1), draw(shape[1]), draw(shape[1], seed=1)

    def run(layout):
        given, mean, var = [chainer.Variable(each) for each in (x, gamma, beta)], draw(shape[1]), draw(shape[1]) ** 2
        y, = batch_normalization.BatchNormalization(2e-5, mean, var).apply((given[0].as_layout(layout), *given[1:]))
        assert y.layout == layout
        y = y.as_layout(None)
        F.sum(y * gy).backward()
        return [y.array, *(each.grad for each in given), mean, var]

    with chainer.using_config('use_cudnn', use_cudnn):
        for one, other in zip(run(LAST_X), run(None), strict=True):
            np.testing.assert_array_equal(one, other)


def test_running_statistics_count_the_population_and_weigh_by_decay(as_gpu):
    x = np.arange(4, dtype='float32').reshape(4, 1, 1, 1) * np.ones((1, 4, 1, 1), 'float32')
    mean, var = np.full(4, 10, 'float32'), np.full(4, 10, 'float32')
    gamma, beta = np.ones(4, 'float32'), np.zeros(4, 'float32')
    F.batch_normalization(x, gamma, beta, running_mean=mean, running_var=var, decay=.75)
    np.testing.assert_allclose(mean, .75 * 10 + .25 * 1.5, rtol=1e-6)
    np.testing.assert_allclose(var, .75 * 10 + .25 * 5 / 3, rtol=1e-5)  # the variance of 0, 1, 2, 3 divided by 3, not 4


def test_statistics_of_cudnn_serve_our_own_backward_and_the_second_derivative(as_gpu):
    x, gamma, beta = draw(4, 8, 5, 3), draw(8), draw(8, seed=1)

    def second(refuse_backward):
        v = chainer.Variable(x)
        y = F.batch_normalization(v, gamma, beta)
        if refuse_backward:
            as_gpu.engines.clear()
        gx, = chainer.grad([F.sum(y * y * y)], [v], enable_double_backprop=True)
        gxx, = chainer.grad([F.sum(gx * gx)], [v])
        return gx.array, gxx.array

    found = second(refuse_backward=True)
    with chainer.using_config('use_cudnn', 'never'):
        expected = second(refuse_backward=False)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(('shape', 'dtype', 'gamma_dtype'), [
    ((4, 6, 5, 3), 'float32', 'float32'), ((4, 4, 5, 3), 'float16', 'float32'), ((4, 8, 5, 3), 'float16', 'float16'),
    ((64, 64, 32, 32), 'float32', 'float32'), ((4, 8), 'float32', 'float32'), ((4, 8, 3, 3, 3), 'float32', 'float32')])
def test_what_cudnn_cannot_normalize_is_not_asked_of_it(as_gpu, shape, dtype, gamma_dtype):
    gamma = chainer.Variable(np.ones(shape[1], gamma_dtype))
    y = F.batch_normalization(draw(*shape, dtype=dtype), gamma, gamma.array)
    y.grad = y.array
    y.backward()
    assert as_gpu.graphs == []
    assert as_gpu.device.made == [], 'a map beside those of Chainer\'s own way raises the peak'


def test_a_normalization_above_the_limit_is_not_done(device, fake):
    fake.engines[:] = [Engine(workspace_bytes=10_001)]
    operation = facade.BatchNormalization(True, (1, 4, 2, 2), 'float32', False, 1e-5)
    assert handles.current().find(operation, PlanSettings(10_000, False, False)) is None
    assert handles.current().find(operation, PlanSettings(10_001, False, False)).workspace_bytes == 10_001


def test_without_cudnn_there_is_one_warning_with_the_remedy_and_chainers_own_way(monkeypatch):
    monkeypatch.setattr(library, 'load', library.functools.cache(library.load.__wrapped__))
    monkeypatch.setitem(sys.modules, 'cudnn', None)
    function = convolution_2d.Convolution2DFunction()
    function._input_layouts = (None, None)
    x, w = draw(2, 3, 7, 7), draw(4, 3, 3, 3)
    with pytest.warns(RuntimeWarning, match='pip install --upgrade nvidia-cudnn-frontend nvidia-cudnn-cu1') as seen:
        assert [offered.convolution(function, x, w, None) for _ in range(3)] == [None] * 3
    assert len(seen) == 1
