"""cuDNN on a GPU against Chainer's own kernels for CuPy, which know nothing of it."""
import itertools
import warnings

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.backends import cuda

from chainer_ooc.kernels.cudnn import handles, library, normalization, settings

cupy = pytest.importorskip('cupy', reason='needs CuPy')


def _absent():
    if not cupy.cuda.is_available():
        return 'needs a GPU'
    if cuda.cudnn_enabled:
        return 'this CuPy has a cuDNN of its own, which Chainer uses'
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return None if library.load() else 'needs nvidia-cudnn-frontend and the library behind it'


REASON = _absent()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

#: Which operations have an engine is the library's matter; what is said of that below was seen with this one.
SEEN_WITH = 92800
HAS_ALL_ENGINES = REASON is None and library.find().backend_version() >= SEEN_WITH

#: Largest difference to the largest element; TF32 has 10 bits of mantissa, as float16.
TOLERANCE = {'float32': 1e-4, 'TF32': 5e-3, 'float16': 5e-3}

# x, filter, stride, pad, dilation, groups
CASES = {
    'ResNet 3x3': ((8, 64, 28, 28), (64, 64, 3, 3), 1, 1, 1, 1),
    'ResNet stem': ((4, 3, 96, 96), (64, 3, 7, 7), 2, 3, 1, 1),
    '1x1, stride 2': ((8, 64, 28, 28), (128, 64, 1, 1), 2, 0, 1, 1),
    'AlexNet 11x11': ((4, 3, 111, 113), (96, 3, 11, 11), 4, 0, 1, 1),
    'odd sizes': ((7, 5, 15, 14), (6, 5, 3, 2), (2, 3), (1, 0), 1, 1),
    'dilated': ((4, 6, 15, 14), (8, 6, 3, 3), 1, 2, 2, 1),
    'dilated, stride 2': ((4, 6, 15, 16), (8, 6, 3, 3), 2, (1, 2), (2, 1), 1),
    'grouped': ((4, 64, 14, 14), (64, 2, 3, 3), 1, 1, 1, 32),
    'depthwise': ((4, 32, 14, 14), (32, 1, 3, 3), 2, 1, 1, 32),
    'grouped and dilated': ((4, 8, 15, 15), (12, 4, 3, 3), (2, 1), 1, (1, 2), 2),
    '1-D': ((4, 6, 33), (8, 6, 5), 2, 1, 1, 1),
    '3-D': ((2, 4, 8, 9, 10), (6, 4, 3, 3, 3), 1, 1, 1, 1),
    '3-D, ResNeXt': ((1, 16, 8, 14, 14), (32, 4, 3, 3, 3), 2, 1, 1, 4),
}


@pytest.fixture(autouse=True)
def own_session():
    handles.forget()  # the plans of what ran before
    yield
    handles.forget()


