"""Pooling in tiles beside Chainer's own: the same bits of values, indexes, gradients and what nodes keep."""
import chainer_ooc  # noqa: F401  before chainer

# isort: split

import chainer
import chainer.functions as F
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chainer_ooc.kernels.tiled import tiles
from support.examples import examples
from support.poolings import TAME, poolings

WORKSPACES = [1, 300, 5000, '8MB']


def assert_same_bits(ours, theirs):
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    nan = np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    assert np.where(nan, 0, ours).astype(ours.dtype).tobytes() == np.where(nan, 0, theirs).astype(ours.dtype).tobytes()


def run(workspace, function, x, layout='C'):
    """Calls a function; returns its result, gradient, gradient of that, and what the node keeps."""
    with chainer.using_config('ooc_workspace', workspace), np.errstate(all='ignore'):
        random = np.random.default_rng(1)
        x = chainer.Variable(x)
        y = function(x)
        gy = random.choice(TAME, y.shape).astype(y.dtype) * random.standard_normal(y.shape).astype(y.dtype)
        if layout == 'transposed':
            gy = np.ascontiguousarray(gy.T).T
        gy = chainer.Variable(gy)
        gx, = chainer.grad([y], [x], [gy], enable_double_backprop=True)
        ggy, = chainer.grad([gx], [gy], [chainer.Variable(random.standard_normal(gx.shape).astype(gx.dtype))])
        return [y.array, gx.array, ggy.array], vars(y.creator)


def assert_nodes_alike(ours, theirs):
    assert set(ours) == set(theirs)
    for name in ('_in_shape', '_in_dtype'):
        assert ours.get(name) == theirs.get(name)
    for name in ('indexes', 'width'):
        if theirs.get(name) is not None:
            assert ours[name].dtype == theirs[name].dtype
            np.testing.assert_array_equal(ours[name], theirs[name])
    assert ours['_input_indexes_to_retain'] == theirs['_input_indexes_to_retain']


@examples(150)
@given(poolings(), st.booleans(), st.sampled_from(WORKSPACES), st.sampled_from(['C', 'transposed']))
def test_max_pooling_has_chainers_bits(call, cover_all, workspace, layout):
    x, kernel, stride, pad = call
    ours, theirs = (run(way, lambda x: F.max_pooling_nd(x, kernel, stride, pad, cover_all), x, layout)
                    for way in (workspace, None))
    assert_nodes_alike(ours[1], theirs[1])
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert_same_bits(a, b)


@examples(150)
@given(poolings(), st.sampled_from([0, None]), st.sampled_from(WORKSPACES), st.sampled_from(['C', 'transposed']))
def test_average_pooling_nd_has_chainers_bits(call, pad_value, workspace, layout):
    x, kernel, stride, pad = call
    if pad_value is None:
        pad = tuple(min(p, k - 1) for p, k in zip(pad, kernel, strict=True))  # or windows of no pixel divide by zero
        kernel = tuple(map(min, kernel, x.shape[2:]))
    ours, theirs = (run(way, lambda x: F.average_pooling_nd(x, kernel, stride, pad, pad_value), x, layout)
                    for way in (workspace, None))
    assert_nodes_alike(ours[1], theirs[1])
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert_same_bits(a, b)


@examples(100)
@given(poolings(st.just(2)), st.sampled_from(WORKSPACES), st.sampled_from(['C', 'transposed']))
def test_average_pooling_2d_has_chainers_bits(call, workspace, layout):
    x, kernel, stride, pad = call
    ours, theirs = (run(way, lambda x: F.average_pooling_2d(x, kernel, stride, pad), x, layout)
                    for way in (workspace, None))
    assert_nodes_alike(ours[1], theirs[1])
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert_same_bits(a, b)


