"""Convolutions in tiles beside Chainer's own: same values, same gradients of both orders, bounded scratch."""
import chainer_ooc  # noqa: F401  before chainer

# isort: split

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer import _ooc
from chainer.functions.connection.convolution_2d import Convolution2DGradW
from hypothesis import given
from hypothesis import strategies as st

from support.convolutions import LAYOUTS, SHAPES, arrays_for, assert_close, computed, convolutions, convolve, laid_out
from support.examples import examples

WORKSPACES = [1, 500, 5000, '100KB', '8MB']


def run(workspace, function, arrays, layout='C', *, twice=True):
    return computed({'ooc_workspace': workspace}, function, arrays, layout, twice=twice)


def both_ways(workspace, function, arrays, layout):
    return (run(way, function, arrays, layout) for way in (workspace, None))


@examples(70)
@given(convolutions(), st.sampled_from(WORKSPACES), st.sampled_from(LAYOUTS))
def test_convolution_nd_is_chainers(call, workspace, layout):
    arrays, options = call
    assert_close(*both_ways(workspace, lambda *x: F.convolution_nd(*x, **options), arrays, layout), 1e-9)


@examples(50)
@given(convolutions(st.just(2)), st.sampled_from(WORKSPACES), st.sampled_from(LAYOUTS))
def test_convolution_2d_is_chainers(call, workspace, layout):
    arrays, options = call
    assert_close(*both_ways(workspace, lambda *x: F.convolution_2d(*x, **options), arrays, layout), 1e-9)


@examples(50)
@given(convolutions(transposed=True), st.sampled_from(WORKSPACES), st.sampled_from(LAYOUTS))
def test_deconvolution_nd_is_chainers(call, workspace, layout):
    arrays, options = call
    assert_close(*both_ways(workspace, lambda *x: F.deconvolution_nd(*x, **options), arrays, layout), 1e-9)


@examples(50)
@given(convolutions(st.just(2), transposed=True), st.sampled_from(WORKSPACES), st.sampled_from(LAYOUTS))
def test_deconvolution_2d_is_chainers(call, workspace, layout):
    arrays, options = call
    assert_close(*both_ways(workspace, lambda *x: F.deconvolution_2d(*x, **options), arrays, layout), 1e-9)


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


@pytest.mark.parametrize(('axes', 'error', 'match'), [
    (1, TypeError, 'divisor of that of'), (2, ValueError, 'cannot reshape')])
def test_channels_that_groups_do_not_divide_are_refused_as_by_chainer(axes, error, match):
    arrays = [np.ones((1, 4, *[5] * axes)), np.ones((3, 2, *[3] * axes))]
    convolve = F.convolution_2d if axes == 2 else F.convolution_nd
    for workspace in (None, '1KB'):
        with chainer.using_config('ooc_workspace', workspace), pytest.raises(error, match=match):
            convolve(*arrays, groups=2)


def test_with_the_setting_unset_nothing_is_asked_of_the_tiles(monkeypatch):
    monkeypatch.setattr(_ooc, 'scratch', None, raising=False)
    run(None, convolve('mirrored'), arrays_for('mirrored'))
