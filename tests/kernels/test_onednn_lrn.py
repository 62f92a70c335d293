"""Local response normalization by oneDNN: values, what it leaves for its gradient, and what NumPy goes on computing."""
import chainer_ooc

# isort: split
import chainer
import chainer.functions as F
import numpy as np
import pytest

from chainer_ooc.kernels.onednn import layouts, library, lrn, primitives
from support.convolutions import LAYOUTS, assert_close, computed, laid_out

needs_library = pytest.mark.skipif(library.load() is None, reason='oneDNN is not installed (extra cpu)')
AUTO, NEVER = {'use_ideep': 'auto'}, {'use_ideep': 'never'}
SHAPE = 3, 32, 6, 7


def is_compiled():
    if library.load() is None:
        return False
    try:
        return bool(lrn.computations(lrn.Response(SHAPE, 2, 1e-4, 0.75)))
    except library.UnsupportedError:
        return False


needs_code = pytest.mark.skipif(not is_compiled(), reason="oneDNN's normalization is slow on this processor")


def images(shape=SHAPE, scale=30):
    return np.random.default_rng(0).standard_normal(shape) * scale


def normalize(**numbers):
    return lambda x: F.local_response_normalization(x, **numbers)


@needs_code
@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('numbers', [{}, {'k': 1}, {'alpha': 0.01}, {'n': 4, 'alpha': 0.01}])
def test_values_and_gradients(numbers, layout, runs):
    x = laid_out(images(), layout)
    exact = computed(NEVER, normalize(**numbers), [x], layout, twice=False)
    ours = computed(AUTO, normalize(**numbers), [x.astype('f', order='K')], layout, twice=False)
    assert {each.dtype for each in ours} == {np.dtype('f')}
    assert_close([each.astype(np.float64) for each in ours], exact, 2e-5)
    assert len(runs) == 2


@needs_library
@pytest.mark.parametrize('n', [1, 3, 7])
def test_other_numbers_of_neighbours_are_numpys(n, runs):
    x = images().astype('f')
    for a, b in zip(*(computed(entries, normalize(n=n), [x], twice=False) for entries in (AUTO, NEVER)), strict=True):
        assert np.array_equal(a, b)
    assert runs == []


@needs_code
@pytest.mark.parametrize('channels', [1, 3, 15, 16, 17, 48, 192])
def test_numbers_of_channels(channels):
    x = images((2, channels, 5, 4))
    ours = computed(AUTO, normalize(alpha=0.01), [x.astype('f')], twice=False)
    exact = computed(NEVER, normalize(alpha=0.01), [x], twice=False)
    assert_close([each.astype(np.float64) for each in ours], exact, 2e-5)


@needs_code
def test_results_are_channels_last_and_own_their_memory(runs):
    y, gx = computed(AUTO, normalize(), [images().astype('f')], twice=False)
    assert all(map(layouts.is_channels_last, (y, gx)))
    assert y.base is gx.base is None
    assert len(runs) == 2


@needs_code
def test_the_result_is_not_kept_for_the_gradient():
    x = chainer.Variable(images().astype('f'))
    with chainer.using_config('use_ideep', 'auto'):
        y = F.local_response_normalization(x)
    assert y.creator.get_retained_outputs() == ()
    assert [each is x for each in y.creator.get_retained_inputs()] == [True]


@needs_code
def test_nan_stays_where_it_was(runs):
    x = images().astype('f')
    x[1, 7, 2, 3] = np.nan
    y, _ = computed(AUTO, normalize(), [x], twice=False)
    expected, _ = computed(NEVER, normalize(), [x], twice=False)
    assert np.isnan(expected).sum() == 5
    assert np.array_equal(np.isnan(y), np.isnan(expected))
    assert runs


