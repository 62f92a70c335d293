"""Which plan is made, how often, and that what is asked of NVIDIA's package is what the installed one has."""
import ast
import inspect
import os
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import numpy as np
import pytest
from chainer.backends import cuda

from chainer_ooc.backends.cuda import preparations
from chainer_ooc.kernels import cudnn as offered
from chainer_ooc.kernels.cudnn import facade, handles, library, plan, settings
from chainer_ooc.kernels.cudnn.operations import BatchNormalization, Convolution, Port, strides
from chainer_ooc.kernels.cudnn.settings import PlanSettings
from support import fake_cudnn
from support.fake_cudnn import Engine, HostDevice, Library, current, heur_mode, numerical_note

A, B, FALLBACK = heur_mode.A, heur_mode.B, heur_mode.FALLBACK
CONVOLUTION = Convolution(Port.Y, (2, 3, 8, 8), (4, 3, 3, 3), (2, 4, 8, 8), (1, 1), (1, 1), (1, 1), 'float32')
NORMALIZATION = BatchNormalization(True, (2, 4, 8, 8), 'float32', True, 1e-5)
OPERATIONS = [
    CONVOLUTION, replace(CONVOLUTION, result=Port.X), replace(CONVOLUTION, result=Port.W, channels_last=True),
    NORMALIZATION, BatchNormalization(False, (2, 4, 8, 8, 8), 'float16', False)]
TERMS = PlanSettings(1000, False, False)


def chosen(cudnn, operation=CONVOLUTION, **changes):
    made = plan.make(cudnn, cudnn.create_handle(), operation, replace(TERMS, **changes))
    return None if made is None else cudnn.built[-1].engine.name


def test_the_first_suggestion_within_the_limit_is_taken(cudnn):
    cudnn.engines[:] = [Engine('greedy', 1001), Engine('fits', 1000), Engine('small', 0)]
    assert chosen(cudnn) == 'fits'
    assert chosen(cudnn, workspace_bytes=999) == 'small'
    assert chosen(cudnn, workspace_bytes=1001) == 'greedy'


def test_a_convolution_that_no_suggestion_serves_within_the_limit_takes_a_fallback_above_it(cudnn):
    cudnn.engines[:] = [Engine('greedy', 5000), Engine('modest', 1008, modes=(FALLBACK,))]
    assert chosen(cudnn) == 'modest'


def test_without_a_limit_a_convolution_may_copy_each_of_its_arrays(cudnn):
    wide = replace(CONVOLUTION, x_shape=(64, 3, 80, 80), y_shape=(64, 4, 80, 80))
    itemsize, pixels = 4, 64 * 80 * 80
    most_bytes = (8 << 20) + itemsize * (2 * 4 * pixels + 4 * 4 * 3 * 3)  # three channels are copied as four
    cudnn.engines[:] = [Engine('greedy', most_bytes + 1), Engine('channels last', most_bytes), Engine('slow', 0)]
    assert chosen(cudnn, wide, workspace_bytes=None) == 'channels last'
    assert chosen(cudnn, replace(wide, dtype='float16'), workspace_bytes=None) == 'channels last'
    assert chosen(cudnn, wide, workspace_bytes=8 << 20) == 'slow'
    assert chosen(cudnn, CONVOLUTION, workspace_bytes=None) == 'slow'


def test_without_a_limit_a_normalization_has_what_needs_no_copies_of_maps(cudnn):
    channels_first = BatchNormalization(True, (64, 4, 80, 80), 'float32', False, 1e-5)
    assert chosen(cudnn, channels_first, workspace_bytes=None) is None
    assert cudnn.graphs == []
    assert chosen(cudnn, NORMALIZATION, workspace_bytes=None) is not None


def test_deterministic_takes_no_engine_that_gives_other_bits_the_next_time(cudnn):
    cudnn.engines[:] = [Engine('atomic', notes=(numerical_note.NONDETERMINISTIC,)), Engine('ordered')]
    assert [chosen(cudnn, deterministic=value) for value in (False, True)] == ['atomic', 'ordered']
    assert [chosen(cudnn, NORMALIZATION, deterministic=value) for value in (False, True)] == ['atomic', 'ordered']


