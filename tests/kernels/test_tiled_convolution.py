"""Convolutions in tiles beside Chainer's own: same values, same gradients of both orders, bounded scratch."""
import chainer_ooc  # noqa: F401  before chainer

# isort: split

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer import _ooc
from chainer.functions.connection.convolution_2d import Convolution2DGradW
from hypothesis import given, settings
from hypothesis import strategies as st

WORKSPACES = [1, 500, 5000, '100KB', '8MB']
LAYOUTS = ['C', 'transposed', 'mirrored', 'broadcast']
ONE_TO_THREE_AXES = st.integers(1, 3)


def laid_out(array, layout):
    """The same values (for 'broadcast': of the first image) in another memory layout."""
    if layout == 'transposed':
        return np.ascontiguousarray(array.swapaxes(0, -1)).swapaxes(0, -1)
    if layout == 'mirrored':
        return np.ascontiguousarray(array[..., ::-1])[..., ::-1]
    if layout == 'broadcast':
        return np.broadcast_to(array[:1], array.shape)
    return array


def run(workspace, function, arrays, layout='C', *, twice=True):
    """Calls a function; returns its result, the gradients and, if `twice`, the gradients of those."""
    random = np.random.default_rng(1)
    with chainer.using_config('ooc_workspace', workspace):
        inputs = [chainer.Variable(array) for array in arrays]
        y = function(*inputs)
        gy = chainer.Variable(laid_out(random.standard_normal(y.shape).astype(y.dtype), layout))
        gradients = chainer.grad([y], inputs, [gy], enable_double_backprop=True)
        results = [y, *gradients]
        if twice:
            weights = [random.standard_normal(g.shape).astype(g.dtype) for g in gradients]
            total = sum(F.sum(g * w) for g, w in zip(gradients, weights, strict=True))
            results += [g for g in chainer.grad([total], [*inputs, gy]) if g is not None]
        return [result.array for result in results]


def both_ways(workspace, function, arrays, layout):
    return (run(way, function, arrays, layout) for way in (workspace, None))


def assert_close(ours, theirs, tolerance):
    assert [(a.shape, a.dtype) for a in ours] == [(a.shape, a.dtype) for a in theirs]
    for a, b in zip(ours, theirs, strict=True):
        scale = np.abs(b).max(initial=0)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(scale, 1e-3))


