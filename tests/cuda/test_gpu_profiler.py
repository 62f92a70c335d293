"""What the trace of an iteration on a card comes down to: seconds by stream and kernel, gaps, calls."""
import gzip
import json

import pytest

import profiler


def event(category, name, begins, lasts, stream=7, **arguments):
    """A complete event of a trace; microseconds."""
    return {'ph': 'X', 'cat': category, 'name': name, 'ts': begins, 'dur': lasts,
            'args': {'stream': stream, **arguments}}


#     0         10        20        30        40        50        60
#  7  [conv 10 ][add 5]          [conv 20           ]   [set 2]             two kernels of the copy stream's length
# 13       [out 30                         ]                                beside them, and one out of order
TRACE = [
    event('cuda_runtime', 'cudaLaunchKernel', 0, 3, stream=None),
    event('kernel', 'conv', 25, 20),
    event('kernel', 'conv', 0, 10),
    event('kernel', 'add', 10, 5),
    event('gpu_memcpy', 'Memcpy DtoH', 5, 30, stream=13, bytes=4096),
    event('gpu_memcpy', 'Memcpy DtoH', 40, 2, stream=13, bytes=1024),
    event('gpu_memset', 'Memset', 50, 2),
    event('cuda_driver', 'cuMemMap', 12, 4, stream=None),
    event('cuda_runtime', 'cudaLaunchKernel', 20, 1, stream=None),
    event('overhead', 'Activity Buffer Request', 0, 1000, stream=None),
]


def test_a_trace_comes_down_to_figures():
    found = profiler.summary(TRACE)
    assert found['span_seconds'] == pytest.approx(52e-6)
    assert found['compute_busy_seconds'] == pytest.approx(37e-6)
    assert {name: each['count'] for name, each in found['streams'].items()} == {'7': 4, '13': 2}
    assert found['streams']['13']['busy_seconds'] == pytest.approx(32e-6)
    assert found['kernels'] == [['conv', 2, pytest.approx(30e-6)], ['add', 1, pytest.approx(5e-6)]]
    assert found['copies'] == [['Memcpy DtoH', 2, pytest.approx(32e-6)], ['Memset', 1, pytest.approx(2e-6)]]
    assert found['copied_bytes'] == {'Memcpy DtoH': 5120}
    assert found['calls'] == [['cudaLaunchKernel', 2, pytest.approx(4e-6)], ['cuMemMap', 1, pytest.approx(4e-6)]]


def test_gaps_are_those_of_the_stream_that_computes():
    gaps = profiler.summary(TRACE)['gaps']
    assert (gaps['count'], gaps['seconds']) == (2, pytest.approx(15e-6))
    assert gaps['longest'] == [[pytest.approx(10e-6), pytest.approx(15e-6), 'add', 'conv'],
                               [pytest.approx(5e-6), pytest.approx(45e-6), 'conv', 'Memset']]


def test_kernels_beside_each_other_are_busy_once():
    found = profiler.summary([event('kernel', 'long', 0, 30), event('kernel', 'within', 5, 10),
                              event('kernel', 'across', 25, 15)])
    assert found['compute_busy_seconds'] == pytest.approx(40e-6)
    assert found['gaps']['count'] == 0


def test_a_trace_without_a_card_says_so():
    assert profiler.summary([TRACE[0]]) == {'reason': 'the profiler saw nothing of the card'}


def test_both_profilers_run_and_the_trace_is_kept(tmp_path, monkeypatch):
    iterations = []
    monkeypatch.setattr(profiler, '_traced', lambda iterate, synchronize, file: iterate() or TRACE)
    found = profiler.profile(lambda: iterations.append(1), lambda: None, tmp_path / 'trace.json.gz')
    assert len(iterations) == 2
    assert found['span_seconds'] == pytest.approx(52e-6)
    assert any('append' in name for name, *_ in found['program'])
    with gzip.open(tmp_path / 'trace.json.gz') as file:
        assert json.load(file)['traceEvents'] == TRACE


def test_without_pytorch_the_program_is_profiled_all_the_same(tmp_path, monkeypatch):
    def none(iterate, synchronize, file):
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(profiler, '_traced', none)
    found = profiler.profile(lambda: sum(range(10)), lambda: None, tmp_path / 'trace.json.gz')
    assert found['reason'] == "ModuleNotFoundError: No module named 'torch'"
    assert found['program']
    assert not (tmp_path / 'trace.json.gz').exists()