def test_tensor_cores_are_for_whoever_asks_and_halves_for_nobody_with_float32(cudnn):
    cudnn.engines[:] = [Engine('halves', notes=(numerical_note.DOWN_CONVERT_INPUTS, numerical_note.TENSOR_CORE)),
                        Engine('TF32', notes=(numerical_note.TENSOR_CORE,)), Engine('exact')]
    assert [chosen(cudnn, tensor_cores=value) for value in (False, True)] == ['exact', 'TF32']
    half = replace(CONVOLUTION, dtype='float16')
    assert [chosen(cudnn, half, tensor_cores=value) for value in (False, True)] == ['exact', 'halves']


def test_kernels_of_the_python_package_are_not_taken(cudnn):
    cudnn.engines[:] = [Engine('norm_fprop_sm100'), Engine('frost_conv'), Engine('eng0')]
    assert chosen(cudnn) == chosen(cudnn, NORMALIZATION) == 'eng0'


def test_a_normalization_is_asked_about_only_where_there_is_hope(cudnn):
    first = BatchNormalization(True, (2, 4, 8, 8), 'float32', False, 1e-5)
    nbytes = 2 * 4 * 8 * 8 * 4
    for forward, copies in ((True, 2), (False, 3)):
        operation = replace(first, forward=forward)
        assert operation.is_hopeless(copies * nbytes - 1)
        assert not operation.is_hopeless(copies * nbytes)
    assert not NORMALIZATION.is_hopeless(0)
    assert replace(NORMALIZATION, dtype='float16').is_hopeless(1 << 40)
    assert chosen(cudnn, first, workspace_bytes=2 * nbytes - 1) is None
    assert cudnn.graphs == []


def test_a_plan_is_made_once_for_the_same_shapes_and_terms(cudnn, ours):
    cudnn.engines[:] = [Engine('large', 900), Engine('small', 100)]
    first = ours.find(CONVOLUTION, TERMS)
    assert ours.find(replace(CONVOLUTION), replace(TERMS)) is first
    assert len(cudnn.graphs) == 1
    assert ours.find(CONVOLUTION, replace(TERMS, workspace_bytes=899)).workspace_bytes == 100
    assert ours.find(CONVOLUTION, TERMS) is first
    for other in ({'pad': (0, 1)}, {'stride': (2, 1)}, {'dilation': (1, 2)}, {'dtype': 'float16'},
                  {'channels_last': True}, {'filter_last': True}):
        y = (2, 4, *((8 + 2 * p - d * 2 - 1) // s + 1 for p, s, d in zip(
            other.get('pad', (1, 1)), other.get('stride', (1, 1)), other.get('dilation', (1, 1)), strict=True)))
        assert ours.find(replace(CONVOLUTION, y_shape=y, **other), TERMS) is not first
    assert len(cudnn.graphs) == 8


def test_a_plan_that_is_made_counts_as_a_preparation(ours):
    before = preparations.total()
    for _ in range(2):
        ours.find(CONVOLUTION, TERMS)
    assert preparations.total() == before + 1


def test_the_plan_that_was_not_used_for_longest_goes_first(cudnn, ours, monkeypatch):
    monkeypatch.setattr(handles, 'MOST_PLANS', 2)
    one, two, three = (replace(NORMALIZATION, x_shape=(n, 4, 8, 8)) for n in (1, 2, 3))
    for operation in (one, two, one, three, one, two):
        ours.find(operation, TERMS)
    assert len(cudnn.graphs) == 4  # one, two, three, and two again


def test_a_plan_that_cudnn_fails_at_is_warned_about_and_not_tried_again(cudnn, ours):
    def fail(**arguments):
        raise RuntimeError('CUDNN_STATUS_BAD_PARAM')

    cudnn.pygraph = fail
    with pytest.warns(RuntimeWarning, match=r'Convolution\(.*CUDNN_STATUS_BAD_PARAM.*own kernels') as seen:
        assert [ours.find(CONVOLUTION, TERMS) for _ in range(2)] == [None, None]
    assert len(seen) == 1


