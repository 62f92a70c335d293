"""What a convolution costs before its launch: the functions that run, and its way into NVIDIA's package."""
import ctypes
import importlib
import pathlib
import sys
import threading
from types import SimpleNamespace

import chainer_ooc

# isort: split
import chainer
import numpy as np
import pytest
from chainer.functions.connection import convolution_2d, deconvolution_2d

from chainer_ooc.kernels import cudnn as offered
from chainer_ooc.kernels.cudnn import execution, facade, handles, launch, settings
from chainer_ooc.kernels.cudnn.operations import Convolution, Port
from chainer_ooc.kernels.cudnn.settings import PlanSettings
from support.fake_cudnn import Engine, current

#: Python functions of ours that one convolution may run, with scratch and without a bias, beside `CupyDevice`'s four.
MOST_FUNCTIONS = 25
CONVOLUTION = Convolution(Port.Y, (2, 3, 8, 8), (4, 3, 3, 3), (2, 4, 8, 8), (1, 1), (1, 1), (1, 1), 'float32')
TERMS = PlanSettings(1000, False, False)
PACKAGE = str(pathlib.Path(chainer_ooc.__file__).parent)


def draw(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype('f')


def convolve(handle, terms=TERMS, height=8):
    x, w, y = draw(2, 3, height, 8), draw(4, 3, 3, 3), np.full((2, 4, height, 8), np.nan, 'f')
    assert facade.convolve(handle, terms, Port.Y, x, w, y, ((1, 1),) * 3)
    return y


def functions_of_ours(call):
    """The names of those that run."""
    names = []

    def note(frame, event, argument):
        if event == 'call' and frame.f_code.co_filename.startswith(PACKAGE):
            names.append(frame.f_code.co_name)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return names


def calls_of_a_layer():
    """A convolution and its two gradients, as Chainer's functions call for them."""
    x, w, gy = draw(2, 4, 8, 8), draw(4, 4, 3, 3), draw(2, 4, 8, 8)
    forward = convolution_2d.Convolution2DFunction(1, 1)
    data = deconvolution_2d.Deconvolution2DFunction(1, 1, outsize=(8, 8))
    weights = convolution_2d.Convolution2DGradW(forward, w.shape, w.dtype, None)
    for function in (forward, data, weights):
        function._input_layouts = (None, None)
    return [lambda: offered.convolution(forward, x, w, None), lambda: offered.deconvolution(data, gy, w, None),
            lambda: offered.convolution_grad_w(weights, x, gy)]


@pytest.mark.parametrize('entries', [{}, {'use_cudnn_tensor_core': 'always', 'autotune': True}])
def test_a_convolution_that_ran_before_runs_few_functions(cudnn, ours, monkeypatch, entries):
    cudnn.engines[:] = [Engine(workspace_bytes=1000)]
    monkeypatch.setattr(execution, '_fastest', {})
    monkeypatch.setattr(handles.library, 'load', lambda: cudnn)
    monkeypatch.setattr(handles.CupyDevice, 'number', lambda self: 0)
    monkeypatch.setitem(handles._of_thread.__dict__, 'handles', {0: ours})
    for name, value in entries.items():
        monkeypatch.setattr(chainer.config, name, value)
    for number, call in enumerate(calls_of_a_layer(), 1):
        for _ in range(2):
            assert call() is not None
        executed = cudnn.graphs[-1].executed
        names = functions_of_ours(call)
        assert len(names) <= MOST_FUNCTIONS, names
        assert (len(cudnn.graphs), cudnn.graphs[-1].executed) == (number, executed)


@pytest.mark.parametrize('has_native', [True, False])
def test_the_first_run_is_by_execute_and_later_ones_by_what_it_ends_with_if_that_is_there(cudnn, ours, has_native):
    cudnn.has_native = has_native
    expected = convolve(ours)
    for _ in range(3):
        np.testing.assert_array_equal(convolve(ours), expected)
    graph, = cudnn.graphs
    assert (graph.runs, graph.executed) == (4, 1 if has_native else 4)


def test_the_numbers_that_a_normalization_reads_on_the_host_are_there_in_later_runs_too(cudnn, ours):
    x, gamma, beta = draw(2, 3, 5, 4), draw(4), draw(4) + 1
    found = [facade.batch_normalization_forward_training(ours, TERMS, x, gamma, beta, 0.5, channels_last=True)
             for _ in range(3)]
    for other in found[1:]:
        for one, first in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(one, first)
    graph, = cudnn.graphs
    assert (graph.runs, graph.executed) == (3, 1)


@pytest.mark.parametrize('change', ['signature', 'order', 'index', 'engine', 'handle'])
def test_what_another_version_may_have_otherwise_leaves_all_runs_to_execute(cudnn, ours, monkeypatch, change):
    with monkeypatch.context() as before:
        before.setattr(ours, 'launch', lambda *_: None)
        convolve(ours)
    graph, = cudnn.graphs
    if change == 'signature':
        monkeypatch.setattr(launch, 'SIGNATURE', 'other')
    elif change == 'order':
        monkeypatch.setattr(graph._lowered_graph, '_get_variant_pack_uids_sorted', lambda: [2, 1, 3])
    elif change == 'index':
        graph._plans = [SimpleNamespace(cpp_index=None)]
    elif change == 'engine':
        graph.selected_engine = 'of Python'
    else:
        monkeypatch.delattr(type(ours._handle), 'backend_handle')
    for _ in range(3):
        convolve(ours)
    assert (graph.runs, graph.executed) == (3, 3)


def test_a_launch_needs_an_address_for_each_array():
    seen = []

    def native(begin, count, workspace, handle, index):
        seen.append(([*(ctypes.c_uint64 * count).from_address(begin)], workspace, handle, index))
    made = launch.Launch(native, 5, [1, 2, 3, 8], {8: 800})
    handle = SimpleNamespace(backend_handle=77)
    made.run({3: 300, 1: 100, 2: 200}, None, handle)
    made.run({1: 101, 2: 201, 3: 2**63}, 16, handle)
    assert seen == [([100, 200, 300, 800], 0, 77, 5), ([101, 201, 2**63, 800], 16, 77, 5)]
    with pytest.raises(AssertionError):
        made.run({1: 102, 2: 202}, 16, handle)
    with pytest.raises(KeyError):
        made.run({1: 102, 2: 202, 8: 802}, 16, handle)


def test_a_handle_is_given_a_stream_where_it_is_another_than_before(cudnn, ours, device):
    for device.current_stream in (7, 7, 8, 8, 8, 7):  # the fake refuses another stream
        convolve(ours)
    assert cudnn.streams_set == 3


def test_a_call_that_is_known_is_a_use_of_its_plan(cudnn, ours, monkeypatch):
    monkeypatch.setattr(handles, 'MOST_PLANS', 2)
    for height in (8, 9, 8, 10, 8, 9):
        convolve(ours, height=height)
    assert [graph.tensors[0].dim[2] for graph in cudnn.graphs] == [8, 9, 10, 9]


def test_entries_are_those_of_the_calling_thread_at_each_call(monkeypatch):
    seen = []

    def look():
        seen.append((settings.wanted(), current(np.dtype('f'))))
    off, on = PlanSettings(None, False, False), PlanSettings(None, True, True)
    with chainer.using_config('use_cudnn_tensor_core', 'always'), chainer.using_config('cudnn_deterministic', True):
        look()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    look()
    for name, value in (('use_cudnn_tensor_core', 'always'), ('cudnn_deterministic', True), ('use_cudnn', 'never')):
        monkeypatch.setattr(chainer.global_config, name, value)
    for name in settings.ENTRIES:  # what using_config leaves behind goes before the global one
        chainer.config._local.__dict__.pop(name, None)
    look()
    with chainer.using_config('use_cudnn', 'auto'):
        look()
    chainer.config._local.__dict__.pop('use_cudnn', None)  # 'never', as the global entry is until this test ends
    assert seen == [(True, on), (True, off), (True, off), (False, on), (True, on)]


@pytest.fixture
def wheel():
    return pytest.importorskip('cudnn', reason='needs nvidia-cudnn-frontend')


def test_the_installed_package_takes_a_launch_in_this_form(wheel):
    native = wheel._pybind_module.backend_graph
    assert native._execute_with_raw_ptrs.__doc__.strip() == launch.SIGNATURE
    assert callable(native._get_variant_pack_uids_sorted)


@pytest.mark.parametrize('scratch', [None, 4096])
def test_a_launch_gives_the_library_what_execute_gives_it(wheel, scratch):
    seen = []

    class Native:
        """The graph in C++, which only a GPU can run."""

        def _prepare_variant_pack_template(self):
            pass

        def _get_variant_pack_uids_sorted(self):
            return [1, 2, 3]

        def _execute_with_raw_ptrs(self, begin, count, workspace, handle, index=-1):
            seen.append(([*(ctypes.c_uint64 * count).from_address(begin)], workspace, handle, index))

        _execute_with_raw_ptrs.__doc__ = wheel._pybind_module.backend_graph._execute_with_raw_ptrs.__doc__

    graph = wheel.pygraph(
        name='chainer', io_data_type=wheel.data_type.FLOAT, intermediate_data_type=wheel.data_type.FLOAT,
        compute_data_type=wheel.data_type.FLOAT, handle=None)
    CONVOLUTION.describe(wheel, graph)
    config = importlib.import_module('cudnn.engines.base').PlanConfig
    graph._lowered_graph, graph._plans, graph._plan_index = Native(), [config(3, {}, cpp_index=5)], 0
    graph._is_built = graph._planning_done = True
    handle, addresses = wheel.Handle(12345, 0, 7), {2: 0x2000, 3: 0x3000, 1: 0x1000}
    graph.execute(addresses, scratch, handle=handle)
    launch.direct(graph, handle, [1, 2, 3], {}).run(addresses, scratch, handle)
    assert seen == [([0x1000, 0x2000, 0x3000], scratch or 0, 12345, 5)] * 2
