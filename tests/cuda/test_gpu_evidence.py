"""What rows of the GPU programme measure and keep: figures over stand-ins of a card, and evidence of any end."""
import contextlib
import sys
import types

import pytest

from tables import with_comparisons

GB = 10**9


# --- figures of a row ------------------------------------------------------------------------------------------------


class Card:
    """A stand-in for a device: its libraries load in the first iteration, and arrays take 10 GB at most."""

    def __init__(self):
        self.libraries_bytes, self.arrays_bytes, self.cached_bytes = 0, GB, 2 * GB

    def used_bytes(self):
        return self.libraries_bytes + self.arrays_bytes + self.cached_bytes

    def held_bytes(self):
        return self.arrays_bytes + self.cached_bytes


class Iterating:
    """A stand-in for a training on it."""

    loss = 1.0

    def __init__(self, card):
        self.card, self.count, self.host_seconds = card, 0, []

    def iterate(self):
        self.count += 1
        self.host_seconds.append(0.1)
        self.card.libraries_bytes = GB
        self.card.arrays_bytes, self.card.cached_bytes = 10 * GB, 0
        return 0.5


def test_what_libraries_took_meanwhile_is_not_held_against_the_budget():
    from pace import Pace
    from training_row import figures
    card = Card()
    found = figures(Iterating(card), card, 'plain', 4, 5, 3, Pace())
    assert (found['driver_peak_bytes'], found['driver_base_bytes']) == (10 * GB, GB)
    row = {'row': 'training', 'network': 'n', 'batch': 4, 'policy': 'pooch', 'outcome': 'done', 'device': 'cuda',
           'budget_bytes': 10 * GB, 'peak_bytes': GB, **found}
    assert with_comparisons([{'rows': [row]}])[0]['rows'][0]['within_budget'] is True


@contextlib.contextmanager
def on_a_fake_card():
    """Has rows of the host run on the CUDA backend over a fake; gives the device and the backends that were made."""
    import chainer_ooc
    import training_row
    from chainer_ooc.backends.cuda import CudaBackend
    from support import pinning
    from support.devices import chosen
    from support.fake_driver import FakeDriver
    driver = FakeDriver(1, enforces=False)
    chainer_ooc.reset()
    with pinning.at_once(), chosen(
            lambda folder: CudaBackend(folder, host_limit_bytes=1 << 30, driver=driver)) as made:
        try:
            yield driver, made
        finally:
            training_row._trained.clear()
            chainer_ooc.reset(unpin=True)


def row_within(policy, batch=4, **more):
    from programme import Programme
    from sizes import SMALL
    asks = Programme('host', 10**9, SMALL).training(SMALL.network, batch, policy, limited=True).asks
    return {**asks, 'settle': 2, 'iterations': 2, 'image_side': 32, **more}


def test_rows_of_one_network_share_pinned_memory_its_graph_and_what_was_measured():
    import training_row
    with on_a_fake_card() as (driver, made):
        found = training_row.train(**row_within('swap-all'))
        pins = driver.pins
        assert pins > 5
        again = training_row.train(**row_within('swap-all', budget_bytes=10**9 - 1))
        assert (driver.pins, len(made)) == (pins, 1)
        assert again['swapped_out_bytes'] == found['swapped_out_bytes'] > 0
        assert (found['phases'], again['phases']) == (['run'], ['run'])
        training_row.train(**row_within('swap-all', batch=2))
        assert len(made) == 2
        assert driver.pins > pins
    assert driver.misuses == []


def test_plans_stay_while_iterations_are_timed(monkeypatch):
    """Two graphs learn after each iteration; while it times none of them is told."""
    from chainer_ooc.execute.graphs.graph import Graph
    from training_row import LEARNING, planned_for_good
    told = []
    known = ['note_timing', 'note_shortage', 'take_better']
    for name in known:
        monkeypatch.setattr(Graph, name, lambda self, value, name=name: told.append(name))
    graph = object.__new__(Graph)
    assert list(LEARNING) == known
    for name in LEARNING:
        getattr(graph, name)(1)
        with planned_for_good():
            getattr(graph, name)(1)
    assert told == known


