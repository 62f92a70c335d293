"""Batch normalization in compiled code of our own, beside oneDNN: digits, bits, and what NumPy goes on computing."""
import ctypes
import os

import chainer_ooc

# isort: split
import chainer
import chainer.functions as F
import numpy as np
import pytest

from chainer_ooc.kernels.onednn import batch_norm, layouts, library
from support.convolutions import LAYOUTS, assert_close, computed, laid_out
from support.onednn import AUTO, NEVER

needs_code = pytest.mark.skipif(library.load() is None or batch_norm._library() is None,
                                reason='oneDNN is not installed (extra cpu), or there was no C compiler')
SHAPES = (6, 5), (4, 3, 7), (4, 3, 5, 6), (2, 3, 4, 5, 6), (5, 1, 4, 4), (3, 4, 1, 1), (1, 37, 20, 11)


@pytest.fixture
def called(monkeypatch):
    """The names of the compiled functions that ran."""
    names, code = [], batch_norm._library()

    class Watched:
        def __getattr__(self, name):
            names.append(name.removeprefix('batch_norm_'))
            return getattr(code, name)
    monkeypatch.setattr(batch_norm, '_library', Watched)
    return names


def normalized(entries, dtype, x, *vectors, **options):
    """Results and gradients of both vectors and of x, and running mean and variance."""
    means = [np.zeros(x.shape[1], dtype), np.ones(x.shape[1], dtype)]

    def normalize(*arrays):
        return F.batch_normalization(*arrays, running_mean=means[0], running_var=means[1], decay=0.7, **options)
    given = [each.astype(dtype, order='K') for each in (x, *vectors)]
    return [*computed(entries, normalize, given, twice=False), *means]


def vectors_for(x):
    return np.random.default_rng(1).standard_normal((2, x.shape[1]))


@needs_code
@pytest.mark.parametrize(('shape', 'layout'), [  # of images that are all the same, pixels have a variance alone
    (shape, layout) for shape in SHAPES for layout in LAYOUTS if layout != 'broadcast' or np.prod(shape[2:]) > 1])
def test_values_gradients_and_statistics(shape, layout, called):
    x = laid_out(np.random.default_rng(0).standard_normal(shape) * 3 + 2, layout)
    exact, ours = (normalized(entries, dtype, x, *vectors_for(x)) for entries, dtype in (
        (NEVER, np.float64), (AUTO, np.float32)))
    assert_close([each.astype(np.float64) for each in ours], exact, 1e-5)
    assert called == ['squares', 'normalize', 'products', 'differentiate']


@needs_code
@pytest.mark.parametrize(('make', 'scale', 'middle'), [
    (np.abs, 1, -1), (np.positive, 1, 100), (np.positive, 1e-3, -1), (np.positive, 1e15, 0)])
def test_sums_over_many_pixels_lose_no_digits(make, scale, middle):
    x = make(np.random.RandomState(0).standard_normal((8, 4, 200, 250)) * scale + middle).astype(np.float32)
    y, gx, ggamma, gbeta, mean, variance = normalized(AUTO, np.float32, x, *np.ones((2, 4)))
    exact = normalized(NEVER, np.float64, x, *np.ones((2, 4)))
    assert_close([each.astype(np.float64) for each in (y, gx, mean, variance)], [*exact[:2], *exact[4:]], 2e-6)
    assert_close([each.astype(np.float64) for each in (ggamma, gbeta)], exact[2:4], 2e-5)


@needs_code
def test_sums_of_what_has_one_sign_are_those_of_double_precision():
    x, gy = np.abs(np.random.RandomState(0).standard_normal((2, 1, 2, 1500, 1500))).astype(np.float32)
    with chainer.using_config('use_ideep', 'auto'):
        _, mean, variance = batch_norm.batch_normalization((0, 2, 3), *np.ones((2, 2), np.float32), x, 0.0)
        _, ggamma, gbeta = batch_norm.batch_normalization_grad(
            (0, 2, 3), np.ones(2, np.float32), gy, x, mean, np.ones(2, np.float32))
    above = x.astype(np.float64) - mean[:, None, None]
    for ours, exact in ((mean, x.mean((0, 2, 3), np.float64)), (variance, x.var((0, 2, 3), np.float64)),
                        (ggamma, (gy * above).sum((0, 2, 3))), (gbeta, gy.sum((0, 2, 3), np.float64))):
        np.testing.assert_allclose(ours, exact, rtol=1.2e-7 if exact.min() > 0 else 1e-6)


