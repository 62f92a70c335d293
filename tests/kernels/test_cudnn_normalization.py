"""Batch normalization in our own kernels, compiled for the host, against Chainer's own and double precision."""
import mmap

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.backends import cuda
from chainer.functions.normalization import batch_normalization

from chainer_ooc.kernels.cudnn import handles, normalization
from support import cuda_on_host

NO_RESERVE = 0x4000  # Python 3.10 has no name for MAP_NORESERVE

TOLERANCE = {'float16': 3e-2, 'float32': 2e-5, 'float64': 1e-12}


@pytest.fixture
def kernels(kernels_on_host, monkeypatch):
    """Batch normalization takes NumPy's arrays for a GPU's; there is no cuDNN. Gives the kernels' names."""
    monkeypatch.setattr(handles, 'current', lambda: None)
    return kernels_on_host


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
    assert kernels == [f'ooc_bn_{name}' for name in normalization.KERNELS], 'our own kernels have run'
    assert_close(found, normalized(shape, dtype, gamma_dtype, own=True), TOLERANCE[dtype])


def test_without_running_statistics_it_is_the_same(kernels):
    found = normalized((4, 8, 5, 3), running=False)
    assert_close(found, normalized((4, 8, 5, 3), running=False, own=True), TOLERANCE['float32'])


# With cuts of planes, with several pictures for a thread, with rows and columns that do not fill a block or a map.
SHAPES = [
    ((8, 4, 16, 16), 'float32'), ((1, 2, 64, 96), 'float32'), ((40, 3, 7, 7), 'float32'), ((2, 1, 37, 83), 'float32'),
    ((300, 2, 1, 1), 'float32'), ((1, 300, 3, 1), 'float32'), ((9, 5, 14, 14), 'float16'), ((3, 70, 8, 4), 'float16'),
    ((3, 2, 33, 31), 'float64'), ((2, 5, 6), 'float64'), ((1, 1, 1), 'float32')]


def both_ways(x, gy, gamma_dtype=None):
    """All that forward and backward give, as one list."""
    channels, gamma_dtype = x.shape[1], gamma_dtype or np.promote_types(x.dtype, 'float32')
    gamma, beta = (draw(channels, dtype=gamma_dtype, seed=seed) for seed in (2, 3))
    y, mean, var, inv_std = normalization.forward(x, gamma, beta, 1e-5, 0.9, None, None)
    return [y, mean, var, inv_std, *normalization.backward(x, gamma, gy, mean, inv_std)]


@pytest.mark.parametrize(('shape', 'dtype'), SHAPES)
def test_each_map_is_read_as_often_as_the_module_says_and_nothing_of_its_size_is_scratch(kernels, shape, dtype):
    x, gy = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype, seed=1)
    gamma, beta = (draw(shape[1], seed=seed) for seed in (2, 3))
    with cuda_on_host.counting() as counts:
        _, mean, _, inv_std = normalization.forward(x, gamma, beta, 1e-5, 0.9, None, None)
    counts.maps[0].reads[0].reshape(shape[1], -1)[:, 0] = 2  # which each thread looks at
    assert [(set(each.reads.flat), set(each.writes.flat)) for each in counts.maps] == [({2}, {0}), ({0}, {1})]
    assert counts.most_elements_beside < x.size or x.size < 3000
    with cuda_on_host.counting() as counts:
        normalization.backward(x, gamma, gy, mean, inv_std)
    assert [(set(each.reads.flat), set(each.writes.flat)) for each in counts.maps] == [
        ({2}, {0}), ({2}, {0}), ({0}, {1})]
    assert counts.most_elements_beside < x.size or x.size < 3000


