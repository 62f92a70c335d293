"""Normalization in tiles beside Chainer's own: the same bits of values, gradients, statistics and what nodes keep."""
import chainer_ooc  # noqa: F401  before chainer

# isort: split
import itertools
import warnings

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.functions.normalization import batch_normalization as chainers
from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.kernels import tiled
from chainer_ooc.kernels.tiled import batch_norm, channels, lrn
from chainer_ooc.kernels.tiled.lrn import Response
from support.combinations import spread
from support.examples import examples

WORKSPACES = st.sampled_from([1, 300, 5000, '8MB'])
LAYOUTS = st.sampled_from(['C', 'permuted', 'part', 'broadcast', 'backwards'])
DTYPES = st.sampled_from(['ee', 'ef', 'ff', 'fd', 'dd', 'fe', 'df'])
TILES = st.sampled_from([1, 64, 1 << 19])


def array(random, shape, dtype, layout='C'):
    """Random numbers, laid out in memory as asked."""
    if layout == 'broadcast':
        return np.broadcast_to(random.standard_normal((shape[0], *shape[1:-1], 1)).astype(dtype), shape)
    x = random.standard_normal(shape).astype(dtype)
    if layout == 'permuted':
        order = random.permutation(len(shape))
        return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
    if layout == 'part':
        wide = np.empty((shape[0], shape[1] + 2, *shape[2:]), dtype)
        wide[:, 1:-1] = x
        return wide[:, 1:-1]
    return x[::-1] if layout == 'backwards' else x


