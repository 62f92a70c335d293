"""One test per compatibility patch, each of which fails in the unpatched 7.8.1 on some supported Python or NumPy."""
import io
import json

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

FLOATS = ('float16', 'float32', 'float64')


def gradient(function, *inputs):
    variables = [chainer.Variable(x) for x in inputs]
    function(*variables).backward()
    return [variable.grad for variable in variables]


def test_0001_versions_are_compared_without_pkg_resources(site):
    pytest.importorskip('packaging')
    code = ('import sys\nsys.modules["pkg_resources"] = None\nimport chainer_ooc\n'
            'from chainer.testing import helper\n'
            'print(*(helper._is_satisfied([r]) for r in ("numpy>=1.20", "numpy<1.20", "no-such-package")))')
    assert site.output(code) == 'True False False'


@pytest.mark.parametrize('dtype', FLOATS)
def test_0002_as_strided_finds_its_dtypes(dtype):
    grad, = gradient(lambda x: F.sum(F.as_strided(x, (5, 4), (2, 1), 0)), np.arange(12, dtype=dtype))
    assert grad.tolist() == [1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1]


def test_0002_resize_images_finds_its_dtype():
    x = np.arange(12, dtype='f').reshape(1, 1, 3, 4)
    assert np.array_equal(F.resize_images(x, (5, 7)).array[:, :, ::2, ::2], x)


def test_0003_a_caffe_net_is_written_and_read(tmp_path):
    pytest.importorskip('google.protobuf')
    from chainer.exporters import caffe
    from chainer.links.caffe import CaffeFunction

    x = chainer.Variable(np.ones((1, 3, 4, 4), 'f'))
    model = chainer.Sequential(L.Convolution2D(3, 2, 3), F.relu)
    with chainer.using_config('train', False):
        caffe.export(model, [x], str(tmp_path), True, 'net')
        reader = CaffeFunction(str(tmp_path / 'chainer_model.caffemodel'))
        read, = reader({'data': x}, outputs=[reader.layers[-1][2][0]])
    assert np.array_equal(read.array, model(x).array)


def test_0004_categorical_has_a_log_probability_in_batches():
    p = np.array([[.2, .8], [.5, .5], [.9, .1]], 'f')
    found = chainer.distributions.Categorical(p=p).log_prob(np.array([1, 0, 0], 'i'))
    np.testing.assert_allclose(found.array, np.log([.8, .5, .9]), rtol=1e-6)


def test_0005_a_variable_on_the_cpu_says_so():
    assert '- device: CPU\n' in chainer.Variable(np.zeros(2, 'f')).debug_print()


@pytest.mark.parametrize('dtype', ['uint8', 'uint16', 'int8', 'float32'])
def test_0006_padding_is_cast_to_the_dtype_of_the_sequence(dtype):
    y = F.pad_sequence([np.ones(2, dtype), np.ones(1, dtype)], padding=-1).array
    assert y[1, 1] == np.array(-1).astype(dtype)


def test_0007_a_string_read_from_hdf5_is_a_string(tmp_path):
    h5py = pytest.importorskip('h5py')
    with h5py.File(tmp_path / 'x.h5', 'w') as group:
        group.create_dataset('log', data='[1, 2]')
        assert json.loads(chainer.serializers.HDF5Deserializer(group)('log', '')) == [1, 2]


@pytest.mark.parametrize('batch', [(), (2,)])
def test_0008_sparse_products_take_float16(batch):
    pytest.importorskip('scipy.sparse')
    a, b = np.eye(3, dtype='e') + np.zeros((*batch, 3, 3), 'e'), np.arange(6, dtype='e').reshape(3, 2)
    y = F.sparse_matmul(chainer.utils.to_coo(a), b + np.zeros((*batch, 3, 2), 'e'))
    assert y.dtype == 'e'
    assert np.array_equal(y.array, a @ b)


def test_0009_multiprocess_iterator_starts_where_warnings_are_errors(site):
    code = ('import chainer_ooc\nfrom chainer.iterators import MultiprocessIterator\n'
            'iterator = MultiprocessIterator(list(range(4)), 2, shuffle=False, n_processes=1)\n'
            'print(next(iterator))\niterator.finalize()')
    assert site.output(code, '-W', 'error') == '[0, 1]'


def test_0010_functions_that_numpy_deprecates_are_not_called():
    y = chainer.dataset.concat_examples([np.ones(1, 'f'), np.ones(3, 'f')], padding=0)
    assert y.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert F.fix(np.array([-1.5, 1.5], 'f')).array.tolist() == [-1, 1]
    shapes = []

    def fill(array):
        shapes.append(array.shape)
        array[...] = 1

    maxout = L.Maxout(2, 3, 4, initialW=fill, initial_bias=fill)
    assert shapes == [(3, 4, 2), (3, 4)]
    assert maxout(np.ones((1, 2), 'f')).array.tolist() == [[3, 3, 3]]


@pytest.mark.parametrize('dtype', FLOATS)
def test_0011_softmax_cross_entropy_multiplies_in_the_dtype_of_its_input(dtype):
    x, t = np.random.RandomState(0).randn(7, 5).astype(dtype), np.array([0, 1, -1, 2, 3, 4, -1], 'i')
    found, = gradient(lambda x: F.softmax_cross_entropy(x, t), x)
    expected = np.exp(F.log_softmax(x).array)
    expected[np.arange(7), t] -= 1
    expected *= (t >= 0).astype(dtype)[:, None]
    expected *= np.array(1 / 5).astype(dtype)
    assert found.dtype == dtype
    assert np.array_equal(found, expected)


