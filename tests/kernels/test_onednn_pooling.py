"""Pooling by oneDNN: values, indexes, gradients of both orders, and what NumPy goes on computing."""
import chainer_ooc  # noqa: F401  before chainer

# isort: split
import os
import subprocess
import sys
import textwrap
import threading

import chainer
import chainer.functions as F
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chainer_ooc.kernels.onednn import layouts, library, pooling
from support.convolutions import LAYOUTS, assert_close, computed, laid_out
from support.examples import examples
from support.onednn import AUTO, NEVER, needs_library
from support.poolings import ODD, TIES, poolings

PADS = st.sampled_from([0, None])
LOWEST = np.finfo(np.float32).min
float32_poolings = poolings(dtypes='f', values=(TIES, None))
# Image, and options: of GoogLeNet's kinds, of another number of axes, and of one window an image.
SHAPES = {
    'halves': ((2, 16, 21, 22), {'ksize': 3, 'stride': 2}),
    'same size': ((2, 24, 14, 13), {'ksize': 3, 'stride': 1, 'pad': 1}),
    'odd channels': ((3, 5, 11, 12), {'ksize': (2, 3), 'stride': (3, 2), 'pad': (0, 1)}),
    'one axis': ((3, 8, 30), {'ksize': 4, 'stride': 3}),
    'three axes': ((2, 17, 6, 7, 8), {'ksize': 3, 'stride': 2, 'pad': 1}),
    'global': ((2, 20, 7, 7), {'ksize': 7}),
}


def image(shape, values=None):
    random = np.random.default_rng(2)
    return (random.standard_normal(shape) if values is None else random.choice(values, shape)).astype(np.float32)


def pool(kind, shape):
    """The function that pools images of that name."""
    options = dict(SHAPES[shape][1])
    return {'max': lambda x: F.max_pooling_nd(x, **options), 'mean': lambda x: F.average_pooling_nd(x, **options),
            'mean of pixels': lambda x: F.average_pooling_nd(x, **options, pad_value=None)}[kind]


KINDS = ['max', 'mean', 'mean of pixels']


def max_pooled(entries, x, *options):
    """The node and what it returns, under entries of chainer.config."""
    with chainer.using_config('use_ideep', entries['use_ideep']):
        y = F.max_pooling_nd(chainer.Variable(x), *options)
    return y.creator, y.array


# --- values -----------------------------------------------------------------------------------------------------------


def within(kernel, pad):
    """Padding that leaves each window a pixel, which is what oneDNN serves."""
    return tuple(min(k - 1, p) for k, p in zip(kernel, pad, strict=True))


@needs_library
@examples(150)
@given(float32_poolings, st.booleans(), st.sampled_from(LAYOUTS))
def test_max_pooling(call, cover_all, layout):
    x, kernel, stride, pad = call
    options = kernel, stride, within(kernel, pad), cover_all
    exact = computed(NEVER, lambda x: F.max_pooling_nd(x, *options), [x.astype(np.float64)], layout)
    assume(np.isfinite(exact[0]).all())  # no window without a pixel after the image
    ours = computed(AUTO, lambda x: F.max_pooling_nd(x, *options), [x], layout)
    assert {each.dtype for each in ours} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(ours[0], exact[0])
    assert_close([each.astype(np.float64) for each in ours], exact, 2e-6)
    nodes = [max_pooled(entries, x, *options)[0] for entries in (AUTO, NEVER)]
    np.testing.assert_array_equal(nodes[0].indexes, nodes[1].indexes)


@needs_library
@examples(100)
@given(float32_poolings, PADS, st.sampled_from(LAYOUTS))
def test_average_pooling_nd(call, pad_value, layout):
    x, kernel, stride, pad = call
    options = kernel, stride, within(kernel, pad), pad_value
    layout = 'C' if layout == 'broadcast' else layout  # NumPy's way divides it in place
    exact = computed(NEVER, lambda x: F.average_pooling_nd(x, *options), [x.astype(np.float64)], layout)
    ours = computed(AUTO, lambda x: F.average_pooling_nd(x, *options), [x], layout)
    assert {each.dtype for each in ours} == {np.dtype(np.float32)}
    assert_close([each.astype(np.float64) for each in ours], exact, 2e-6)


@needs_library
@examples(50)
@given(poolings(st.just(2), dtypes='f', values=(TIES, None)), st.sampled_from(LAYOUTS))
def test_average_pooling_2d(call, layout):
    x, kernel, stride, pad = call
    options = kernel, stride, within(kernel, pad)
    exact = computed(NEVER, lambda x: F.average_pooling_2d(x, *options), [x.astype(np.float64)], layout)
    ours = computed(AUTO, lambda x: F.average_pooling_2d(x, *options), [x], layout)
    assert_close([each.astype(np.float64) for each in ours], exact, 2e-6)