def assert_alike(ours, theirs):
    """Asserts the same bits and strides of two lists; NaN may have another sign."""
    for a, b in zip(ours, theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert all(s == t or size == 1 for s, t, size in zip(a.strides, b.strides, a.shape, strict=True))
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        assert np.nan_to_num(a).tobytes() == np.nan_to_num(b).tobytes()


@st.composite
def maps(draw):
    """A map, its gradient and that gradient's, its parameters, and the axes to reduce."""
    shape = draw(st.lists(st.integers(1, 7), min_size=2, max_size=4))
    if draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = draw(st.sampled_from([9, 33, 130]))
    key = draw(st.just(1) | st.integers(0, len(shape) - 1))
    (x_dtype, dtype), random = draw(DTYPES), np.random.default_rng(draw(st.integers(0, 99)))
    x, gy, ggx = (array(random, shape, x_dtype, draw(layout)) for layout in (LAYOUTS, LAYOUTS, st.just('C')))
    vectors = [array(random, shape[key:key + 1], dtype) for _ in range(4)]
    vectors[3] = np.abs(vectors[3]) + vectors[3].dtype.type(0.5)
    return x, gy, ggx, vectors, tuple(axis for axis in range(len(shape)) if axis != key)


def differentiate(function, x, others, gy, ggx):
    """Returns results, gradients and, if there is a ggx, second gradients of a function of Chainer, and its node."""
    with warnings.catch_warnings(), np.errstate(all='ignore'):
        warnings.simplefilter('ignore')
        inputs = [chainer.Variable(a) for a in (x, *others)]
        y = function(*inputs)
        gy = chainer.Variable(gy)
        gradients = chainer.grad([y], inputs, [gy], enable_double_backprop=ggx is not None)
        second = []
        if ggx is not None:
            slopes = [chainer.Variable(a) for a in (ggx, *(np.cos(g.array) for g in gradients[1:]))]
            second = chainer.grad(gradients, [inputs[0], gy], slopes)
    return [v.array for v in (y, *gradients, *second)], y.creator


def train(workspace, call):
    x, gy, ggx, (gamma, beta, mean, var), axis = call
    running = [mean.copy(), var.copy()]
    with chainer.using_config('ooc_workspace', workspace):
        arrays, node = differentiate(
            lambda x, gamma, beta: F.batch_normalization(
                x, gamma, beta, running_mean=running[0], running_var=running[1], decay=0.7, axis=axis),
            x, (gamma, beta), gy, ggx)
    return [*arrays, *running, node.running_mean, node.running_var, node.mean, node.var, node.inv_std]


def evaluate(workspace, call):
    x, gy, ggx, vectors, axis = call
    with chainer.using_config('ooc_workspace', workspace):
        arrays, node = differentiate(
            lambda *inputs: F.fixed_batch_normalization(*inputs, axis=axis), x, vectors, gy, ggx)
    return [*arrays, node.inv_std, node.inv_var]


@pytest.mark.parametrize('run', [train, evaluate])
@examples(120)
@given(maps(), WORKSPACES, TILES)
def test_batch_normalization_has_chainers_bits(run, call, workspace, tile_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, 'NORMALIZED_TILE_BYTES', tile_bytes)
        assert_alike(run(workspace, call), run(None, call))


@pytest.mark.parametrize(('shape', 'dtypes', 'run'), spread(
    [(4, 5, 97, 101), (2, 3, 9001), (2, 3, 8192), (10000, 3), (5, 1, 90, 97)], ['ee', 'ef', 'ff', 'dd'],
    [train, evaluate], every=8))
def test_sums_longer_than_numpys_buffer_have_chainers_bits(run, dtypes, shape):
    random = np.random.default_rng(0)
    for order in {tuple(range(len(shape))), tuple(range(len(shape)))[::-1], (*range(2, len(shape)), 0, 1)}:
        x, gy = (array(random, [shape[axis] for axis in order], dtypes[0]).transpose(np.argsort(order))
                 for _ in range(2))
        vectors = [np.abs(array(random, shape[1:2], dtypes[1])) + 1 for _ in range(4)]
        call = x, gy, None, vectors, (0, *range(2, len(shape)))
        theirs = run(None, call)
        for workspace in (1, '8MB'):
            assert_alike(run(workspace, call), theirs)


def test_statistics_that_keep_two_axes_apart_are_chainers_own():
    random = np.random.default_rng(0)
    x, gamma = array(random, (3, 4, 5), 'f'), array(random, (4, 5), 'f')
    ours, theirs = (train(way, (x, x, x, [gamma] * 4, (0,))) for way in ('1MB', None))
    assert_alike(ours, theirs)
    with chainer.using_config('ooc_workspace', '1MB'):
        assert tiled.batch_moments(x, (0,), x.dtype) is None


def test_numbers_in_foreign_byte_order_are_chainers_own():
    x = np.ones((3, 4, 5), '>f4')
    with chainer.using_config('ooc_workspace', '1MB'):
        assert tiled.batch_moments(x, (0, 2), np.dtype('f')) is None
        assert tiled.batch_affine(x, *(np.ones((1, 4, 1), 'f') for _ in range(4))) is None


def test_an_empty_batch_is_chainers_own():
    call = np.empty((0, 3, 2), 'f'), np.empty((0, 3, 2), 'f'), np.empty((0, 3, 2), 'f'), [np.ones(3, 'f')] * 4, (0, 2)
    ours, theirs = [], []
    for way, results in (('1MB', ours), (None, theirs)):
        try:
            results += evaluate(way, call)
        except ZeroDivisionError as error:
            results.append(np.array(str(error)))
    assert [a.tolist() for a in ours] == [a.tolist() for a in theirs]


class Shared(chainers.GeneralBatchNormalizationImpl):
    """Statistics as several processes share them."""

    def get_mean_and_var(self, axis, gamma, x, xp, interm_dtype):
        mean, var = super().get_mean_and_var(axis, gamma, x, xp, interm_dtype)
        return mean + 1, var * 2

    def get_ggamma_and_gbeta(self, axis, gamma, gy, x_hat, xp):
        return tuple(3 * a for a in super().get_ggamma_and_gbeta(axis, gamma, gy, x_hat, xp))


def test_statistics_shared_between_processes_stay_shared():
    random = np.random.default_rng(0)
    x, gy = array(random, (3, 4, 5), 'f'), array(random, (3, 4, 5), 'f')
    vector = array(random, 4, 'f')
    results = []
    for way in ('1MB', None):
        with chainer.using_config('ooc_workspace', way):
            function = chainers.BatchNormalization(impl_selector=lambda function, inputs: Shared())
            results.append(differentiate(
                lambda *inputs, function=function: function.apply(inputs)[0], x, (vector, vector), gy, x)[0])
    assert_alike(*results)
    np.testing.assert_array_equal(results[0][3], 3 * gy.sum(axis=(0, 2)))


@pytest.mark.parametrize('backward_workspace', [None, 1, '8MB'])
def test_the_setting_may_change_between_forward_and_backward(backward_workspace):
    random = np.random.default_rng(0)
    x, vector = array(random, (3, 4, 5, 6), 'f'), array(random, 4, 'f')
    for function in (lambda x: F.batch_normalization(x, vector, vector), F.local_response_normalization):
        results = []
        for forward, backward in ((5000, backward_workspace), (None, None)):
            variable = chainer.Variable(x)
            with chainer.using_config('ooc_workspace', forward):
                y = function(variable)
            y.grad = x[::-1].copy()
            with chainer.using_config('ooc_workspace', backward):
                y.backward()
            results.append([y.array, variable.grad])
        assert_alike(*results)


NUMBERS = st.tuples(
    st.integers(0, 9), st.sampled_from([2, 1.5, 0, -1]),
    st.sampled_from([1e-4, 1, 1e6, np.float64(0.1), np.float32(2)]),
    st.sampled_from([0.75, 0.5, 1, 0, -1, -2, -0.5, np.float64(0.75)]))


@examples(200)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.sampled_from(['e', 'f', 'd', '>f']), LAYOUTS, LAYOUTS,
       NUMBERS, WORKSPACES, TILES)