class Pins:
    """A stand-in for CuPy's runtime."""

    hostAllocPortable = 1  # noqa: N815 - CuPy's name
    cudaDevAttrCanUseHostPointerForRegisteredMem = 91  # noqa: N815 - CuPy's name

    def __init__(self):
        self.calls = []

    def hostAlloc(self, nbytes, flags):  # noqa: N802 - CuPy's name
        self.calls.append((nbytes, flags))
        return 4096

    def freeHost(self, address):  # noqa: N802 - CuPy's name
        self.calls.append(address)

    def getDevice(self):  # noqa: N802 - CuPy's name
        return 0

    def deviceGetAttribute(self, attribute, device):  # noqa: N802 - CuPy's name
        return 0  # large regions are left to hostAlloc: nobody touches 32 GB here

    def getDeviceProperties(self, number):  # noqa: N802 - CuPy's name
        return {'name': b'Some GPU', 'major': 9, 'minor': 0}

    def memGetInfo(self):  # noqa: N802 - CuPy's name
        return 130 * GB, 141 * GB

    def driverGetVersion(self):  # noqa: N802 - CuPy's name
        return 13000

    runtimeGetVersion = driverGetVersion  # noqa: N815 - CuPy's name

    def deviceSynchronize(self):  # noqa: N802 - CuPy's name
        self.calls.append('synchronized')


@pytest.fixture
def card():
    """`near.Cuda` over stand-ins for what it asks of CuPy."""
    import near
    pool = types.SimpleNamespace(total_bytes=lambda: GB, free_all_blocks=lambda: None)
    made = object.__new__(near.Cuda)
    made._runtime = Pins()
    made._cupy = types.SimpleNamespace(get_default_memory_pool=lambda: pool,
                                       get_default_pinned_memory_pool=lambda: pool)
    return made


def test_a_card_says_all_that_figures_depend_on(card, monkeypatch):
    pytest.importorskip('cupy')
    import evidence
    monkeypatch.setattr(evidence, 'smi', lambda: {'clocks.sm': '1980 MHz', 'memory.used': '4 MiB'})
    facts = card.describe()
    assert (facts['device'], facts['is_gpu'], facts['compute_capability']) == ('Some GPU', True, '9.0')
    assert (facts['device_memory_bytes'], facts['device_free_bytes']) == (141 * GB, 130 * GB)
    assert facts['host MemAvailable'] > 0
    assert (facts['smi clocks.sm'], facts['smi memory.used']) == ('1980 MHz', '4 MiB')
    assert 'Error' in facts['cudnn'] or facts['cudnn'].isdigit(), 'its version, or why there is none'
    assert (card.used_bytes(), card.held_bytes()) == (11 * GB, GB)
    card.trim()
    assert card._runtime.calls == ['synchronized']


def test_pinning_is_timed_where_the_host_has_the_memory_or_is_said_to(card, monkeypatch):
    import near
    monkeypatch.setattr(near.limits, 'free_bytes', lambda: 10 * GB)
    found = card.pin(8 * GB, True)
    assert card._runtime.calls == [(8 * GB, 1), 4096] * 2, 'as the package pins, and by hostAlloc'
    assert not found['registered']
    for act in ('pin', 'unpin', 'alloc', 'free'):
        assert found[f'{act}_seconds'] > 0
    with pytest.raises(near.SkippedError, match='32 GB are more than 90% of the 10 GB that the host says are free'):
        card.pin(32 * GB, True)
    card.pin(32 * GB, False)
    assert card._runtime.calls[4:] == [(32 * GB, 1), 4096] * 2


def test_pinning_is_timed_as_the_package_pins(card):
    from support.host_runtime import HostRuntime
    card._runtime = HostRuntime()
    found = card.pin(4 << 20, False)
    assert card._runtime.names() == ['hostRegister', 'hostUnregister', 'hostAlloc', 'freeHost']
    assert found['registered']
    assert card._runtime.left_behind() == []


# --- evidence --------------------------------------------------------------------------------------------------------


def test_a_row_says_what_cudnn_planned_and_what_it_refused(monkeypatch):
    import evidence
    from chainer_ooc.kernels.cudnn import handles
    from chainer_ooc.kernels.cudnn.operations import Convolution, Port
    from chainer_ooc.kernels.cudnn.settings import PlanSettings
    from support.fake_cudnn import Engine, HostDevice, Library
    device = HostDevice()
    library = Library(device, [Engine(workspace_bytes=1000)])
    ours = handles.Handle(library, device)
    settings = PlanSettings(1 << 20, True, False)
    shapes = (2, 3, 7, 7), (4, 3, 3, 3), (2, 4, 5, 5)
    ours.find(Convolution(Port.Y, *shapes, (0, 0), (1, 1), (1, 1), 'float32'), settings)
    library.engines.clear()
    ours.find(Convolution(Port.W, *shapes, (0, 0), (1, 1), (1, 1), 'float32'), settings)
    monkeypatch.setitem(handles._of_thread.__dict__, 'handles', {0: ours, 1: None})
    monkeypatch.setitem(sys.modules, 'cudnn', library)
    found = evidence.cudnn()
    assert found['planned'] == {'Convolution Y': 1}
    assert (found['refused_count'], found['most_scratch_bytes']) == (1, 1000)
    assert 'Port.W' in found['refused'][0]
    assert found['version'] == library.backend_version() > 0
    with evidence.Evidence() as kept:
        raise_and_forget(ValueError)
    assert kept.found()['cudnn'] == found