@examples(100)
@given(poolings(), st.booleans(), st.sampled_from(WORKSPACES), st.sampled_from(['C', 'transposed']))
def test_unpooling_has_chainers_bits(call, cover_all, workspace, layout):
    x, kernel, stride, pad = call
    pad = tuple(min(p, (k - 1) // 2) for p, k in zip(pad, kernel, strict=True))
    functions = [lambda x: F.unpooling_nd(x, kernel, stride, pad, None, cover_all)]
    if len(kernel) == 2 and all(d != p for d, p in zip(x.shape[2:], pad, strict=True)):  # or Chainer divides by zero
        functions.append(lambda x: F.unpooling_2d(x, kernel, stride, pad, None, cover_all))
    assume(all(s * (d - 1) + k - 2 * p - (s - 1) >= 1
               for d, k, s, p in zip(x.shape[2:], kernel, stride, pad, strict=True)))
    for function in functions:
        ours, theirs = (run(way, function, x, layout)[0] for way in (workspace, None))
        for a, b in zip(ours, theirs, strict=True):
            assert_same_bits(a, b)


@examples(50)
@given(poolings(st.just(2)), st.sampled_from(WORKSPACES), st.sampled_from(['C', 'transposed']))
def test_upsampling_has_chainers_bits(call, workspace, layout):
    x, kernel, stride, pad = call
    pad = tuple(min(p, (k - 1) // 2) for p, k in zip(pad, kernel, strict=True))
    assume(all(d + 2 * p >= k for d, p, k in zip(x.shape[2:], pad, kernel, strict=True)))
    x = np.nan_to_num(x, nan=0.5)
    with chainer.using_config('ooc_workspace', None):
        y, indexes = F.max_pooling_2d(x, kernel, stride, pad, return_indices=True)
    size = x.shape[2:]
    ours, theirs = (run(way, lambda y: F.upsampling_2d(y, indexes, kernel, stride, pad, size), y.array, layout)[0]
                    for way in (workspace, None))
    for a, b in zip(ours, theirs, strict=True):
        assert_same_bits(a, b)


def test_an_index_outside_of_the_window_is_refused():
    y = np.ones((1, 1, 2, 2), np.float32)
    refused = pytest.raises(IndexError, match='from 0 to 4, but a window of shape')
    with chainer.using_config('ooc_workspace', '1MB'), refused:
        F.upsampling_2d(y, np.array([[[[0, 1], [2, 4]]]]), 2)


def test_windows_of_more_than_256_elements_have_chainers_indexes():
    x = np.random.default_rng(0).standard_normal((2, 3, 40, 41)).astype(np.float32)
    ours, theirs = (run(way, lambda x: F.max_pooling_2d(x, 17, 5, 3), x) for way in ('8MB', None))
    assert_nodes_alike(ours[1], theirs[1])
    assert ours[1]['indexes'].max() > 256
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize('dtype', [np.float16, np.float32])
@pytest.mark.parametrize('shape', [(2, 80, 90, 91), (9, 2, 120, 121)])
def test_scratch_keeps_within_the_workspace(shape, dtype, peak_scratch_bytes):
    workspace_bytes = 500_000
    numpy_buffers_bytes = 3 * 8192 * 4  # for casts within one ufunc
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    calls = {
        'max': lambda x: F.max_pooling_2d(x, 3, 2),
        'average': lambda x: F.average_pooling_2d(x, 3, 2, 1),
        'global average': lambda x: F.average_pooling_2d(x, shape[2:]),
        'unpooling': lambda x: F.unpooling_2d(x, 3, 2),
    }
    for name, call in calls.items():
        with chainer.using_config('ooc_workspace', workspace_bytes):
            y = call(chainer.Variable(x))
            for forward in (lambda call=call: call(chainer.Variable(x)),
                            lambda y=y: y.creator.backward((0,), (chainer.Variable(y.array),))):
                assert peak_scratch_bytes(forward) < workspace_bytes + numpy_buffers_bytes + 20_000, name


def test_tiles_have_no_influence(monkeypatch):
    x = np.random.default_rng(0).standard_normal((3, 7, 30, 31)).astype(np.float32)
    results = []
    for tile_bytes in (1, 10_000, 1 << 24):
        monkeypatch.setattr(tiles, 'POOLED_TILE_BYTES', tile_bytes)
        results.append(run('8MB', lambda x: F.max_pooling_2d(x, 3, 2), x)[0])
    for other in results[1:]:
        for a, b in zip(other, results[0], strict=True):
            assert_same_bits(a, b)


def test_the_gradient_that_a_caller_gives_is_left_alone():
    x = chainer.Variable(np.ones((1, 1, 4, 4), np.float32))
    with chainer.using_config('ooc_workspace', '1MB'):
        y = F.average_pooling_nd(x, 3, 2, 1, pad_value=None)
        y.grad = np.ones_like(y.array)
        y.backward(retain_grad=True)
    assert (y.grad == 1).all()