def test_no_memory_for_the_scratch_is_the_callers_to_hear(cudnn, ours, device, monkeypatch):
    cudnn.engines[:] = [Engine(workspace_bytes=100)]

    def refuse(nbytes):
        raise MemoryError(nbytes)

    monkeypatch.setattr(device, 'scratch', refuse)
    x, w, y = (np.zeros(shape, 'f') for shape in (CONVOLUTION.x_shape, CONVOLUTION.w_shape, CONVOLUTION.y_shape))
    with pytest.raises(MemoryError, match='100'):
        facade.convolve(ours, TERMS, Port.Y, x, w, y, ((1, 1),) * 3)


def test_a_plan_runs_on_the_stream_that_is_current_then(ours, device):
    x, w, y = (np.zeros(shape, 'f') for shape in (CONVOLUTION.x_shape, CONVOLUTION.w_shape, CONVOLUTION.y_shape))
    for device.current_stream in (7, 8, 7):  # the fake refuses another stream
        assert facade.convolve(ours, TERMS, Port.Y, x, w, y, ((1, 1),) * 3)


def test_each_thread_and_each_device_has_a_session_of_its_own(cudnn, monkeypatch):
    number = 0
    monkeypatch.setattr(library, 'load', lambda: cudnn)
    monkeypatch.setattr(handles.CupyDevice, 'number', lambda self: number)
    mine = handles.current()
    assert handles.current() is mine
    number = 1
    assert handles.current() is not mine
    number = 0
    others = []
    thread = threading.Thread(target=lambda: others.append(handles.current()))
    thread.start()
    thread.join()
    assert others[0] not in (None, mine)
    assert [stream is None for stream in cudnn.handles.values()] == [False] * 3
    handles.forget()
    assert [stream is None for stream in cudnn.handles.values()] == [True] * 3
    assert handles.current() is not mine
    handles.forget()


def test_threads_one_after_the_other_share_a_session_and_its_plans(cudnn, device, monkeypatch):
    """As a program that runs each backward pass in a thread of its own."""
    monkeypatch.setattr(library, 'load', lambda: cudnn)
    monkeypatch.setattr(handles, '_DEVICE', device)
    monkeypatch.setattr(device, 'number', lambda: 0, raising=False)
    found = []

    def ask():
        ours = handles.current()
        x, w, y = (np.zeros(shape, 'f') for shape in (CONVOLUTION.x_shape, CONVOLUTION.w_shape, CONVOLUTION.y_shape))
        assert facade.convolve(ours, TERMS, Port.Y, x, w, y, ((1, 1),) * 3)
        found.append(ours)

    for device.current_stream in (7, 8, 8):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert len(found) == 3
    assert len({id(each) for each in found}) == len(cudnn.handles) == len(cudnn.graphs) == 1
    found.clear()
    handles.forget()
    assert [stream is None for stream in cudnn.handles.values()] == [True]


def test_a_forked_child_destroys_no_handle_of_its_parent(cudnn, device):
    ours = handles.Handle(cudnn, device)
    child = os.fork()
    if not child:
        status = 1
        try:
            ours.close()
            status = 0 if [stream is None for stream in cudnn.handles.values()] == [False] else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ours.close()
    assert [stream is None for stream in cudnn.handles.values()] == [True]


def test_a_library_that_gives_no_handle_is_warned_of_once_and_training_goes_on(cudnn, monkeypatch):
    def refuse():
        raise RuntimeError('the driver is too old')

    monkeypatch.setattr(library, 'load', lambda: cudnn)
    monkeypatch.setattr(handles.CupyDevice, 'number', lambda self: 0)
    monkeypatch.setattr(cudnn, 'create_handle', refuse)
    handles.forget()
    with pytest.warns(RuntimeWarning, match='the driver is too old') as warned:
        assert [handles.current() for _ in range(3)] == [None] * 3
    assert len(warned) == 1
    handles.forget()