@needs_library
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('shape', SHAPES)
def test_layers_of_networks_run_in_onednn(shape, kind, runs):
    found = computed(AUTO, pool(kind, shape), [image(SHAPES[shape][0])], twice=False)
    assert len(runs) == 2
    assert_close(found, computed(NEVER, pool(kind, shape), [image(SHAPES[shape][0])], twice=False), 2e-6)
    for each in found:
        assert layouts.is_channels_last(each)
        assert each.base is None


@needs_library
@examples(100)
@given(poolings(dtypes='f', values=(ODD, ODD[6:], np.array([LOWEST, -np.inf]))), st.booleans())
def test_maxima_of_what_is_not_finite_are_numpys(call, cover_all):
    x, kernel, stride, pad = call
    for options in ((kernel, stride, pad, cover_all), (kernel, stride, within(kernel, pad), cover_all)):
        ours, theirs = (max_pooled(entries, x, *options) for entries in (AUTO, NEVER))
        np.testing.assert_array_equal(ours[1], theirs[1])
        np.testing.assert_array_equal(ours[0].indexes, theirs[0].indexes)


@needs_library
@pytest.mark.parametrize('value', [np.nan, -np.inf, LOWEST])
def test_images_whose_maxima_onednn_would_not_find_leave_nodes_alike(value, runs, peak_scratch_bytes):
    x = layouts.channels_last(image((8, 64, 56, 57)))
    tame = max_pooled(AUTO, x, 3, 2)
    x[3, 30, 20:30, 20:30] = value
    ours, theirs = (max_pooled(entries, x, 3, 2) for entries in (AUTO, NEVER))
    assert len(runs) == 1
    for one, other in ((ours[0].indexes, tame[0].indexes), (ours[1], tame[1])):
        assert (one.dtype, one.strides) == (other.dtype, other.strides)
    np.testing.assert_array_equal(ours[1], theirs[1])
    np.testing.assert_array_equal(ours[0].indexes, theirs[0].indexes)
    assert peak_scratch_bytes(lambda: max_pooled(AUTO, x, 3, 2)) < 1.5 * x.nbytes  # NumPy's columns: 4.4 of them


@needs_library
@examples(50)
@given(poolings(dtypes='f', values=(ODD, ODD[6:], np.array([np.inf, 0, 1]))), PADS)
def test_means_of_what_is_not_finite_are_numpys(call, pad_value):
    x, kernel, stride, pad = call
    options = kernel, stride, within(kernel, pad), pad_value
    with np.errstate(invalid='ignore'):
        ours, theirs = (computed(entries, lambda x: F.average_pooling_nd(x, *options), [x], twice=False)[0]
                        for entries in (AUTO, NEVER))
    np.testing.assert_allclose(ours, theirs, rtol=2e-6)