def test_a_row_says_how_often_chainers_own_way_through_im2col_ran():
    import numpy as np
    from chainer.utils import conv

    import evidence
    original = conv.im2col_cpu
    with evidence.Evidence() as kept, kept.counting():
        for _ in range(2):
            conv.im2col_cpu(np.zeros((1, 1, 3, 3), 'f'), 2, 2, 1, 1, 0, 0)
    assert kept.found()['im2col'] == {'im2col_cpu': 2}
    assert conv.im2col_cpu is original


def raise_and_forget(error):
    import contextlib
    with contextlib.suppress(error):
        raise error


def test_warnings_and_the_log_are_kept_whatever_becomes_of_the_row(capfd):
    import logging
    import warnings

    import worker as process
    from kinds import KINDS

    def fails():
        import evidence
        for _ in range(3):
            warnings.warn('cuDNN has no engine', RuntimeWarning, stacklevel=2)
        logging.getLogger('chainer_ooc').warning('the system refused to pin 2 GiB')
        evidence.note('settle_seconds', [1.0, 2.0])
        raise MemoryError('no room')

    KINDS['fails late'] = fails
    try:
        found = process.measured('fails late', {})
    finally:
        del KINDS['fails late']
    assert (found['outcome'], found['settle_seconds']) == ('failed', [1.0, 2.0])
    assert 'MemoryError: no room' in found['traceback']
    line, = found['evidence']['warnings']
    assert line.startswith('RuntimeWarning: cuDNN has no engine')
    assert line.endswith('(3 times)')
    assert found['evidence']['log'] == ['WARNING: the system refused to pin 2 GiB']
    assert 'settle_seconds: [1.0, 2.0]' in capfd.readouterr().err, 'for a process that dies of the next one'


def test_clocks_are_asked_again_with_fewer_names_where_the_driver_knows_not_all(tmp_path, monkeypatch):
    import evidence
    script = tmp_path / 'nvidia-smi'
    script.write_text('#!/bin/sh\ncase "$2" in *ecc*) echo "Field is not a valid field to query."; exit 2;; esac\n'
                      'echo "Some GPU, 580.1, 1980 MHz, 3201 MHz, 40, 1 MiB, 2 MiB"\n')
    script.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=':')
    found = evidence.smi()
    assert (found['driver_version'], found['clocks.sm']) == ('580.1', '1980 MHz')
    assert 'not a valid field' in found['error']


# --- single operations -----------------------------------------------------------------------------------------------


def test_a_convolution_is_timed_under_each_setting_for_which_there_is_a_kernel():
    from math import prod

    from chainer_ooc.kernels.cudnn import handles
    from chainer_ooc.kernels.cudnn.operations import Convolution, Port
    from operations_row import SETTINGS, operations, speeds
    from support.fake_cudnn import Engine, HostDevice, Library, numerical_note
    device = HostDevice()
    library = Library(device, [Engine('TF32', notes=(numerical_note.TENSOR_CORE,)), Engine('exact')])
    operation = Convolution(Port.X, (2, 8, 7, 7), (4, 8, 3, 3), (2, 4, 5, 5), (0, 0), (1, 1), (1, 1), 'float32')
    ran = []

    def seconds_of(call):
        call()
        ran.append(library.graphs[-1])
        return 0.5

    found = speeds(handles.Handle(library, device), seconds_of, operation)
    assert operations(operation) == 2 * prod((2, 4, 5, 5)) * 8 * 9
    assert found == {f'{name}_per_second': operations(operation) / 0.5 for name in SETTINGS}
    assert len({id(graph) for graph in ran}) == len(SETTINGS)
    assert sum(graph.runs > 1 for graph in ran) == 2, 'the settings under which engines are timed'
    library.engines.clear()
    assert speeds(handles.Handle(library, device), seconds_of, operation) == {}


def test_the_largest_convolutions_come_first():
    from chainer_ooc.kernels.cudnn.operations import Port
    from engines import operation_of
    from operations_row import largest_convolutions, operations
    layers = largest_convolutions('resnet50', 64)
    assert len(layers) > 10
    assert not any(layer.first for layer in layers)
    assert operations(operation_of(layers[0], 1, 'float32', Port.Y)) > operations(
        operation_of(layers[-1], 1, 'float32', Port.Y))