@needs_code
def test_the_gradient_is_onednns_where_the_result_was(runs):
    """Whatever the setting is by then: what the gradient needs is in oneDNN's layout."""
    x = chainer.Variable(images().astype('f'))
    with chainer.using_config('use_ideep', 'auto'):
        y = F.local_response_normalization(x)
    assert y.creator.scale is None
    assert y.creator.indexes.nbytes == 2 * x.array.nbytes
    y.grad = np.ones_like(y.array)
    y.backward()
    assert len(runs) == 2
    with chainer.using_config('use_ideep', 'auto'):
        assert np.array_equal(x.grad, computed_gradient(x.array))


def computed_gradient(x):
    x = chainer.Variable(x)
    y = F.local_response_normalization(x)
    y.grad = np.ones_like(y.array)
    y.backward()
    return x.grad


@needs_code
def test_everything_that_is_left_for_the_gradient_is_written():
    """What is computed again has the bits of the first time."""
    of = lrn.computations(lrn.Response(SHAPE, 2, 1e-4, 0.75))
    left = [np.full(of.workspace_bytes, each, np.uint8) for each in (0, 255)]
    for each in left:
        of.forward.run({primitives.SOURCE: layouts.channels_last(images().astype('f')),
                        primitives.RESULT: layouts.empty(SHAPE), 64: each})
    assert np.array_equal(*left)


class Net(chainer.Chain):
    """Two normalizations."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.conv = chainer.links.Convolution2D(3, 16, 3, pad=1)
            self.fc = chainer.links.Linear(None, 5)

    def forward(self, x, t):
        h = F.local_response_normalization(F.relu(self.conv(x)))
        return F.softmax_cross_entropy(self.fc(F.local_response_normalization(h)), t)


@needs_code
@pytest.mark.parametrize('policy', chainer_ooc.policies())
def test_every_policy_gives_the_same_bits(policy):
    assert gradients_under(policy) == gradients_under(None)


def gradients_under(policy):
    random = np.random.RandomState(1)
    batch, model = (random.uniform(-1, 1, (8, 3, 16, 16)).astype('f'), random.randint(0, 5, 8).astype('i')), Net()
    optimizer = chainer.optimizers.MomentumSGD(lr=0.01).setup(model)
    with chainer.using_config('use_ideep', 'auto'), chainer.using_config('ooc', policy), \
            chainer.using_config('ooc_min_bytes', 0):
        for _ in range(4):
            optimizer.update(model, *batch)
    chainer_ooc.reset()
    return [each.array.tobytes() for _, each in sorted(model.namedparams())]


@needs_library
@pytest.mark.parametrize('given', [
    images().astype(np.float16), images(), images((2, 32, 5)).astype('f'), images((2, 32, 2, 3, 4)).astype('f'),
    images((0, 32, 5, 5)).astype('f'), images().astype('f').view(type('Labelled', (np.ndarray,), {}))],
    ids=['float16', 'float64', 'one axis', 'three axes', 'empty', 'subclass'])
def test_other_arrays_are_numpys(given, runs):
    for a, b in zip(*(computed(entries, normalize(), [given], twice=False) for entries in (AUTO, NEVER)), strict=True):
        assert np.array_equal(a, b)
    assert runs == []


@needs_library
def test_what_is_not_compiled_is_numpys(runs, monkeypatch):
    monkeypatch.setattr(library.Library, 'implementation', lambda *_: 'ref:any')
    x = images((2, 16, 3, 9)).astype('f')
    for a, b in zip(*(computed(entries, normalize(), [x], twice=False) for entries in (AUTO, NEVER)), strict=True):
        assert np.array_equal(a, b)
    assert runs == []


@needs_code
def test_what_is_given_up_is_destroyed(counts):
    made = lrn.computations.__wrapped__(lrn.Response(SHAPE, 2, 1e-4, 0.75))
    del made
    assert counts['primitive_destroy'] == counts['primitive_desc_destroy'] == 2
    assert counts['memory_desc_destroy'] == counts['memory_desc_create_with_strides'] + counts['memory_desc_clone'] == 8