@pytest.mark.parametrize(('version', 'backend', 'message'), [
    ('1.31.9', 92800, '1.31.9 is older than 1.32'), ('1.32.0', 8907, 'version 8907')])
def test_what_is_too_old_is_named(monkeypatch, version, backend, message):
    monkeypatch.setitem(sys.modules, 'cudnn', fake_cudnn.module(version, backend))
    with pytest.raises(library.UnusableLibraryError, match=message):
        library.find()
    monkeypatch.setitem(sys.modules, 'cudnn', fake_cudnn.module())
    assert library.find().backend_version() == 92800


def test_terms_follow_chainers_configuration():
    single, half = np.dtype('float32'), np.dtype('float16')
    assert current(single) == PlanSettings(None, False, False)
    assert current(half).tensor_cores
    for setting, expected in (('always', (True, True)), ('auto', (False, True)), ('never', (False, False))):
        with chainer.using_config('use_cudnn_tensor_core', setting):
            assert tuple(current(dtype).tensor_cores for dtype in (single, half)) == expected
    with (chainer.using_config('cudnn_deterministic', True), chainer.using_config('autotune', True),
          chainer.using_config('ooc_workspace', '1kB')):
        assert current(single) == PlanSettings(1000, True, False, True)


def test_the_limit_of_all_threads_is_chainers_own_function(monkeypatch):
    monkeypatch.setattr(settings, '_max_workspace_bytes', None)
    monkeypatch.setattr(cuda, 'available', True)
    assert cuda.get_max_workspace_size() == 8 << 20
    cuda.set_max_workspace_size(123)
    assert cuda.get_max_workspace_size() == current(np.dtype('f')).workspace_bytes == 123


@pytest.mark.parametrize(('entry', 'read'), [
    ('use_cudnn', settings.wanted), ('use_cudnn_tensor_core', lambda: current(np.dtype('f')))])
def test_a_setting_that_chainer_does_not_know_is_refused(entry, read):
    with chainer.using_config(entry, 'sometimes'), pytest.raises(ValueError, match='"always", "auto" or "never"'):
        read()