@needs_library
@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('shape', SHAPES)
def test_a_gradient_that_is_not_finite_goes_where_numpys_goes(shape, kind, value):
    results = []
    for entries in (AUTO, NEVER):
        with chainer.using_config('use_ideep', entries['use_ideep']), np.errstate(invalid='ignore'):
            x = chainer.Variable(image(SHAPES[shape][0], TIES))
            y = pool(kind, shape)(x)
            y.grad = image(y.shape)
            y.grad[tuple(extent // 2 for extent in y.shape)] = value
            y.backward()
            results.append(x.grad)
    assert not np.isfinite(results[0]).all()
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)


# --- indexes ----------------------------------------------------------------------------------------------------------


@needs_library
@pytest.mark.parametrize(('kernel', 'dtype'), [((1, 1), 'u1'), ((15, 17), 'u1'), ((16, 16), 'i4'), ((17, 18), 'i4')])
def test_indexes_are_small_numbers_where_nobody_asks_for_them(kernel, dtype, runs):
    x = image((2, 6, 19, 20))
    ours, theirs = (max_pooled(entries, x, kernel, 1, within(kernel, (3, 4)))[0] for entries in (AUTO, NEVER))
    assert len(runs) == 1
    assert ours.indexes.dtype == dtype
    assert layouts.is_channels_last(ours.indexes)
    np.testing.assert_array_equal(ours.indexes, theirs.indexes)
    assert ours.indexes.max() == np.prod(kernel) - 1


@needs_library
def test_who_asks_for_indexes_gets_numpys(runs):
    x = image((2, 6, 9, 10), TIES)
    with chainer.using_config('use_ideep', 'auto'):
        variable = chainer.Variable(x)
        y, indexes = F.max_pooling_2d(variable, 3, 2, return_indices=True)
        y.grad = y.array
        y.backward()
    assert len(runs) == 2
    y, expected = F.max_pooling_2d(x, 3, 2, return_indices=True)
    assert (indexes.dtype, indexes.strides) == (expected.dtype, expected.strides)
    np.testing.assert_array_equal(indexes, expected)


@needs_library
@pytest.mark.parametrize('workspace', [None, '1MB'])
def test_whatever_reads_indexes_reads_those_of_onednn(workspace):
    x = image((2, 6, 9, 10), TIES)
    nodes = [max_pooled(entries, x, 3, 2, 1) for entries in (AUTO, NEVER)]
    results = []
    with chainer.using_config('use_ideep', 'never'), chainer.using_config('ooc_workspace', workspace):
        for node, y in nodes:
            raised = computed({}, lambda y, node=node: F.upsampling_2d(y, node.indexes, 3, 2, 1, (9, 10)), [y])
            gy = chainer.Variable(image(y.shape))
            gx, = node.backward((0,), (gy,))
            ggy, = chainer.grad([gx], [gy], [chainer.Variable(x)])
            results.append([*raised, gx.array, ggy.array])
    assert all(map(np.array_equal, *results))


@needs_library
@pytest.mark.parametrize('shape', SHAPES)
def test_the_entry_may_change_between_forward_and_backward(shape, runs):
    """Indexes of NumPy are read by oneDNN, and means need nothing but what both leave."""
    for kind in KINDS:
        expected = computed(NEVER, pool(kind, shape), [image(SHAPES[shape][0], TIES)], twice=False)
        for first, then in ((AUTO, NEVER), (NEVER, AUTO)):
            with chainer.using_config('use_ideep', first['use_ideep']):
                y = pool(kind, shape)(chainer.Variable(image(SHAPES[shape][0], TIES)))
            gy = np.random.default_rng(1).standard_normal(y.shape).astype(y.dtype)  # as `computed` does
            with chainer.using_config('use_ideep', then['use_ideep']):
                gx, = y.creator.backward((0,), (chainer.Variable(gy),))
            assert_close([gx.array], [expected[1]], 2e-6)
    assert len(runs) == 2 * len(KINDS)


# --- bits, memory, processes ------------------------------------------------------------------------------------------


@needs_library
@pytest.mark.parametrize('layout', LAYOUTS[1:])
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('shape', SHAPES)
def test_bits_depend_on_no_layout_and_no_run(shape, kind, layout):
    laid = laid_out(image(SHAPES[shape][0]), layout)
    expected = computed(AUTO, pool(kind, shape), [np.ascontiguousarray(laid)])
    for given_x in (laid, np.ascontiguousarray(laid)):
        assert all(map(np.array_equal, computed(AUTO, pool(kind, shape), [given_x]), expected))


@needs_library
def test_threads_that_compute_at_once_give_the_same_bits():
    images = [image(SHAPES['halves'][0]) * scale for scale in (1, 2, -3, 5)]

    def bits(x):
        return [each.tobytes() for kind in KINDS for each in computed(AUTO, pool(kind, 'halves'), [x])]
    expected = [bits(x) for x in images]
    found = [[] for _ in images]

    def compute(number):
        for _ in range(20):
            found[number].append(bits(images[number]))
    threads = [threading.Thread(target=compute, args=(number,)) for number in range(len(images))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [[each] * 20 for each in expected]


@needs_library
@pytest.mark.parametrize('kind', KINDS)
def test_nothing_of_a_maps_size_is_copied(kind, peak_scratch_bytes):
    x = layouts.channels_last(image((4, 32, 41, 42)))
    with chainer.using_config('use_ideep', 'auto'):
        def forward():
            return pool(kind, 'halves')(x)
        y = forward()
        gy = chainer.Variable(layouts.channels_last(image(y.shape)))
        objects_bytes = y.array.nbytes / 5  # 1.5 kB, and 34 kB where the interpreter's stack grows by a chunk (3.13)
        assert peak_scratch_bytes(forward) < objects_bytes
        assert peak_scratch_bytes(lambda: y.creator.backward((0,), (gy,))) < objects_bytes


@needs_library
def test_the_gradient_that_a_caller_gives_is_left_alone():
    x = chainer.Variable(image((1, 3, 4, 4)))
    with chainer.using_config('use_ideep', 'auto'):
        y = F.average_pooling_nd(x, 3, 2, 1, pad_value=None)
        y.grad = np.ones_like(y.array)
        y.backward(retain_grad=True)
    assert (y.grad == 1).all()


@needs_library
@pytest.mark.parametrize('backward', [False, True])
@pytest.mark.parametrize('refused', [False, True])
def test_what_is_given_up_is_destroyed(backward, refused, monkeypatch):
    made, destroyed, call = [], [], library.Library.call

    def watched(self, name, *arguments):
        call(self, name, *arguments)
        (destroyed if name.endswith('_destroy') else made).append(name)
    monkeypatch.setattr(library.Library, 'call', watched)
    of = pooling.Pooling((1, 2, 5, 5), (1, 2, 3, 3), (3, 3), (1, 1), (0, 0))
    if refused:
        monkeypatch.setattr(library.Library, 'equal', lambda self, one, other: False)
        with pytest.raises(library.UnsupportedError, match='another layout'):
            pooling.pooling.__wrapped__(of, pooling.MAXIMUM, backward)
    else:
        computation = pooling.pooling.__wrapped__(of, pooling.MAXIMUM, backward)
        del computation
    for kind in ('memory_desc', 'primitive_desc', 'primitive'):
        begins = f'{kind}_create' if kind != 'primitive_desc' else 'pooling_'
        assert sum(name.startswith(begins) for name in made) == destroyed.count(f'{kind}_destroy')
    assert destroyed.count('memory_desc_destroy') == 3


@needs_library
def test_a_forked_child_computes():
    """Its parent's OpenMP threads are not there, so that it makes its own primitives."""
    code = textwrap.dedent("""
        import os
        import chainer_ooc, chainer, numpy as np
        import chainer.functions as F
        from chainer_ooc.kernels.onednn import pooling
        x = np.arange(4 * 8 * 60 * 60, dtype='f').reshape(4, 8, 60, 60) % 71
        with chainer.using_config('use_ideep', 'auto'):
            F.max_pooling_2d(x, 3)
            child = os.fork()
            if not child:
                assert not pooling.pooling.cache_info().currsize
                os._exit(int(F.max_pooling_2d(x, 60).array[0, 0, 0, 0] + F.max_pooling_2d(x, 3).array[0, 0, 0, 0]))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    done = subprocess.run([sys.executable, '-c', code], env={**os.environ, 'OMP_NUM_THREADS': '4'}, timeout=60,
                          capture_output=True, text=True)
    assert done.stdout == f'{70 + 62}\n', done.stderr


# --- what stays NumPy's -----------------------------------------------------------------------------------------------


@needs_library
@pytest.mark.parametrize(('kernel', 'stride', 'pad', 'cover_all'), [
    (2, 1, 2, False), (1, 1, 1, True), ((1, 3), 2, (1, 0), True), (2, 4, 0, True)])
def test_windows_without_a_pixel_are_computed_by_numpy(kernel, stride, pad, cover_all, runs):
    x = image((2, 3, 7, 7))
    options = kernel, stride, pad, cover_all
    calls = [lambda x: F.max_pooling_2d(x, *options)]
    if not cover_all:
        calls += [lambda x: F.average_pooling_2d(x, *options[:3]), lambda x: F.average_pooling_nd(x, *options[:3])]
    for call in calls:
        assert all(map(np.array_equal, computed(AUTO, call, [x]), computed(NEVER, call, [x])))
    assert runs == []


@needs_library
@pytest.mark.parametrize('dtype', 'ed')
@pytest.mark.parametrize('kind', KINDS)
def test_other_dtypes_are_computed_by_numpy(kind, dtype, runs):
    x = image(SHAPES['halves'][0]).astype(dtype)
    assert all(map(np.array_equal, computed(AUTO, pool(kind, 'halves'), [x]),
                   computed(NEVER, pool(kind, 'halves'), [x])))
    assert runs == []


@needs_library
@pytest.mark.parametrize('kind', KINDS)
def test_gradients_of_other_dtypes_than_the_image_are_computed_by_numpy(kind, runs):
    results = []
    for entries in (AUTO, NEVER):
        with chainer.using_config('use_ideep', entries['use_ideep']):
            y = pool(kind, 'halves')(chainer.Variable(image(SHAPES['halves'][0]).astype(np.float64)))
            gx, = y.creator.backward((0,), (chainer.Variable(image(y.shape)),))
            results.append(gx.array)
    assert runs == []
    assert results[0].dtype == results[1].dtype
    assert np.array_equal(*results)


@needs_library
@pytest.mark.parametrize('kind', KINDS)
def test_what_onednn_cannot_do_is_computed_by_numpy(kind, monkeypatch):
    def unsupported(*arguments):
        raise library.UnsupportedError('none')
    monkeypatch.setattr(pooling, 'pooling', unsupported)
    x = image(SHAPES['halves'][0])
    assert all(map(np.array_equal, computed(AUTO, pool(kind, 'halves'), [x]),
                   computed(NEVER, pool(kind, 'halves'), [x])))


@needs_library
def test_images_too_small_are_refused_as_ever():
    messages = []
    for entries in (AUTO, NEVER):
        with pytest.raises(AssertionError) as refused:
            computed(entries, lambda x: F.max_pooling_2d(x, 9, 1, 0, False), [image((1, 2, 3, 3))])
        messages.append(str(refused.value))
    assert messages[0] == messages[1]
