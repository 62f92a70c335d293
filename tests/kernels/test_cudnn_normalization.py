"""Batch normalization in our own kernels, evaluated with NumPy, against Chainer's own."""
import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.backends import cuda
from chainer.functions.normalization import batch_normalization

from chainer_ooc.kernels.cudnn import handles, normalization
from support.fake_kernels import Kernels

TOLERANCE = {'float16': 3e-2, 'float32': 2e-5, 'float64': 1e-12}


@pytest.fixture
def kernels(monkeypatch):
    """Batch normalization takes NumPy's arrays for a GPU's; there is no cuDNN."""
    made = Kernels()
    monkeypatch.setattr(cuda, 'cupy', np)
    monkeypatch.setattr(cuda, 'elementwise', made.elementwise)
    monkeypatch.setattr(cuda, 'reduce', made.reduce)
    monkeypatch.setattr(handles, 'current', lambda: None)
    return made


def draw(*shape, dtype='float32', seed=0):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


def normalized(shape, dtype='float32', gamma_dtype=None, axis=None, running=True, own=False):
    """Output, gradients and statistics of a training, by our kernels or on the host."""
    channels = shape[1]
    x, gy = draw(*shape, dtype=dtype) + np.dtype(dtype).type(3), draw(*shape, dtype=dtype, seed=1)
    gamma, beta = (draw(channels, dtype=gamma_dtype or dtype, seed=seed) for seed in (2, 3))
    mean = draw(channels, dtype=dtype, seed=4) if running else None
    var = np.abs(draw(channels, dtype=dtype, seed=5)) if running else None
    inputs = [chainer.Variable(each) for each in (x, gamma, beta)]
    with pytest.MonkeyPatch.context() as patch:
        if own:
            patch.setattr(cuda, 'cupy', object())
        y, = batch_normalization.BatchNormalization(2e-5, mean, var, 0.8, axis).apply(inputs)
        y.grad = gy
        y.backward()
    return [y.array, *(each.grad for each in inputs), *([mean, var] if running else [])]


def assert_close(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        scale = max(1.0, float(np.abs(other.astype(float)).max()))
        np.testing.assert_allclose(one.astype(float), other.astype(float), atol=tolerance * scale)


@pytest.mark.parametrize(('shape', 'dtype', 'gamma_dtype'), [
    ((4, 8, 5, 3), 'float32', None), ((2, 4, 16, 16), 'float32', None), ((1, 2, 64, 32), 'float32', None),
    ((3, 5, 7), 'float32', None), ((2, 3, 4, 5, 6), 'float32', None), ((6, 4, 1, 1), 'float32', None),
    ((4, 8, 5, 3), 'float64', None), ((4, 8, 5, 3), 'float16', 'float32'), ((4, 3, 5, 3), 'float32', 'float64')])
def test_it_is_that_of_the_host(kernels, shape, dtype, gamma_dtype):
    found = normalized(shape, dtype, gamma_dtype)
    assert kernels.written, 'our own kernels have run'
    assert_close(found, normalized(shape, dtype, gamma_dtype, own=True), TOLERANCE[dtype])


def test_without_running_statistics_it_is_the_same(kernels):
    found = normalized((4, 8, 5, 3), running=False)
    assert_close(found, normalized((4, 8, 5, 3), running=False, own=True), TOLERANCE['float32'])


def test_each_map_is_read_as_often_as_the_module_says_and_nothing_of_its_size_is_scratch(kernels):
    shape = 8, 4, 16, 16
    x, gy = draw(*shape), draw(*shape, seed=1)
    gamma, beta = draw(4), draw(4, seed=1)
    _, mean, _, inv_std = normalization.forward(x, gamma, beta, 1e-5, 0.9, None, None)
    sums = 1  # of x, which CuPy's own sum takes
    assert sums + sum(sizes.count(x.size) for sizes in kernels.read) == 3
    assert sum(sizes.count(x.size) for sizes in kernels.written) == 1
    kernels.read.clear()
    kernels.written.clear()
    normalization.backward(x, gamma, gy, mean, inv_std)
    assert sums + sum(sizes.count(x.size) for sizes in kernels.read) == 5
    assert sum(sizes.count(x.size) for sizes in kernels.written) == 1


def test_large_means_do_not_spoil_the_variance(kernels):
    """The sum of squares less the square of the sum would be all rounding here."""
    x = draw(8, 4, 16, 16) + np.float32(4096)
    _, mean, var, _ = normalization.forward(x, np.ones(4, 'f'), np.zeros(4, 'f'), 1e-5, 0.9, None, None)
    np.testing.assert_allclose(var, x.astype('d').var(axis=(0, 2, 3)), rtol=1e-3)
    np.testing.assert_allclose(mean, x.astype('d').mean(axis=(0, 2, 3)), rtol=1e-6)


@pytest.mark.parametrize(('pictures', 'elements', 'count'), [
    (640 * 64, 112 * 112, 1), (64, 112 * 112, 16), (1, 1 << 20, 1024), (2, 49, 1), (3, 6, 2), (2048, 49, 1)])
def test_few_pictures_are_cut_into_parts_of_equal_size(pictures, elements, count):
    assert normalization.parts(pictures, elements) == count


@pytest.mark.parametrize(('shape', 'dtype', 'gamma_dtype', 'axis'), [
    ((4, 8), 'float32', 'float32', None), ((4, 8, 5, 3), 'float16', 'float16', None),
    ((4, 8, 5, 3), 'float32', 'float32', (0, 2))])
def test_what_is_of_another_form_is_left_to_chainer(shape, dtype, gamma_dtype, axis):
    x = draw(*shape, dtype=dtype)
    gamma = draw(*(extent for number, extent in enumerate(shape) if number not in (axis or (0, 2, 3))),
                 dtype=gamma_dtype)
    assert not normalization.serves(axis or (0, *range(2, len(shape))), x, gamma)


def test_a_gradient_that_is_no_block_of_memory_is_left_to_chainer():
    x, gamma = draw(4, 8, 5, 3), draw(8)
    assert normalization.serves((0, 2, 3), x, gamma, x)
    assert not normalization.serves((0, 2, 3), x, gamma, np.broadcast_to(x[:1], x.shape))
    assert not normalization.serves((0, 2, 3), x[:, :, ::2], gamma)


def test_the_second_derivative_is_that_of_the_host(kernels):
    x, gamma, beta = draw(4, 8, 5, 3), draw(8), draw(8, seed=1)

    def second():
        v = chainer.Variable(x)
        y = F.batch_normalization(v, gamma, beta)
        gx, = chainer.grad([F.sum(y * y * y)], [v], enable_double_backprop=True)
        gxx, = chainer.grad([F.sum(gx * gx)], [v])
        return [gx.array, gxx.array]

    found = second()
    assert kernels.written
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, 'cupy', object())
        expected = second()
    assert_close(found, expected, 2e-3)


def test_who_wants_no_cudnn_gets_chainers_own_kernels(kernels):
    with chainer.using_config('use_cudnn', 'never'), pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalization, 'forward', lambda *arguments: pytest.fail('own kernels'))
        y = F.batch_normalization(draw(4, 8, 5, 3), draw(8), draw(8))
    assert y.shape == (4, 8, 5, 3)
