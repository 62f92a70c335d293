"""ReLU, its gradient and sums by oneDNN: NumPy's bits, whatever the numbers, sizes and layouts."""
import chainer_ooc  # noqa: F401

# isort: split
import os
import subprocess
import sys
import threading

import chainer
import chainer.functions as F
import numpy as np
import pytest

from chainer_ooc.kernels.onednn import elementwise, layouts, library
from support.convolutions import computed

pytestmark = pytest.mark.skipif(library.load() is None, reason='oneDNN is not installed (extra cpu)')
AUTO, NEVER = {'use_ideep': 'auto'}, {'use_ideep': 'never'}
KINDS = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1.5, -2.5, 1e-40, -1e-40, 3e38, -3e38], np.float32)


@pytest.fixture
def runs(runs, monkeypatch):
    """The arguments of every primitive that runs; arrays of all sizes are oneDNN's, in some number of threads."""
    for name in ('LEAST_ELEMENTS', 'LEAST_ELEMENTS_OF_GRADIENTS', 'LEAST_ELEMENTS_OF_SUMS'):
        monkeypatch.setattr(elementwise, name, 1)
    monkeypatch.setattr(library.Library, 'threads', lambda self: 2)
    for chain in (elementwise.RELU, elementwise.RELU_GRADIENT, *map(elementwise.sum_of, (2, 3, 5, 16))):
        elementwise.computation(chain, 7)  # its trial runs too
    runs.clear()
    return runs


def pairs(copies=1):
    """Every pair of numbers of all kinds."""
    return np.tile(np.repeat(KINDS, KINDS.size), copies), np.tile(np.tile(KINDS, KINDS.size), copies)


def assert_same_bits(ours, theirs):
    """NaNs are one: which NaN a sum of two gives is the processor's choice."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        is_nan = np.isnan(b)
        assert np.array_equal(np.isnan(a), is_nan)
        assert a[~is_nan].tobytes() == b[~is_nan].tobytes()


def both_ways(function, *arrays):
    """What a function gives with oneDNN and without; the first must have NumPy's bits."""
    with np.errstate(all='ignore'):
        found, expected = ([each.array for each in _called(entries, function, arrays)] for entries in (AUTO, NEVER))
    assert_same_bits(found, expected)
    return found


def _called(entries, function, arrays):
    with chainer.using_config('use_ideep', entries['use_ideep']):
        results = function(*arrays)
    return results if isinstance(results, (list, tuple)) else [results]


def relu_grad(y, gy):
    from chainer.functions.activation.relu import ReLUGrad2
    return ReLUGrad2(y).apply((gy,))


FUNCTIONS = {
    'relu': (F.relu, 1), 'gradient': (relu_grad, 2), 'sum': (F.add, 2), 'three': (F.add, 3), 'five': (F.add, 5)}


