"""Convolution and batch normalization by oneDNN: values, gradients, bits, scratch, and what NumPy goes on computing."""
import chainer_ooc

# isort: split
import gc
import itertools
import os
import subprocess
import sys
import textwrap
import threading
import tracemalloc

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.backends.host import onednn as presence
from chainer_ooc.kernels.onednn import layouts, library, primitives, seam
from support.combinations import spread
from support.convolutions import (
    LAYOUTS,
    SHAPES,
    arrays_for,
    assert_close,
    computed,
    convolutions,
    convolve,
    laid_out,
)
from support.examples import examples
from support.onednn import AUTO, NEVER, needs_library


def float32(arrays):
    return [each.astype(np.float32, order='K') for each in arrays]


# --- values -----------------------------------------------------------------------------------------------------------


def assert_as_close_as_float32_can_be(function, arrays, layout):
    exact = computed(NEVER, function, [each.astype(np.float64) for each in arrays], layout)
    ours = computed(AUTO, function, float32(arrays), layout)
    assert {each.dtype for each in ours} == {np.dtype(np.float32)}
    assert_close([each.astype(np.float64) for each in ours], exact, 2e-5)


@needs_library
@examples(60)
@given(convolutions(), st.sampled_from(LAYOUTS))
def test_convolution_nd(call, layout):
    assert_as_close_as_float32_can_be(lambda *x: F.convolution_nd(*x, **call[1]), call[0], layout)


@needs_library
@examples(40)
@given(convolutions(st.just(2)), st.sampled_from(LAYOUTS))
def test_convolution_2d(call, layout):
    assert_as_close_as_float32_can_be(lambda *x: F.convolution_2d(*x, **call[1]), call[0], layout)


@needs_library
@examples(40)
@given(convolutions(transposed=True), st.sampled_from(LAYOUTS))
def test_deconvolution_nd(call, layout):
    assert_as_close_as_float32_can_be(lambda *x: F.deconvolution_nd(*x, **call[1]), call[0], layout)


@needs_library
@examples(40)
@given(convolutions(st.just(2), transposed=True), st.sampled_from(LAYOUTS))
def test_deconvolution_2d(call, layout):
    assert_as_close_as_float32_can_be(lambda *x: F.deconvolution_2d(*x, **call[1]), call[0], layout)


@needs_library
@pytest.mark.parametrize('shape', SHAPES)
def test_layers_of_networks_run_in_onednn(shape, runs):
    assert_as_close_as_float32_can_be(convolve(shape), arrays_for(shape), 'C')
    assert len(runs) >= 3


# --- bits -------------------------------------------------------------------------------------------------------------


@needs_library
@pytest.mark.parametrize('layout', LAYOUTS[1:])
@pytest.mark.parametrize('shape', SHAPES)
def test_bits_depend_on_no_layout_and_no_run(shape, layout):
    x, *others = arrays_for(shape)
    laid = laid_out(x, layout)
    expected = computed(AUTO, convolve(shape), [np.ascontiguousarray(laid), *others])
    for given_x in (laid, np.ascontiguousarray(laid)):
        found = computed(AUTO, convolve(shape), [given_x, *others])
        assert all(map(np.array_equal, found, expected))


@needs_library
def test_results_lie_channels_last_and_own_their_memory():
    y, gx, gw, gb = computed(AUTO, convolve('mirrored'), arrays_for('mirrored'), twice=False)
    for each in (y, gx):
        assert layouts.is_channels_last(each)
        assert each.base is None
    assert gw.flags.c_contiguous
    assert gb.flags.c_contiguous