@needs_code
@pytest.mark.filterwarnings('ignore:A batch with no more than one sample')
@pytest.mark.parametrize('shape', [(1, 16), (1, 16, 1, 1)])
def test_a_pixel_alone_has_no_gradient(shape):
    x = np.random.default_rng(0).standard_normal(shape)
    ours, numpys = (normalized(entries, np.float32, x, *vectors_for(x)) for entries in (AUTO, NEVER))
    assert not ours[1].any()
    assert all(map(np.array_equal, ours, numpys))


@needs_code
def test_equal_pixels_have_no_variance():
    x = np.full((4, 3, 50, 60), 1.1, np.float32)
    y, gx, _, _, mean, variance = normalized(AUTO, np.float32, x, *np.ones((2, 3)))
    assert np.array_equal(y, np.ones_like(y)) and np.isfinite(gx).all()
    assert np.array_equal(mean, np.full(3, np.float32(0.3) * np.float32(1.1), np.float32))
    assert np.array_equal(variance, np.full(3, 0.7, np.float32))


@needs_code
@pytest.mark.parametrize('what', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('place', [(0, 1, 0, 0), (1, 1, 2, 3)])
def test_nan_and_infinities_go_the_ways_that_they_go_with_numpy(what, place):
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    x[place] = what
    with np.errstate(all='ignore'):
        ours, numpys = (normalized(entries, np.float32, x, *np.ones((2, 3))) for entries in (AUTO, NEVER))
    for a, b in zip(ours, numpys, strict=True):
        assert np.array_equal(np.isnan(a), np.isnan(b)) and np.array_equal(np.isinf(a), np.isinf(b))


@needs_code
def test_bits_depend_on_no_number_of_threads_and_no_layout():
    x = np.random.default_rng(0).standard_normal((4, 19, 30, 31)).astype(np.float32)
    openmp, found = ctypes.CDLL('libgomp.so.1'), []
    before = openmp.omp_get_max_threads()
    try:
        for threads in (1, 2, 3, 7):
            openmp.omp_set_num_threads(threads)
            for layout in ('C', 'channels last'):
                given = x if layout == 'C' else layouts.channels_last(x)
                found.append(normalized(AUTO, np.float32, given, *vectors_for(x)))
    finally:
        openmp.omp_set_num_threads(before)
    for each in found[1:]:
        assert all(map(np.array_equal, each, found[0]))


@needs_code
def test_vectors_may_have_gaps_and_results_own_their_memory():
    x, both = np.random.default_rng(0).standard_normal((4, 3, 5, 6)).astype(np.float32), np.ones((3, 2), np.float32)
    both[:] = vectors_for(x).T
    ours = normalized(AUTO, np.float32, x, both[:, 0], both[:, 1])
    expected = normalized(AUTO, np.float32, x, both[:, 0].copy(), both[:, 1].copy())
    assert all(map(np.array_equal, ours, expected))
    for each in ours[:2]:
        assert layouts.is_channels_last(each) and each.base is None


@needs_code
def test_a_forked_child_normalizes():
    x = np.random.default_rng(0).standard_normal((4, 3, 50, 60)).astype(np.float32)
    expected = normalized(AUTO, np.float32, x, *vectors_for(x))
    child = os.fork()
    if not child:
        same = all(map(np.array_equal, normalized(AUTO, np.float32, x, *vectors_for(x)), expected))
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


@needs_code
def test_the_gradient_can_be_differentiated():
    x, gamma = np.random.default_rng(0).standard_normal((4, 3, 5, 6)), np.ones(3)
    exact, ours = (computed(entries, F.batch_normalization, [each.astype(dtype) for each in (x, gamma, gamma)])
                   for entries, dtype in ((NEVER, np.float64), (AUTO, np.float32)))
    assert_close([each.astype(np.float64) for each in ours], exact, 1e-4)


@pytest.mark.parametrize('missing', ['compiled code', 'matching axes', 'float32'])
def test_what_it_does_not_compute_is_numpys(missing, called, monkeypatch):
    x, axis = np.random.default_rng(0).random((4, 3, 5, 6)).astype('f8' if missing == 'float32' else 'f4'), (0, 2, 3)
    if missing == 'compiled code':
        monkeypatch.setattr(batch_norm, '_library', lambda: None)
    if missing == 'matching axes':
        axis = (0, 1, 2)
    gamma = np.ones(x.shape[({0, 1, 2, 3} - set(axis)).pop()], x.dtype)
    ours, numpys = (computed(entries, lambda *arrays: F.batch_normalization(*arrays, axis=axis), [x, gamma, gamma])
                    for entries in (AUTO, NEVER))
    assert all(map(np.array_equal, ours, numpys))
    assert called == []
    assert chainer.config.use_ideep == 'never' and chainer_ooc.stats() is None