def terms(count, shape, seed=0):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape, np.float32) for _ in range(count)]


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('name', FUNCTIONS)
@pytest.mark.parametrize('copies', [1, 7])
def test_numbers_of_all_kinds(name, copies, runs):
    function, count = FUNCTIONS[name]
    both_ways(function, *[np.roll(pairs(copies)[number % 2], number // 2) for number in range(count)])
    assert len(runs) == 1


def test_nan_stays_nan_and_minus_zero_becomes_zero(runs):
    with chainer.using_config('use_ideep', 'auto'):
        y = F.relu(np.array([np.nan, -0.0, np.inf, -np.inf] * 9, 'f')).array[:4]
    assert np.isnan(y[0])
    assert y[1:].tobytes() == np.array([0, np.inf, 0], 'f').tobytes()
    assert runs


@pytest.mark.parametrize('name', FUNCTIONS)
@pytest.mark.parametrize('size', [1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1000, 4097])
def test_sizes(name, size, runs):
    function, count = FUNCTIONS[name]
    both_ways(function, *terms(count, (size,)))
    assert len(runs) == 1


@pytest.mark.parametrize(('chain', 'threshold'), [
    ('relu', 'LEAST_ELEMENTS'), ('gradient', 'LEAST_ELEMENTS_OF_GRADIENTS'), ('sum', 'LEAST_ELEMENTS_OF_SUMS')])
def test_small_arrays_are_numpys(chain, threshold, runs, monkeypatch):
    function, count = FUNCTIONS[chain]
    monkeypatch.setattr(elementwise, threshold, 1000)
    both_ways(function, *terms(count, (27, 37)))
    assert runs == []
    both_ways(function, *terms(count, (10, 100)))
    assert len(runs) == 1


def test_gradients_of_both_orders(runs):
    def twice(x):
        h = F.relu(x)
        return F.relu(h * h + x) + h
    x, = terms(1, (4, 3, 5, 7))
    assert_same_bits(computed(AUTO, twice, [x]), computed(NEVER, twice, [x]))
    assert len(runs) > 6


def test_gradients_that_meet_are_summed(runs):
    def branches(x):
        return x * 1 + x * 2 + x * 3 + x * 4
    x = terms(1, (40, 50))
    assert_same_bits(computed(AUTO, branches, x, twice=False), computed(NEVER, branches, x, twice=False))
    assert len(runs) == 6  # three sums, and three of gradients


# --- layouts and memory -----------------------------------------------------------------------------------------------


def last(array):
    return layouts.channels_last(array)


def transposed(array):
    return np.ascontiguousarray(array.T).T


def permuted(array):
    return np.ascontiguousarray(array.transpose(2, 0, 3, 1)).transpose(1, 3, 0, 2)


@pytest.mark.parametrize('name', FUNCTIONS)
@pytest.mark.parametrize('lay', [np.ascontiguousarray, last, transposed, permuted])
@pytest.mark.parametrize('shape', [(4, 3, 5, 7), (4, 1, 5, 7), (1, 6, 1, 5)])
def test_results_keep_the_layout_and_own_their_memory(name, lay, shape, runs):
    function, count = FUNCTIONS[name]
    arrays = [lay(each) for each in terms(count, shape)]
    y, = both_ways(function, *arrays)
    assert len(runs) == 1
    assert y.base is None
    assert [step for step, extent in zip(y.strides, shape, strict=True) if extent > 1] == [
        step for step, extent in zip(arrays[0].strides, shape, strict=True) if extent > 1]
    assert not any(np.shares_memory(y, each) for each in arrays)


@pytest.mark.parametrize('name', ['gradient', 'sum', 'three'])
@pytest.mark.parametrize('threads', [1, 2])
@pytest.mark.parametrize('which', [0, 1])
def test_c_contiguous_arrays_beside_channels_last_ones_are_copied(name, threads, which, runs, monkeypatch):
    monkeypatch.setattr(library.Library, 'threads', lambda self: threads)
    function, count = FUNCTIONS[name]
    arrays = terms(count, (4, 3, 5, 7))
    arrays[which] = last(arrays[which])
    before = [each.copy() for each in arrays]
    y, = both_ways(function, *arrays)
    assert layouts.is_channels_last(y)
    assert len(runs) == (name == 'gradient' or threads > 1)
    assert all(map(np.array_equal, arrays, before))


@pytest.mark.parametrize('name', FUNCTIONS)
@pytest.mark.parametrize('cut', [
    np.s_[:, :2], np.s_[..., 1:], np.s_[..., ::-1], np.s_[:, ::2], np.s_[::-1]])
def test_arrays_with_gaps_or_backwards_are_numpys(name, cut, runs):
    function, count = FUNCTIONS[name]
    both_ways(function, *[each[cut] for each in terms(count, (4, 3, 5, 7))])
    assert runs == []


@pytest.mark.parametrize('name', FUNCTIONS)
def test_broadcast_arrays_are_numpys(name, runs):
    function, count = FUNCTIONS[name]
    both_ways(function, *[np.broadcast_to(each, (4, 3, 5)) for each in terms(count, (3, 5))])
    assert runs == []


def test_operands_of_other_shapes_and_layouts_are_numpys(runs):
    x, = terms(1, (4, 3, 5, 7))
    for other in (x[:1], x[:, :1], permuted(x), last(x)[..., ::-1]):
        both_ways(F.add, x, other)
        both_ways(F.add, last(x), other)
        both_ways(F.add, x, x, other)
    both_ways(F.add, x[0, 0], x)
    both_ways(relu_grad, x, permuted(x))
    assert runs == []


def test_arrays_that_begin_anywhere(runs):
    memory = terms(1, 4000)[0]
    for start in range(1, 9):
        both_ways(relu_grad, memory[start:start + 1000], memory[2000 + 2 * start:3000 + 2 * start])
    assert len(runs) == 8
    unaligned = np.frombuffer(b'x' + memory.tobytes(), np.float32, 1000, 1)
    both_ways(F.relu, unaligned)
    assert len(runs) == 8


@pytest.mark.parametrize('name', ['gradient', 'sum', 'three'])
def test_one_array_given_twice(name, runs):
    function, count = FUNCTIONS[name]
    x, = terms(1, (40, 50))
    before = x.copy()
    both_ways(function, *[x] * count)
    assert np.array_equal(x, before)
    assert len(runs) == 1


# --- what is NumPy's --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('name', FUNCTIONS)
@pytest.mark.parametrize('dtype', [np.float64, np.float16])
def test_other_dtypes_are_numpys(name, dtype, runs):
    function, count = FUNCTIONS[name]
    both_ways(function, *[each.astype(dtype) for each in terms(count, (40, 50))])
    assert runs == []


class Labelled(np.ndarray):
    """A subclass."""


def test_subclasses_are_numpys(runs):
    x = terms(1, (40, 50))[0].view(Labelled)
    both_ways(F.add, x, x)
    both_ways(F.relu, x)
    assert runs == []


def test_empty_arrays_and_single_numbers(runs):
    for name in FUNCTIONS:
        function, count = FUNCTIONS[name]
        both_ways(function, *[np.empty((0, 3), 'f')] * count)
        both_ways(function, *terms(count, ()))


def test_sums_of_very_many_are_numpys(runs):
    both_ways(F.add, *terms(17, (40, 50)))
    assert runs == []
    both_ways(F.add, *terms(16, (40, 50)))
    assert len(runs) == 1


def test_sums_in_one_thread_are_numpys(runs, monkeypatch):
    monkeypatch.setattr(library.Library, 'threads', lambda self: 1)
    both_ways(F.add, *terms(2, (40, 50)))
    both_ways(F.add, *terms(3, (40, 50)))
    assert runs == []


def test_a_chain_with_other_bits_is_numpys(runs, monkeypatch):
    """Maxima that make 0 of NaN, as another processor or version may."""
    lossy = elementwise.Chain(elementwise.RELU.operations[:1], elementwise.RELU.operands[:2])
    monkeypatch.setattr(elementwise, 'RELU', lossy)
    with pytest.raises(library.UnsupportedError, match='not compute this as NumPy does'):
        elementwise.computation(lossy, 2000)
    runs.clear()
    both_ways(F.relu, *terms(1, (40, 50)))
    assert runs == []


def test_a_chain_that_is_not_compiled_is_numpys(runs, monkeypatch):
    monkeypatch.setattr(library.Library, 'implementation', lambda *_: 'ref:any')
    with pytest.raises(library.UnsupportedError, match='slow'):
        elementwise.computation.__wrapped__(elementwise.RELU, 121)


# --- making, threads and processes ------------------------------------------------------------------------------------


def test_what_onednn_has_not_is_asked_for_once():
    asked = []

    def make(size):
        asked.append(size)
        raise library.UnsupportedError(f'none of {size}')
    made = library.made_once(4)(make)
    for size in (1, 1, 2, 1):
        with pytest.raises(library.UnsupportedError, match=f'none of {size}'):
            made(size)
    assert asked == [1, 2]
    made.cache_clear()
    with pytest.raises(library.UnsupportedError):
        made(1)
    assert asked == [1, 2, 1]


def test_a_failure_of_another_kind_is_not_kept():
    answers = [MemoryError('full'), 'computation']

    def make():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer
    made = library.made_once(4)(make)
    with pytest.raises(MemoryError):
        made()
    assert made() == made() == 'computation'


def test_what_is_given_up_is_destroyed(counts):
    primitive = elementwise.computation.__wrapped__(elementwise.RELU, 121)
    assert counts['post_ops_destroy'] == counts['primitive_attr_destroy'] == counts['primitive_attr_create'] == 1
    del primitive
    assert counts['memory_desc_destroy'] == counts['memory_desc_create_with_strides'] == 5
    assert counts['primitive_destroy'] == counts['primitive_desc_destroy'] == 1


def test_threads_that_compute_at_once_give_the_same_bits(runs):
    y, gy = terms(2, (1 << 18,))
    expected = (gy * (y > 0)).tobytes()
    found = []

    def compute():
        found.extend(elementwise.relu_grad(y, gy)[0].tobytes() == expected for _ in range(10))
    with chainer.using_config('use_ideep', 'auto'):
        threads = [threading.Thread(target=compute_under_auto, args=(compute,)) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert found == [True] * 40


def compute_under_auto(compute):
    with chainer.using_config('use_ideep', 'auto'):
        compute()


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork')
def test_a_forked_child_computes_with_computations_of_its_own():
    code = (
        "import chainer_ooc, chainer, os, sys, numpy as np\n"
        "from chainer_ooc.kernels.onednn import elementwise\n"
        "chainer.config.use_ideep = 'auto'\n"
        "x = np.random.default_rng(0).standard_normal(1 << 20, np.float32)\n"
        "y = elementwise.relu(x)[0]\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    had = elementwise.computation.cache_info().currsize\n"
        "    os._exit(had or elementwise.relu(x)[0].tobytes() != y.tobytes())\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n")
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], timeout=120, check=False,
                          env={**os.environ, 'OMP_NUM_THREADS': '2'})
    assert done.returncode == 0