def test_local_response_normalization_has_chainers_bits(
        shape, dtype, layout, gy_layout, numbers, workspace, tile_bytes):
    random = np.random.default_rng(1)
    x, gy = array(random, shape, dtype, layout), array(random, shape, dtype, gy_layout)
    results = []
    for way in (workspace, None):
        with chainer.using_config('ooc_workspace', way), np.errstate(all='ignore'), \
                pytest.MonkeyPatch.context() as patch:
            patch.setattr(lrn, 'RESPONSE_TILE_BYTES', tile_bytes)
            variable = chainer.Variable(x)
            y = F.local_response_normalization(variable, *numbers)
            gx, = y.creator.backward((0,), (chainer.Variable(gy),))
            results.append([y.array, gx.array, y.creator.unit_scale, y.creator.scale])
    assert_alike(*results)


def test_an_empty_batch_has_no_responses():
    with chainer.using_config('ooc_workspace', '1MB'):
        assert F.local_response_normalization(np.empty((0, 3, 4, 4), 'f')).shape == (0, 3, 4, 4)


NUMPY_BUFFERS_BYTES = 3 * 8192 * 4  # for casts within one ufunc, and where axes cannot be joined


@pytest.mark.parametrize('dtypes', ['ff', 'ef', 'ee'])
@pytest.mark.parametrize('shape', [(4, 20, 60, 61), (40, 30, 31, 20)])
def test_scratch_of_batch_normalization_keeps_within_the_workspace(shape, dtypes, monkeypatch, peak_scratch_bytes):
    workspace_bytes = 250_000
    monkeypatch.setattr(channels, 'NORMALIZED_TILE_BYTES', 1 << 30)  # the workspace alone counts
    random = np.random.default_rng(0)
    x, (gamma, mean) = array(random, shape, dtypes[0]), (array(random, shape[1], dtypes[1]) for _ in range(2))
    var = np.abs(gamma) + 1
    calls = {'training': lambda: F.batch_normalization(x, gamma, mean),
             'fixed': lambda: F.fixed_batch_normalization(x, gamma, mean, mean, var)}
    for name, call in calls.items():
        with chainer.using_config('ooc_workspace', workspace_bytes):
            y = call()
            for step in (call, lambda y=y: y.creator.backward((0,), (chainer.Variable(x),))):
                with np.errstate(over='ignore'):
                    scratch_bytes = peak_scratch_bytes(step)
                assert scratch_bytes < workspace_bytes + NUMPY_BUFFERS_BYTES + 20_000, name


@pytest.mark.parametrize('shape', [(90, 16, 20, 21), (2, 24, 100, 101)])
def test_scratch_of_local_response_normalization_keeps_within_the_workspace(shape, monkeypatch, peak_scratch_bytes):
    workspace_bytes = 300_000
    monkeypatch.setattr(lrn, 'RESPONSE_TILE_BYTES', 1 << 30)
    x = array(np.random.default_rng(0), shape, 'f')
    with chainer.using_config('ooc_workspace', workspace_bytes):
        y = F.local_response_normalization(x)
        for step in (lambda: F.local_response_normalization(x),
                     lambda: y.creator.backward((0,), (chainer.Variable(x),))):
            assert peak_scratch_bytes(step) < workspace_bytes + NUMPY_BUFFERS_BYTES + 20_000


def test_parts_depend_on_shape_and_workspace_alone():
    x = np.empty((2, 7, 3, 4), 'f')
    found = channels.channels_of(x, 1)
    assert list(found.parts(4, 100, 300)) == [slice(0, 3), slice(3, 5), slice(5, 7)]
    assert list(found.parts(4, 100, 0)) == [slice(i, i + 1) for i in range(7)]


def test_memory_is_laid_out_as_numpy_does():
    random = np.random.default_rng(0)
    for layouts in itertools.product(['C', 'permuted', 'part', 'broadcast'], repeat=2):
        a, b = (array(random, (3, 4, 5, 2), 'f', layout) for layout in layouts)
        assert channels.like(a.dtype, a, b).strides == (a * b).strides


@pytest.mark.parametrize('order', [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)])
def test_calls_for_tiles_run_in_tiles(order, monkeypatch):
    called = []

    def spy(module, name):
        function = getattr(module, name)

        def spied(*args, **kwargs):
            result = function(*args, **kwargs)
            called.append((name, result is not None))
            return result
        monkeypatch.setattr(module, name, spied)

    for name in ('moments', 'affine', 'gradients'):
        spy(batch_norm, name)
    for name in ('normalize', 'gradient'):
        spy(lrn, name)
    x, vector = np.random.default_rng(0).standard_normal((2, 3, 4, 5), 'f'), np.ones(3, 'f')
    x = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
    with chainer.using_config('ooc_workspace', '1MB'):
        for function in (lambda x: F.batch_normalization(x, vector, vector), F.local_response_normalization,
                         lambda x: F.fixed_batch_normalization(x, vector, vector, vector, vector)):
            y = function(chainer.Variable(x))
            y.grad = x
            y.backward()
    names = ['moments', 'affine', 'gradients', 'normalize', 'gradient', 'affine', 'gradients']
    assert called == [(name, True) for name in names]


def test_numbers_that_make_another_dtype_are_chainers_own():
    single = np.dtype(np.float32)
    assert Response(5, 2, 1e-4, 0.75).keeps(single)
    assert not Response(5, 2, np.ones((1, 1)), 0.75).keeps(single)