@pytest.mark.parametrize('wrap', [np.float16, lambda x: np.array(x, 'e')], ids=['scalar', 'array'])
def test_0012_means_of_float16_losses_are_accumulated_in_float64(wrap):
    summary = chainer.reporter.Summary()
    for _ in range(3):
        summary.add(wrap(60000))
    mean, deviation = summary.make_statistics()
    assert (mean, deviation) == (np.float16(60000), 0)
    assert mean.dtype == np.float64


def test_0013_a_mean_over_many_float16_does_not_overflow():
    x = np.full(70000, 2.0 ** -7, 'e')
    assert F.mean_squared_error(x, np.zeros_like(x)).array == np.float16(x.dot(x) / np.float64(70000)) > 0


def test_0013_a_gradient_norm_of_several_float16_parameters_does_not_overflow():
    link = chainer.Chain()
    with link.init_scope():
        link.a, link.b = chainer.Parameter(0, 1), chainer.Parameter(0, 1)
    link.a.array = link.b.array = np.zeros(1, 'e')
    link.a.grad, link.b.grad = np.array([200], 'e'), np.array([200], 'e')  # 200 * 200 * 2 > 65504
    chainer.optimizer_hooks.GradientClipping(1)(chainer.optimizers.SGD(1).setup(link))
    assert link.a.grad.tolist() == link.b.grad.tolist() == [np.float16(200) * np.float16(1 / np.sqrt(80000))]


def test_0013_the_alias_method_draws_with_the_digits_of_float64():
    # The last threshold is what all other probabilities leave over: the errors of 2000 subtractions meet there.
    probabilities = np.random.RandomState(0).rand(2000).astype('f')
    alias = chainer.utils.WalkerAlias(probabilities)
    chances = np.zeros(2000)
    np.add.at(chances, alias.values[::2], alias.threshold / 2000.)
    np.add.at(chances, alias.values[1::2], (1 - alias.threshold.astype(float)) / 2000)
    wrong = abs(chances - probabilities / probabilities.sum(dtype=float)) > 1.5e-10
    assert wrong.sum() <= 1, 'one cell takes what is left'


def test_0014_corners_of_regions_are_rounded_as_in_float64():
    # 0.07 * 150 is 10.5 in float32, which rounds to the even 10, and 10.500000000000002 in float64.
    x = np.arange(144, dtype='f').reshape(1, 1, 12, 12)
    corners = np.array([[0, 0, 150, 150]], 'f')
    assert F.roi_pooling_2d(x, np.insert(corners, 0, 0, axis=1), 1, 1, 0.07).array.item() == x[0, 0, 11, 11]
    largest = F.roi_max_align_2d(x, corners, np.zeros(1, 'i'), 1, 0.07, 1).array.item()
    mean = F.roi_average_align_2d(x, corners, np.zeros(1, 'i'), 1, 0.07, 1).array.item()
    assert largest == mean == np.float32(0.07 * 75 * 13)


@pytest.mark.parametrize('own', [lambda numbers: numbers, lambda numbers: np.frombuffer(numbers, 'u1').copy()])
def test_0015_a_view_of_memory_that_is_no_array_of_that_dtype(own):
    x = np.frombuffer(own(np.arange(16, dtype='f').tobytes()), 'f')
    y = F.as_strided(x[2:10], (3, 2), (4, 1), 1)
    assert y.dtype == np.float32
    assert y.array.tolist() == [[1, 2], [5, 6], [9, 10]]
    with pytest.raises(ValueError, match='too large index'):
        F.as_strided(x, (17,), (1,), 0)


@pytest.mark.parametrize(('before', 'forked'), [
    ('', True), ('multiprocessing.pool.ThreadPool(1).terminate()', True),  # which has Python choose a default
    ('multiprocessing.set_start_method("spawn")', False),
    ('multiprocessing.set_start_method("forkserver"); multiprocessing.forkserver.ensure_running()', False)])
def test_0023_workers_are_forked_where_the_program_has_nothing_else(site, before, forked):
    code = (f'import chainer_ooc, multiprocessing, multiprocessing.pool, multiprocessing.forkserver\n{before}\n'
            'from chainer.iterators import multiprocess_iterator\n'
            'from chainer.training.extensions import snapshot_writers\n'
            'print(*[module.utils._process_context().Process.__name__\n'
            '        for module in (multiprocess_iterator, snapshot_writers)],\n'
            '      multiprocessing.get_start_method())')
    *found, method = site.output(code).split()
    assert (method == 'fork' or found == ['ForkProcess'] * 2) == forked


def test_0023_an_iterator_works_beside_a_pool_of_threads(site):
    code = ('import chainer_ooc\nfrom chainer.iterators import MultiprocessIterator, MultithreadIterator\n'
            'for kind in (MultithreadIterator, MultiprocessIterator):\n'
            '    iterator = kind(list(range(4)), 2, shuffle=False)\n'
            '    print(next(iterator))\n    iterator.finalize()')
    assert site.output(code) == '[0, 1]\n[0, 1]'


def test_0030_a_deconvolution_trains_where_its_input_has_no_gradient():
    link = L.Deconvolution2D(2, 3, 3)
    F.sum(link(np.ones((1, 2, 4, 4), 'f'))).backward()
    assert link.W.grad.shape == (2, 3, 3, 3)


def test_runtime_info_is_printed():
    text = io.StringIO()
    chainer.print_runtime_info(text)
    assert 'Chainer: 7.8.1' in text.getvalue()