def test_strides_are_those_of_numpy():
    shape = (2, 3, 4, 5)
    assert strides(shape, False) == tuple(step // 4 for step in np.zeros(shape, 'f').strides)
    last = np.zeros((2, 4, 5, 3), 'f').transpose(0, 3, 1, 2)
    assert strides(shape, True) == tuple(step // 4 for step in last.strides)


def test_arrays_of_cupy_say_where_they_are_and_how_they_lie():
    cupy = pytest.importorskip('cupy', reason='needs CuPy')
    host = np.zeros(4096 + 16, np.uint8)
    start = -host.ctypes.data % 16
    memory = cupy.cuda.memory.UnownedMemory(host.ctypes.data, host.nbytes, host, 0)

    def array(offset):
        return cupy.ndarray((2, 3, 4, 5), 'float32', cupy.cuda.memory.MemoryPointer(memory, start + offset))

    aligned = array(0)
    assert facade._ready(aligned) is aligned
    assert handles.CupyDevice().address(aligned) == facade._address(aligned) == host.ctypes.data + start
    copied = []
    for other in (array(4), aligned.transpose(0, 1, 3, 2), aligned[:, :2]):
        assert facade._address(other) % 16 or not other.flags.c_contiguous
        stand_in = SimpleNamespace(
            data=other.data, flags=other.flags, copy=lambda order: copied.append(order) or aligned)
        found, address = facade._placed(stand_in)
        assert found is aligned
        assert address == host.ctypes.data + start
    assert copied == ['C'] * 3


@pytest.fixture
def wheel():
    return pytest.importorskip('cudnn', reason='needs nvidia-cudnn-frontend')


@pytest.mark.parametrize('operation', OPERATIONS)
def test_the_installed_package_takes_the_description(wheel, operation):
    graph = wheel.pygraph(
        name='chainer', io_data_type=wheel.data_type.FLOAT, intermediate_data_type=wheel.data_type.FLOAT,
        compute_data_type=wheel.data_type.FLOAT, handle=None)
    operation.describe(wheel, graph)
    node, = graph.nodes
    fake = Library(HostDevice())
    expected = fake.pygraph(name='', io_data_type=None, intermediate_data_type=fake.data_type.FLOAT,
                            compute_data_type=fake.data_type.FLOAT, handle=fake.create_handle())
    operation.describe(fake, expected)
    tensors = {tensor.uid: tensor for tensor in (*node.inputs.values(), *node.outputs.values())}
    assert set(tensors) == {tensor.uid for tensor in expected.tensors}
    for tensor in expected.tensors:
        found = tensors[tensor.uid]
        assert (list(found.dim), list(found.stride)) == (tensor.dim, tensor.stride)
        assert found.data_type.name == tensor.dtype.name
        assert found.is_pass_by_value == tensor.scalar
        assert not found.is_virtual
    if isinstance(operation, Convolution):
        assert node.params == {'padding': [1, 1], 'stride': [1, 1], 'dilation': [1, 1]}


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_the_installed_package_has_every_call_in_this_form(wheel):
    graph = wheel.pygraph
    assert parameters(wheel.create_handle) == []
    assert parameters(wheel.destroy_handle) == ['handle']
    assert parameters(wheel.set_stream) == ['handle', 'stream']
    assert parameters(graph.execute)[:4] == ['self', 'tensor_dict', 'workspace', 'handle']
    for name in ('create_execution_plans', 'deselect_engines', 'deselect_numeric_notes',
                 'deselect_workspace_greater_than', 'build_plan_at_index', 'get_plan_name_at_index'):
        assert len(parameters(getattr(graph, name))) == 2, name
    for name in ('validate', 'build_operation_graph', 'check_support', 'build_plans', 'get_workspace_size',
                 'get_execution_plan_count'):
        inspect.signature(getattr(graph, name)).bind('self')
    assert issubclass(wheel.cudnnGraphNotSupportedError, Exception)
    for names, enumeration in ((['A', 'B', 'FALLBACK'], wheel.heur_mode), (['FLOAT', 'HALF'], wheel.data_type),
                               (['NONDETERMINISTIC', 'TENSOR_CORE', 'DOWN_CONVERT_INPUTS'], wheel.numerical_note)):
        assert set(names) <= set(enumeration.__members__)


def test_the_fake_has_no_name_that_the_installed_package_lacks(wheel):
    for name in [name for name in vars(fake_cudnn.Graph) if not name.startswith('_') and name != 'STEPS']:
        assert hasattr(wheel.pygraph, name), name
    for enumeration in (fake_cudnn.heur_mode, fake_cudnn.numerical_note, fake_cudnn.data_type):
        assert set(enumeration.__members__) <= set(getattr(wheel, enumeration.__name__).__members__)


def reached(tree):
    """The names after ``_ooc.cudnn.``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == '_ooc.cudnn':
            yield node.attr


def test_patched_chainer_reaches_only_what_is_offered():
    import chainer.links  # noqa: F401  and with it all functions

    sources = {name: module.__loader__.get_source(name) for name, module in list(sys.modules.items())
               if name.startswith('chainer.') and getattr(module, '__file__', None)}
    names = {name for text in sources.values() if '_ooc.cudnn' in text for name in reached(ast.parse(text))}
    assert names == set(offered.__all__) - {'forget'}
    assert all(callable(getattr(offered, name)) for name in names)


def test_nothing_else_in_chainer_looks_for_cudnn():
    if cuda.cudnn_enabled:
        pytest.skip('this CuPy has a cuDNN of its own, which Chainer uses')
    assert not any(chainer.should_use_cudnn(level) for level in ('==always', '>=auto'))
    with chainer.using_config('use_cudnn', 'always'):
        assert not any(chainer.should_use_cudnn(level, 5000) for level in ('==always', '>=auto'))
