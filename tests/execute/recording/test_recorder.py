"""The rows that an iteration gives, and what tells one graph from another."""
import chainer_ooc

# isort: split
import platform

import chainer
import numpy as np
import pytest

from chainer_ooc import config
from chainer_ooc.backends.base import Bandwidth
from chainer_ooc.backends.cuda.backend import CudaBackend
from chainer_ooc.backends.host import HostBackend, onednn
from chainer_ooc.execute.recording.recorder import Recorder, versions

BANDWIDTH = Bandwidth(1e9, 2e9, 0.001)
SPAN = 2.0, 2.25
X, Y, Z = (np.zeros(shape, 'f4') for shape in ((8, 3), (8, 5), (8,)))


class Device:
    """What a recorder asks of a backend."""

    name = 'host'

    def computing_seconds(self, spans):
        return [end - start for start, end in spans]


def linear_then_sum(recorder, x=X, y=Y, label='LinearFunction', seconds=0.5, peak_bytes=7, hidden=False):
    # position    0             1     |   2             3
    #             x -> y (mask)  y -> z   z: nothing    y, mask and x
    recorder.now = 0
    first = recorder.new_map(x, x.nbytes, None, False)
    second = recorder.new_map(y, y.nbytes, 0, False)
    mask = [recorder.new_map(y, y.nbytes, 0, True)] if hidden else []
    recorder.call(label, ([first, -1], [second], mask), [x, None, y], (1.0, 1.0 + seconds), peak_bytes)
    recorder.now = 1
    third = recorder.new_map(Z, Z.nbytes, 1, False)
    recorder.call('Sum', ([second], [third], []), [y, Z], (1.0, 1.0 + seconds), peak_bytes)
    return recorder


def trace(recorder):
    return recorder.trace(Device(), 1.5, BANDWIDTH)


def test_calls_and_steps_count_on():
    recorder = linear_then_sum(Recorder())
    recorder.step(1, [], SPAN, 11, 0)
    recorder.step(0, [0, 1], SPAN, 12, 4)
    frozen = trace(recorder)
    assert [call.index for call in frozen.calls] == [0, 1]
    assert [(step.position, step.call, step.maps) for step in frozen.steps] == [(2, 1, ()), (3, 0, (0, 1))]
    measured = [(step.peak_bytes, step.other_bytes, step.seconds) for step in frozen.steps]
    assert measured == [(11, 0, 0.25), (12, 4, 0.25)]


def test_a_map_knows_its_producer_its_uses_and_its_first_view():
    recorder = linear_then_sum(Recorder(), hidden=True)
    recorder.step(1, [], SPAN, 0, 0)
    recorder.step(0, [0, 2, 2], SPAN, 0, 0)
    recorder.step(0, [0], SPAN, 0, 0)
    x, y, mask, z = trace(recorder).maps
    assert [each.producer for each in (x, y, mask, z)] == [None, 0, 0, 1]
    assert [each.hidden for each in (x, y, mask, z)] == [False, False, True, False]
    assert [each.last_forward_use for each in (x, y, mask, z)] == [0, 1, 0, 1]
    assert [each.backward_uses for each in (x, y, mask, z)] == [(3, 4), (), (3,), ()]
    assert (x.shape, x.dtype, x.nbytes) == ((8, 3), 'float32', 96)


def test_a_death_is_the_last_position_of_a_map():
    recorder = linear_then_sum(Recorder())
    recorder.now = 3
    recorder.gone(1)
    assert [each.last_alive for each in trace(recorder).maps] == [1, 3, 1]  # what was never freed lives to the end


def test_bandwidth_device_and_time_are_kept():
    frozen = trace(Recorder())
    assert (frozen.device, frozen.seconds) == ('host', 1.5)
    assert (frozen.write_bytes_per_second, frozen.read_bytes_per_second) == (1e9, 2e9)


@pytest.mark.parametrize(('device', 'use_ideep', 'version'), [
    (HostBackend, 'never', ''), (HostBackend, 'auto', '3.9.0'), (HostBackend, 'always', '3.9.0'),
    (CudaBackend, 'auto', '')])
def test_versions_are_those_of_what_computes(device, use_ideep, version, monkeypatch):
    monkeypatch.setattr(onednn, 'find', lambda: onednn.OnednnPresence('libdnnl.so.3', '3.9.0', None, 2))
    onednn.version_under.cache_clear()
    backend = object.__new__(device)  # it asks nothing of the device
    with chainer.using_config('ooc', 'keep'), chainer.using_config('use_ideep', use_ideep):
        found = versions(config.current(), backend)
    onednn.version_under.cache_clear()
    assert found == {
        'chainer': chainer.__version__, 'numpy': np.__version__, 'python': platform.python_version(),
        'chainer_ooc': chainer_ooc.__version__, 'onednn': version, 'parameters': ''}


def test_a_trace_does_not_follow_the_recorder():
    recorder = linear_then_sum(Recorder())
    frozen = trace(recorder)
    before = frozen.to_json()
    recorder.step(1, [0], SPAN, 0, 0)
    recorder.gone(0)
    assert frozen.to_json() == before


def test_equal_graphs_are_equal_whatever_time_and_memory_they_take():
    one, other = (linear_then_sum(Recorder(), seconds=seconds, peak_bytes=int(seconds)) for seconds in (1, 99))
    assert trace(one).fingerprint == trace(other).fingerprint


@pytest.mark.parametrize('change', [
    {'x': np.zeros((9, 3), 'f4')}, {'y': np.zeros((8, 5), 'f8')}, {'y': np.zeros((5, 8), 'f4')}, {'label': 'Another'},
    {'hidden': True}], ids=['shape in', 'dtype out', 'shape out', 'function', 'hidden array'])
def test_another_shape_dtype_or_function_is_another_graph(change):
    assert trace(linear_then_sum(Recorder(), **change)).fingerprint != trace(linear_then_sum(Recorder())).fingerprint