def shifted(array):
    """The same elements one element behind a multiple of 64 bytes."""
    room = np.zeros(array.nbytes + 128, 'u1')
    begin = -room.ctypes.data % 64 + array.itemsize
    moved = room[begin:begin + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


@pytest.mark.parametrize(('shape', 'dtype'), SHAPES)
def test_the_bits_are_the_same_at_any_address_and_in_any_order_of_threads(kernels, monkeypatch, shape, dtype):
    maps = [draw(*shape, dtype=dtype), draw(*shape, dtype=dtype, seed=1)]
    expected = [each.tobytes() for each in both_ways(*maps)]
    assert [each.tobytes() for each in both_ways(*map(shifted, maps))] == expected
    with cuda_on_host.backwards():
        assert [each.tobytes() for each in both_ways(*maps)] == expected
    monkeypatch.setattr(np, 'empty', lambda *arguments: shifted(np.zeros(*arguments)))
    assert [each.tobytes() for each in both_ways(*maps)] == expected


def spread(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def with_an_outlier_first(shape):
    x = spread(shape)
    x[0, :, 0, 0] = 1e4
    return x


# The tolerance is for the variance, and for the mean in deviations.
@pytest.mark.parametrize(('x', 'tolerance'), [
    (spread((8, 4, 16, 16)), 1e-6), (spread((40, 3, 7, 7)) + 1e4, 1e-6), (spread((8, 4, 16, 16)) + 4096, 1e-6),
    (with_an_outlier_first((8, 4, 16, 16)), 2e-6), (with_an_outlier_first((40, 3, 7, 7)), 2e-6),
    (1e-3 * spread((64, 2, 32, 32)) + 10, 1e-6), (np.where(spread((8, 4, 16, 16)) > 2, 1e5, 1), 1e-6)],
    ids=['usual', 'mean 1e4', 'mean 4096', 'outlier', 'outlier in small planes', 'many', 'two values'])
def test_the_statistics_are_near_those_in_double_precision(kernels, x, tolerance):
    x = x.astype('f')
    axes = (0, 2, 3)
    ones, zeros = np.ones(x.shape[1], 'f'), np.zeros(x.shape[1], 'f')
    y, mean, var, _ = normalization.forward(x, ones, zeros, 0, 0.9, None, None)
    x = x.astype('d')
    wide = x.var(axis=axes)
    least = np.spacing(np.abs(x).max().astype('f'))  # what a mean in float32 is rounded by
    np.testing.assert_allclose(var, wide, rtol=tolerance)
    assert (np.abs(mean - x.mean(axis=axes)) <= tolerance * np.sqrt(wide) + least).all()
    np.testing.assert_allclose(
        y, (x - mean[:, None, None]) / np.sqrt(wide)[:, None, None], rtol=4 * tolerance, atol=1e-6)


def test_a_constant_channel_has_no_variance_and_is_its_shift(kernels):
    x = np.broadcast_to(np.array([0.1, 1e4 / 3, -7e-5], 'f')[:, None, None], (20, 3, 9, 7)).copy()
    beta = draw(3)
    y, mean, var, _ = normalization.forward(x, draw(3), beta, 1e-5, 0.9, None, None)
    assert not var.any()
    assert (mean == x[0, :, 0, 0]).all()
    assert (y == beta[:, None, None]).all()


def test_what_is_not_a_number_is_not_hidden(kernels):
    x = draw(4, 3, 5, 6)
    x[2, 1, 3, 3] = np.nan
    y, mean, var, _ = normalization.forward(x, draw(3), draw(3), 1e-5, 0.9, None, None)
    for each in (y[0, :, 0, 0], mean, var):
        assert np.isnan(each).tolist() == [False, True, False]


@pytest.mark.parametrize('running_dtype', ['float16', 'float32', 'float64'])
def test_running_statistics_of_any_dtype_and_all_else_may_be_views(kernels, running_dtype):
    x = draw(4, 3, 5, 6)
    room = {name: np.full(6, 3, dtype) for name, dtype in [
        ('gamma', 'f'), ('beta', 'f'), ('mean', running_dtype), ('var', running_dtype)]}
    gamma, beta, mean, var = (each[::2] for each in room.values())
    y, *_ = normalization.forward(x, gamma, beta, 1e-5, 0.75, mean, var)
    wide = x.astype('d')
    tolerance = 1e-3 if running_dtype == 'float16' else 1e-6
    np.testing.assert_allclose(mean, 3 * .75 + .25 * wide.mean(axis=(0, 2, 3)), rtol=tolerance)
    np.testing.assert_allclose(var, 3 * .75 + .25 * wide.var(axis=(0, 2, 3), ddof=1), rtol=tolerance)
    assert all((each[1::2] == 3).all() for each in room.values()), 'what lies between is not written'
    np.testing.assert_allclose(y.mean(axis=(0, 2, 3)), 3, rtol=1e-5)


def test_backward_takes_views_and_statistics_of_another_dtype(kernels):
    x, gy, gamma = draw(4, 3, 5, 6, dtype='d'), draw(4, 3, 5, 6, dtype='d', seed=1), draw(3)
    mean, inv_std = draw(3), np.abs(draw(3, seed=1))
    expected = normalization.backward(x, gamma, gy, mean.astype('d'), inv_std.astype('d'))
    found = normalization.backward(x, np.repeat(gamma, 2)[::2], gy, np.repeat(mean, 2)[::2], inv_std)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert (one == other).all()


def test_maps_of_more_than_2_to_the_31_elements_are_reached_to_the_end(kernels):
    pictures, elements = 3, 1 << 30
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    x, y = (np.frombuffer(mmap.mmap(-1, 2 * pictures * elements, flags=flags), 'float16').reshape(
        pictures, 1, elements) for _ in range(2))
    x[-1, 0, -1] = 1024
    dtypes = np.dtype('float16'), np.dtype('float32')
    at = normalization._partition(x.shape, *dtypes)
    moments, _, normalize = normalization._kernels(np, *dtypes, dtypes[1], at.width)[:3]
    parts = np.zeros((at.sums.blocks[0], 3), 'float32')
    with cuda_on_host.only(-1):
        moments(at.sums.blocks, at.sums.threads, (x, parts, *at.sums.arguments))
    count, mean, _ = parts[-1]
    assert mean * count == 1024
    zero, one = np.zeros(1, 'float32'), np.ones(1, 'float32')
    with cuda_on_host.only(0):
        normalize(at.maps.blocks, at.maps.threads, (x, y, zero, one, one, one, *at.maps.arguments))
    assert y[-1, 0, -2:].tolist() == [1, 1025]


# ResNet50 at batch 128 and 640, others at the ends: what the channel has is whole, and blocks are many but not idle.
@pytest.mark.parametrize(('pictures', 'channels', 'units'), [
    (128, 64, 3136), (640, 64, 3136), (128, 256, 784), (128, 128, 196), (128, 1024, 49), (128, 512, 49),
    (128, 2048, 49), (640, 2048, 49), (1, 1, 1 << 20), (1, 1, 1 << 40), (4, 3, 1), (1 << 20, 2, 1), (2, 1 << 18, 2),
    (7, 1, 300)])
def test_blocks_are_many_but_not_idle(pictures, channels, units):
    grid, parts = normalization.grid_of_sums(pictures, channels, units)
    columns, rows = grid.threads
    assert columns * rows <= normalization.THREADS
    assert columns * rows > normalization.THREADS / 2 or columns * rows > min(pictures, 8) * units / 2
    assert grid.blocks[0] == channels * parts
    work = -(-pictures * units // (parts * columns * rows))
    assert grid.blocks[0] <= max(channels, normalization.BLOCKS) or units > 1 << 38
    assert grid.blocks[0] >= normalization.BLOCKS / 4 or work <= 2 * normalization.FEWEST_UNITS
    cut_units = int(grid.arguments[-1])
    assert cut_units * int(grid.arguments[-2]) >= units
    written = normalization.grid_of_maps(pictures, channels, units)
    *_, share, cuts, cut_units = map(int, written.arguments)
    assert cut_units * cuts >= units
    assert share * -(-cut_units // written.threads[0]) <= normalization.WRITTEN_UNITS
    assert written.blocks[0] < 1 << 31 or units > 1 << 31


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
    assert kernels
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, 'cupy', object())
        expected = second()
    assert_close(found, expected, 2e-3)


def test_who_wants_no_cudnn_gets_chainers_own_kernels(kernels):
    with chainer.using_config('use_cudnn', 'never'), pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalization, 'forward', lambda *arguments: pytest.fail('own kernels'))
        y = F.batch_normalization(draw(4, 8, 5, 3), draw(8), draw(8))
    assert y.shape == (4, 8, 5, 3)