@st.composite
def convolutions(draw, axes=ONE_TO_THREE_AXES, transposed=False):
    """Arrays and keyword arguments of a convolution, or of a deconvolution if `transposed`."""
    ndim = draw(axes)
    kernel, stride, pad, dilate = (
        tuple(draw(st.integers(low, high)) for _ in range(ndim)) for low, high in ((1, 3), (1, 3), (0, 2), (1, 2)))
    cover_all = not transposed and draw(st.booleans())
    size = tuple(max(1, (k - 1) * d + 1 - 2 * p) + draw(st.integers(0, 4 if ndim < 3 else 2))
                 for k, p, d in zip(kernel, pad, dilate, strict=True))
    if transposed:
        least = [-(-(2 * p - (k - 1) * d) // s) + 1 for k, p, d, s in zip(kernel, pad, dilate, stride, strict=True)]
        size = tuple(map(max, size, least))
    groups = draw(st.integers(1, 3))
    channels = [groups * draw(st.integers(1, 3)) for _ in range(2)]
    batch = draw(st.integers(1, 5))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    weights = random.standard_normal((channels[1], channels[0] // groups, *kernel))
    arrays = [random.standard_normal((batch, channels[transposed], *size)), weights]
    if draw(st.booleans()):
        arrays.append(random.standard_normal(channels[not transposed]))
    layouts = draw(st.tuples(*[st.sampled_from(LAYOUTS[:3])] * 2))
    arrays[:2] = map(laid_out, arrays, layouts)
    options = {'stride': stride, 'pad': pad, 'dilate': dilate, 'groups': groups}
    return arrays, {**options, **({'cover_all': cover_all} if not transposed else {})}


@settings(max_examples=70, deadline=None)
@given(convolutions(), st.sampled_from(WORKSPACES), st.sampled_from(LAYOUTS))
def test_convolution_nd_is_chainers(call, workspace, layout):
    arrays, options = call
    assert_close(*both_ways(workspace, lambda *x: F.convolution_nd(*x, **options), arrays, layout), 1e-9)


@settings(max_examples=50, deadline=None)
@given(convolutions(st.just(2)), st.sampled_from(WORKSPACES), st.sampled_from(LAYOUTS))
def test_convolution_2d_is_chainers(call, workspace, layout):
    arrays, options = call
    assert_close(*both_ways(workspace, lambda *x: F.convolution_2d(*x, **options), arrays, layout), 1e-9)


@settings(max_examples=50, deadline=None)
@given(convolutions(transposed=True), st.sampled_from(WORKSPACES), st.sampled_from(LAYOUTS))
def test_deconvolution_nd_is_chainers(call, workspace, layout):
    arrays, options = call
    assert_close(*both_ways(workspace, lambda *x: F.deconvolution_nd(*x, **options), arrays, layout), 1e-9)


@settings(max_examples=50, deadline=None)
@given(convolutions(st.just(2), transposed=True), st.sampled_from(WORKSPACES), st.sampled_from(LAYOUTS))
def test_deconvolution_2d_is_chainers(call, workspace, layout):
    arrays, options = call
    assert_close(*both_ways(workspace, lambda *x: F.deconvolution_2d(*x, **options), arrays, layout), 1e-9)


# Image, weights and options such that each way through the code is taken: pointwise by image and stacked, columns by
# image and stacked, the mirrored kernel and its opposite, whole images and rows.
SHAPES = {
    'pointwise': ((4, 16, 16, 17), (8, 16, 1, 1), {}),
    'pointwise, small maps': ((4, 16, 7, 7), (8, 16, 1, 1), {}),
    'pointwise, stride 2': ((4, 16, 29, 28), (8, 16, 1, 1), {'stride': 2}),
    'mirrored': ((4, 8, 20, 21), (8, 8, 3, 3), {'pad': 1}),
    'not mirrored': ((2, 8, 20, 21), (80, 8, 3, 3), {'pad': 1}),
    'small maps': ((9, 24, 7, 7), (16, 24, 3, 3), {'pad': 1}),
    'first layer': ((3, 3, 41, 43), (16, 3, 7, 7), {'stride': 2, 'pad': 3}),
    'groups': ((3, 12, 15, 15), (18, 4, 5, 5), {'pad': 2, 'groups': 3}),
    'depthwise': ((3, 12, 15, 15), (12, 1, 3, 3), {'pad': 1, 'groups': 12}),
    'dilated': ((3, 6, 23, 23), (6, 6, 3, 3), {'dilate': 2, 'pad': 2}),
}


def arrays_for(shape, dtypes=(np.float32,) * 3):
    x, weights, _ = SHAPES[shape]
    random = np.random.default_rng(2)
    return [random.standard_normal(size).astype(dtype)
            for size, dtype in zip((x, weights, weights[:1]), dtypes, strict=True)]


def convolve(shape):
    return lambda *x: F.convolution_2d(*x, **SHAPES[shape][2])


@pytest.mark.parametrize('workspace', ['20KB', '200KB', '8MB'])
@pytest.mark.parametrize('shape', SHAPES)
def test_float32_is_as_close_to_float64_as_chainers(shape, workspace):
    arrays = arrays_for(shape)
    exact = run(None, convolve(shape), [array.astype(np.float64) for array in arrays])
    ours = run(workspace, convolve(shape), arrays)
    assert_close([array.astype(np.float64) for array in ours], exact, 1e-5)


@pytest.mark.parametrize('dtypes', ['eee', 'efe', 'fef', 'fdf', 'ddd', 'ggg'])
@pytest.mark.parametrize('shape', SHAPES)
def test_every_dtype_gives_the_dtype_and_precision_of_chainers(shape, dtypes):
    arrays = arrays_for(shape, dtypes)
    tolerance = 1e-2 if 'e' in dtypes else 1e-5
    assert_close(*(run(way, convolve(shape), arrays, twice=False) for way in ('100KB', None)), tolerance)


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('workspace', ['20KB', '8MB'])
def test_bits_repeat_and_do_not_depend_on_memory_layout(shape, workspace):
    arrays = arrays_for(shape)[:2]  # the gradient of a bias is F.sum's
    first, second = run(workspace, convolve(shape), arrays), run(workspace, convolve(shape), arrays)
    third = run(workspace, convolve(shape), [laid_out(arrays[0], 'transposed'), *arrays[1:]], 'transposed')
    for a, b, c in zip(first, second, third, strict=True):
        assert a.tobytes() == b.tobytes() == np.ascontiguousarray(c).tobytes()


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('dtype', [np.float16, np.float32])
@pytest.mark.parametrize('layout', LAYOUTS[:2])
def test_scratch_keeps_within_the_workspace(shape, dtype, layout, peak_scratch_bytes):
    workspace_bytes = 200_000
    x, weights, bias = arrays_for(shape, (dtype,) * 3)
    x = laid_out(x, layout)
    options = SHAPES[shape][2]
    with chainer.using_config('ooc_workspace', workspace_bytes):
        y = F.convolution_2d(chainer.Variable(x), weights, bias, **options)
        gy = laid_out(y.array, layout)
        grad_w = Convolution2DGradW(y.creator, weights.shape, weights.dtype, None)
        forwards = {
            'forward': lambda: F.convolution_2d(x, weights, bias, **options),
            'data': lambda: F.deconvolution_2d(gy, weights, outsize=x.shape[2:], **options),
            'weights': lambda: grad_w.apply((x, gy)),
        }
        for name, forward in forwards.items():
            assert peak_scratch_bytes(forward) < workspace_bytes + 40_000, name


def test_results_are_contiguous():
    for result in run('20KB', convolve('mirrored'), arrays_for('mirrored')):
        assert result.flags.c_contiguous


@pytest.mark.parametrize('shape', SHAPES)
def test_an_empty_batch_gives_empty_maps_and_gradients_of_zero(shape):
    x, *parameters = arrays_for(shape)
    assert_close(*(run(way, convolve(shape), [x[:0], *parameters], twice=False) for way in ('20KB', None)), 0)


@pytest.mark.parametrize('ndim', [2, 3])
def test_nodes_keep_what_chainers_keep(ndim):
    arrays = [np.ones((2, 4, *[6] * ndim)), np.ones((4, 4, *[3] * ndim))]
    for function in (F.convolution_nd, F.deconvolution_nd, F.convolution_2d, F.deconvolution_2d):
        if function.__name__.endswith('2d') and ndim != 2:
            continue
        kept = []
        for workspace in (None, '1KB'):
            with chainer.using_config('ooc_workspace', workspace):
                node = function(*map(chainer.Variable, arrays)).creator
            kept.append((sorted(vars(node)), node._input_indexes_to_retain, node._output_indexes_to_retain))
        assert kept[0] == kept[1]


def test_channels_that_groups_do_not_divide_are_refused_as_by_chainer():
    arrays = [np.ones((1, 4, 5)), np.ones((3, 2, 3))]
    for workspace in (None, '1KB'):
        with chainer.using_config('ooc_workspace', workspace), pytest.raises(TypeError, match='divisor of that of'):
            F.convolution_nd(*arrays, groups=2)


def test_with_the_setting_unset_nothing_is_asked_of_the_tiles(monkeypatch):
    monkeypatch.setattr(_ooc, 'scratch', None, raising=False)
    run(None, convolve('mirrored'), arrays_for('mirrored'))