class Net(chainer.Chain):
    """Convolutions of several kinds, batch normalization, maxima and means."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.c1, self.b1 = L.Convolution2D(3, 8, 3, pad=1, nobias=True), L.BatchNormalization(8)
            self.c2, self.b2 = L.Convolution2D(8, 8, 3, pad=1, groups=2), L.BatchNormalization(8)
            self.d1, self.fc = L.Deconvolution2D(8, 4, 2, stride=2), L.Linear(None, 5)

    def forward(self, x, t):
        h = F.max_pooling_2d(F.relu(self.b1(self.c1(x))), 3, stride=2)
        h = F.relu(self.b2(self.c2(h)) + h)
        return F.softmax_cross_entropy(self.fc(F.average_pooling_2d(F.relu(self.d1(h)), 2)), t)


def train(policy, budget=None, iterations=4):
    """Losses and parameters, to the last bit."""
    random = np.random.RandomState(1)
    model, losses = Net(), []
    optimizer = chainer.optimizers.MomentumSGD(lr=0.01).setup(model)
    batch = random.uniform(-1, 1, (8, 3, 16, 16)).astype('f'), random.randint(0, 5, 8).astype('i')
    with chainer.using_config('use_ideep', 'auto'), chainer.using_config('ooc', policy), \
            chainer.using_config('ooc_budget', budget), chainer.using_config('ooc_min_bytes', 0):
        for _ in range(iterations):
            optimizer.update(model, *batch)
            losses.append(float(model(*batch).array).hex())
    stats = chainer_ooc.stats() if policy else None
    chainer_ooc.reset()
    return losses, [each.array.tobytes() for _, each in sorted(model.namedparams())], stats


@needs_library
@pytest.mark.parametrize('policy', spread(list(chainer_ooc.policies()), every=4, first=1))
def test_every_policy_gives_the_same_bits(policy):
    losses, parameters, _ = train(None)
    assert train(policy)[:2] == (losses, parameters)
    from chainer_ooc.errors import InfeasibleBudgetError
    with pytest.raises(InfeasibleBudgetError) as refused:
        train(policy, 1)
    chainer_ooc.reset()
    found = train(policy, int(refused.value.floor_bytes * 1.05))
    assert found[:2] == (losses, parameters)
    assert found[2].peak_bytes <= found[2].budget_bytes


@needs_library
def test_threads_that_compute_at_once_give_the_same_bits():
    arrays = arrays_for('mirrored')
    expected = computed(AUTO, convolve('mirrored'), arrays)
    found = []

    def compute():
        for _ in range(20):
            found.append(computed(AUTO, convolve('mirrored'), arrays))
    threads = [threading.Thread(target=compute) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 80
    assert all(np.array_equal(a, b) for each in found for a, b in zip(each, expected, strict=True))


# --- memory and processes ---------------------------------------------------------------------------------------------


@needs_library
def test_scratch_is_seen_where_memory_is_measured():
    """A gradient of weights that takes scratch: what NumPy allocates meanwhile has it."""
    x, gy = (np.random.default_rng(0).random(shape, 'f4') for shape in ((16, 256, 14, 14), (16, 64, 7, 7)))
    of = primitives.Convolution(x.shape, (64, 256, 1, 1), gy.shape, (2, 2), (1, 1), (0, 0), 1)
    computation = primitives.convolution(of, primitives.WEIGHTS_GRADIENT)
    given = {primitives.SOURCE: layouts.channels_last(x), primitives.RESULT_GRADIENT: layouts.channels_last(gy),
             primitives.WEIGHTS_GRADIENT: np.empty(of.w_shape, np.float32)}
    assert computation.scratch_bytes > 0
    tracemalloc.start()
    try:
        computation.run(given)
        assert tracemalloc.get_traced_memory()[1] >= computation.scratch_bytes
    finally:
        tracemalloc.stop()


@needs_library
def test_calls_keep_nothing():
    arrays = arrays_for('first layer')
    computed(AUTO, convolve('first layer'), arrays)
    made = primitives.convolution.cache_info().misses
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            computed(AUTO, convolve('first layer'), arrays)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < arrays[0].nbytes  # ctypes keeps some 25 kB
    finally:
        tracemalloc.stop()
    assert primitives.convolution.cache_info().misses == made


@needs_library
def test_what_is_given_up_is_destroyed(monkeypatch):
    destroyed, call = [], library.Library.call

    def watched(self, name, *arguments):
        if name.endswith('_destroy'):
            destroyed.append(name)
        return call(self, name, *arguments)
    computation = primitives.convolution.__wrapped__(
        primitives.Convolution((1, 2, 5, 5), (3, 2, 3, 3), (1, 3, 3, 3), (1, 1), (1, 1), (0, 0), 1),
        primitives.RESULT, True)
    monkeypatch.setattr(library.Library, 'call', watched)
    del computation
    assert destroyed.count('primitive_destroy') == destroyed.count('primitive_desc_destroy') >= 1
    assert destroyed.count('memory_desc_destroy') == 4


@needs_library
def test_a_forked_child_computes():
    """Its parent's OpenMP threads are not there."""
    code = textwrap.dedent("""
        import os, sys
        import chainer_ooc, chainer, numpy as np
        import chainer.functions as F
        x, w = np.ones((4, 8, 30, 30), 'f'), np.ones((8, 8, 3, 3), 'f')
        with chainer.using_config('use_ideep', 'auto'):
            F.convolution_2d(x, w)
            child = os.fork()
            if not child:
                os._exit(int(F.convolution_2d(x, w).array[0, 0, 0, 0]))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    done = subprocess.run([sys.executable, '-c', code], env={**os.environ, 'OMP_NUM_THREADS': '4'}, timeout=60,
                          capture_output=True, text=True)
    assert done.stdout == '72\n', done.stderr


# --- what stays NumPy's -----------------------------------------------------------------------------------------------


@needs_library
@pytest.mark.parametrize('dtypes', ['eee', 'ddd', 'fdf', 'dfd'])
def test_other_dtypes_are_computed_by_numpy(dtypes, runs):
    arrays = arrays_for('first layer', dtypes)
    assert all(map(np.array_equal, computed(AUTO, convolve('first layer'), arrays, twice=False),
                   computed(NEVER, convolve('first layer'), arrays, twice=False)))
    assert runs == []


@needs_library
def test_empty_batches_are_computed_by_numpy(runs):
    y = computed(AUTO, lambda x: x * 1, [np.empty((0, 3, 5, 5), 'f')], twice=False)[0]
    with chainer.using_config('use_ideep', 'auto'):
        assert F.convolution_2d(y, np.ones((2, 3, 3, 3), 'f')).shape == (0, 2, 3, 3)
    assert runs == []


@needs_library
def test_what_onednn_cannot_do_is_computed_by_numpy(monkeypatch):
    def unsupported(*arguments):
        raise library.UnsupportedError('none')
    monkeypatch.setattr(primitives, 'convolution', unsupported)
    arrays = arrays_for('mirrored')
    assert all(map(np.array_equal, computed(AUTO, convolve('mirrored'), arrays),
                   computed(NEVER, convolve('mirrored'), arrays)))


@needs_library
def test_a_call_that_fails_says_which():
    message = r'oneDNN failed: invalid arguments \(dnnl_primitive_create, .*libdnnl'
    with pytest.raises(library.OneDnnError, match=message):
        library.load().created('primitive_create', None)


@pytest.fixture
def absent(monkeypatch):
    """OneDNN is not installed."""
    monkeypatch.setattr(presence, 'places', lambda: iter([('libdnnl-that-is-not-there.so', None)]))
    monkeypatch.setattr(seam, 'load', lambda: None)


def test_without_the_library_auto_is_numpy(absent):
    arrays = arrays_for('mirrored')
    assert all(map(np.array_equal, computed(AUTO, convolve('mirrored'), arrays),
                   computed(NEVER, convolve('mirrored'), arrays)))


def test_without_the_library_always_says_how_to_get_it(absent):
    with pytest.raises(OSError, match=r"oneDNN cannot be loaded .*pip install 'chainer-ooc\[cpu\]'"):
        computed({'use_ideep': 'always'}, convolve('mirrored'), arrays_for('mirrored'))


def test_a_value_that_chainer_does_not_know_is_refused():
    with pytest.raises(ValueError, match=r"'sometimes'.*'always', 'auto' or 'never'"):
        computed({'use_ideep': 'sometimes'}, convolve('mirrored'), arrays_for('mirrored'))


def test_never_imports_nothing():
    code = ("import sys, chainer_ooc, chainer, numpy as np; import chainer.functions as F;"
            "F.convolution_2d(np.ones((1, 1, 3, 3), 'f'), np.ones((1, 1, 3, 3), 'f'));"
            "print([name for name in sys.modules if 'onednn' in name])")
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True,
                          env={**os.environ, 'CHAINER_USE_IDEEP': 'never'})
    assert done.stdout == '[]\n'


def test_channels_last_arrays():
    for axes, extents in itertools.product(range(2, 6), ((2, 3, 4, 5, 6), (1, 3, 1, 5, 1), (2, 1, 4, 1, 6))):
        shape = extents[:axes]
        array = layouts.empty(shape)
        assert array.shape == shape
        assert layouts.is_channels_last(array)
        assert np.moveaxis(array, 1, -1).flags.c_contiguous
        plain = np.empty(shape, np.float32)
        assert layouts.is_channels_last(plain) == np.moveaxis(plain, 1, -1).flags.c_contiguous