def draw(shape, dtype, seed=0):
    return cupy.asarray(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def convolve(case, dtype='float32', deconvolve=False, channels=True):
    """Output and gradients of one convolution, or of the deconvolution that is its opposite."""
    x_shape, w_shape, stride, pad, dilate, groups = case
    x, w, b = draw(x_shape, dtype), draw(w_shape, dtype, 1), draw(w_shape[0], dtype, 2)
    arguments = {'stride': stride, 'pad': pad, 'dilate': dilate, 'groups': groups}
    function = F.convolution_2d if len(x_shape) == 4 else F.convolution_nd
    if deconvolve:
        with chainer.using_config('use_cudnn', 'never'):
            x = draw(function(x, w, **arguments).shape, dtype, 3)
        function = F.deconvolution_2d if len(x_shape) == 4 else F.deconvolution_nd
        b, arguments['outsize'] = draw(x_shape[1], dtype, 2), x_shape[2:]
    inputs = [chainer.Variable(array) for array in (x, w, b)]
    y = function(*inputs, **arguments)
    y.grad = draw(y.shape, dtype, 4)
    y.backward()
    return [y.array, *(variable.grad for variable in inputs)]


def plans():
    """Operations that have a plan in this thread, and operations that were refused one."""
    found = handles.current().asked()
    return ([operation for operation, _, scratch_bytes in found if scratch_bytes is not None],
            [operation for operation, _, scratch_bytes in found if scratch_bytes is None])


def most_scratch_bytes():
    """Of the plans of this thread."""
    return max((scratch_bytes or 0 for _, _, scratch_bytes in handles.current().asked()), default=0)


def assert_close(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        difference = float(abs(one.astype('d') - other.astype('d')).max())
        assert difference <= tolerance * max(1.0, float(abs(other).max()))


@pytest.mark.parametrize(('name', 'dtype', 'deconvolve', 'deterministic'), [
    *itertools.product(CASES, ['float32', 'float16'], [False, True], [False]),
    *itertools.product(['ResNet 3x3', 'dilated', 'grouped', '3-D'], ['float32'], [False, True], [True])])
def test_convolutions_are_those_of_chainers_own_kernels(name, dtype, deconvolve, deterministic):
    with chainer.using_config('cudnn_deterministic', deterministic):
        found = convolve(CASES[name], dtype, deconvolve)
        made, refused = plans()
        with chainer.using_config('use_cudnn', 'never'):
            expected = convolve(CASES[name], dtype, deconvolve)
    assert len(made) + len(refused) == 3, 'forward, filter and data each ask for a plan'
    assert made or not HAS_ALL_ENGINES
    assert not refused or not HAS_ALL_ENGINES
    assert_close(found, expected, TOLERANCE[dtype])


@pytest.mark.parametrize('limit_bytes', [0, 8 << 20, 1 << 30])
@pytest.mark.parametrize('tensor_cores', ['never', 'auto', 'always'])
def test_any_limit_and_any_use_of_tensor_cores_gives_the_result(limit_bytes, tensor_cores, monkeypatch):
    monkeypatch.setattr(settings, '_max_workspace_bytes', limit_bytes)
    with chainer.using_config('use_cudnn_tensor_core', tensor_cores):
        found = convolve(CASES['ResNet 3x3'])
    with chainer.using_config('use_cudnn', 'never'):
        expected = convolve(CASES['ResNet 3x3'])
    assert_close(found, expected, TOLERANCE['TF32' if tensor_cores == 'always' else 'float32'])
    if limit_bytes == 8 << 20:
        assert most_scratch_bytes() <= limit_bytes


def test_autotune_gives_the_result_too():
    with chainer.using_config('autotune', True):
        found = convolve(CASES['ResNet 3x3'])
    with chainer.using_config('use_cudnn', 'never'):
        assert_close(found, convolve(CASES['ResNet 3x3']), TOLERANCE['float32'])


def test_what_autotune_chose_is_kept_for_new_sessions():
    runs = []
    with chainer.using_config('cudnn_deterministic', True), chainer.using_config('autotune', True):
        for _ in range(3):
            runs.append([array.tobytes() for array in convolve(CASES['ResNet 3x3'])])
            handles.forget()
    assert runs[0] == runs[1] == runs[2]


def test_deterministic_runs_have_the_same_bits_in_new_sessions_too():
    runs = []
    with chainer.using_config('cudnn_deterministic', True), chainer.using_config('ooc_workspace', '1GB'):
        for _ in range(3):
            runs.append([array.tobytes() for array in (*convolve(CASES['ResNet 3x3']), *normalize()[0])])
            handles.forget()
    assert runs[0] == runs[1] == runs[2]


def test_scratch_comes_from_cupys_allocator_and_goes_back():
    with chainer.using_config('ooc_workspace', '1GB'), chainer.using_config('use_cudnn_tensor_core', 'always'):
        convolve(CASES['ResNet 3x3'])
        largest = most_scratch_bytes()
        taken = []

        class Hook(cupy.cuda.MemoryHook):
            name = 'sizes'

            def malloc_postprocess(self, **arguments):
                taken.append(arguments['size'])

        with Hook():
            convolve(CASES['ResNet 3x3'])
    assert largest == 0 or largest in taken


def test_a_stream_of_the_users_own_is_followed():
    x, w = draw((4, 8, 32, 32), 'float32'), draw((8, 8, 3, 3), 'float32', 1)
    with chainer.using_config('use_cudnn', 'never'):
        expected = F.convolution_2d(x * 3, w).array
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        for _ in range(20):
            found = F.convolution_2d(x * 3, w).array
    stream.synchronize()
    assert_close([found], [expected], TOLERANCE['float32'])
    assert_close([F.convolution_2d(x * 3, w).array], [expected], TOLERANCE['float32'])


def test_views_and_misaligned_arrays_are_read_right():
    w = draw((8, 6, 3, 3), 'float32', 1)
    base = draw((4 * 6 * 16 * 16 + 1,), 'float32')
    for x in (base[1:].reshape(4, 6, 16, 16), draw((4, 6, 16, 20), 'float32').transpose(0, 1, 3, 2)):
        with chainer.using_config('use_cudnn', 'never'):
            expected = F.convolution_2d(x, w).array
        assert_close([F.convolution_2d(x, w).array], [expected], TOLERANCE['float32'])


def test_second_derivatives_are_those_of_chainers_own_kernels():
    def second():
        x, w = (chainer.Variable(draw(shape, 'float32', 5)) for shape in ((2, 4, 9, 9), (6, 4, 3, 3)))
        y = F.convolution_2d(x, w, stride=2, pad=1)
        gx, gw = chainer.grad([F.sum(y * y * y)], [x, w], enable_double_backprop=True)
        return [each.array for each in chainer.grad([F.sum(gx * gx) + F.sum(gw * gw)], [x, w])]

    found = second()
    with chainer.using_config('use_cudnn', 'never'):
        assert_close(found, second(), 1e-4)


def normalize(shape=(16, 64, 14, 14), dtype='float32', layout=None):
    """Output, gradients and statistics of a batch normalization in training, and the function."""
    channels = shape[1]
    gamma, beta, mean, var = (draw(channels, 'float32', seed) for seed in range(4))
    var = abs(var)
    inputs = [chainer.Variable(array) for array in (draw(shape, dtype, 4) + 3, gamma, beta)]
    y = F.batch_normalization(
        inputs[0].as_layout(layout), *inputs[1:], running_mean=mean, running_var=var, decay=0.8)
    function, y = y.creator, y.as_layout(None)
    y.grad = draw(shape, dtype, 5)
    y.backward()
    return [y.array, *(v.grad for v in inputs), mean, var, function.mean, function.inv_std], function


@pytest.mark.parametrize('dtype', ['float32', 'float16'])
@pytest.mark.parametrize('shape', [(16, 64, 14, 14), (4, 8, 1, 1), (3, 256, 7, 5), (2, 2048, 7, 7)])
def test_batch_normalization_is_that_of_chainers_own_kernels(dtype, shape):
    with chainer.using_config('ooc_workspace', '1GB'):
        found, _ = normalize(shape, dtype)
        made, refused = plans()
    with chainer.using_config('use_cudnn', 'never'):
        expected, _ = normalize(shape, dtype)
    assert len(made) + len(refused) == 2, 'forward and backward each ask for a plan'
    assert not refused or not HAS_ALL_ENGINES
    assert_close(found, expected, 1e-4 if dtype == 'float32' else TOLERANCE[dtype])


@pytest.mark.parametrize(('shape', 'dtype'), [
    ((64, 64, 56, 56), 'float32'), ((3, 5, 7, 9), 'float32'), ((2, 16, 128, 128), 'float16'),
    ((2, 6, 5, 8, 9), 'float32'), ((4, 12, 33), 'float64'), ((128, 70, 7, 7), 'float32'), ((9, 40, 14, 14), 'float16'),
    ((300, 5, 1, 1), 'float32'), ((1, 3, 1 << 20), 'float32')])
def test_batch_normalization_under_the_usual_limit_is_our_own_and_near_chainers_own(shape, dtype):
    with chainer.using_config('ooc_workspace', '1kB'):
        found, again = normalize(shape, dtype)[0], normalize(shape, dtype)[0]
    assert plans()[0] == []
    with chainer.using_config('use_cudnn', 'never'):
        expected, _ = normalize(shape, dtype)
    assert all((one == other).all() for one, other in zip(found, again, strict=True))
    assert_close(found, expected, 1e-4 if dtype != 'float16' else TOLERANCE[dtype])


@pytest.mark.parametrize(('shape', 'dtype'), [((8, 6, 16, 16), 'float32'), ((9, 40, 14, 14), 'float16')])
def test_our_own_batch_normalization_has_the_same_bits_at_any_address(shape, dtype):
    x, gy = draw(shape, dtype), draw(shape, dtype, 1)
    gamma, beta = draw(shape[1], 'float32', 2), draw(shape[1], 'float32', 3)

    def both_ways(x, gy):
        y, mean, var, inv_std = normalization.forward(x, gamma, beta, 2e-5, 0.9, None, None)
        return [each.tobytes() for each in (
            y, mean, var, inv_std, *normalization.backward(x, gamma, gy, mean, inv_std))]

    def shifted(array):
        moved = cupy.empty(array.size + 1, dtype)[1:].reshape(shape)
        moved[...] = array
        return moved

    assert both_ways(shifted(x), shifted(gy)) == both_ways(x, gy)


@pytest.mark.parametrize('workspace', ['1kB', '1GB'])
def test_batch_normalization_with_channels_last_gives_the_same(workspace):
    with chainer.using_config('ooc_workspace', workspace):
        found, _ = normalize((8, 64, 56, 56), layout='CUDNN_CHANNEL_LAST_X')
        expected, _ = normalize((8, 64, 56, 56))
    assert_close(found, expected, 1e-4)


def test_channels_last_gives_the_same():
    x, initial = draw((4, 8, 12, 12), 'float32'), np.random.default_rng(0).standard_normal((16, 8, 3, 3))

    def run(mode):
        with chainer.using_config('compute_mode', mode):
            link = chainer.links.Convolution2D(8, 16, 3, pad=1, initialW=initial)
            link.to_device('@cupy:0')
            return link(chainer.as_variable(x).as_layout(link.x_layout))

    y = run('cudnn_fast')
    assert y.layout is not None
    assert_close([y.as_layout(None).array], [run(None).array], TOLERANCE['float32'])
