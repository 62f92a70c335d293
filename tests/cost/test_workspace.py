"""What an iteration would need with ``ooc_workspace``: scratch alone is bounded, of the functions that keep to it."""
import dataclasses

import pytest

from chainer_ooc.cost.workspace import WORKSPACE_BYTES, could_have, with_workspace
from chainer_ooc.errors import WORKSPACE
from chainer_ooc.quantities import parse_bytes
from chainer_ooc.trace import ArrayForm, Call, FeatureMap, Step, Trace

MB = 10**6


def test_the_amount_is_the_one_that_messages_name():
    assert parse_bytes(WORKSPACE) == WORKSPACE_BYTES


def trace_of(label, peak_bytes, step_bytes, **changes):
    """One call that makes a map of 8 MB from the batch, and its step, which reads the batch."""
    maps = (FeatureMap(0, 4 * MB, None, False, True, True, 0, (1,), (1000, 1000), 'float32'),
            FeatureMap(1, 8 * MB, 0, False, False, False, 0, (), (2000, 1000), 'float32'))
    calls = (Call(0, label, (0,), (1,), (), 0.1, peak_bytes, (ArrayForm('<f4', (1000, 1000)),)),)
    values = {'device': 'host', 'calls': calls, 'steps': (Step(1, 0, (0,), 0.1, step_bytes, 0),), 'maps': maps,
              'seconds': 0.2, 'write_bytes_per_second': 1e9, 'read_bytes_per_second': 1e9}
    return Trace(**{**values, **changes})


@pytest.mark.parametrize('label', ['Convolution2DFunction', 'DeconvolutionND', 'MaxPoolingND', 'AveragePooling2D',
                                   'BatchNormalization', 'LocalResponseNormalization'])
def test_scratch_is_the_workspace_where_it_was_more_and_what_is_made_stays(label):
    found = with_workspace(trace_of(label, 8 * MB + 500 * MB, 300 * MB))
    assert [each.peak_bytes for each in (*found.calls, *found.steps)] == [8 * MB + WORKSPACE_BYTES, WORKSPACE_BYTES]
    assert found.workspace_bytes == WORKSPACE_BYTES


@pytest.mark.parametrize('label', ['LinearFunction', 'ReLU', 'GroupNormalization2'])
def test_other_functions_take_what_they_took(label):
    before = trace_of(label, 508 * MB, 300 * MB)
    found = with_workspace(before)
    assert (found.calls, found.steps) == (before.calls, before.steps)


def test_less_scratch_than_the_workspace_stays():
    before = trace_of('Convolution2DFunction', 9 * MB, 2 * MB)
    assert (with_workspace(before).calls, with_workspace(before).steps) == (before.calls, before.steps)


@pytest.mark.parametrize(('changes', 'could'), [
    ({}, True), ({'workspace_bytes': 64 * MB}, True), ({'workspace_bytes': 32 * MB}, False),
    ({'workspace_bytes': 1}, False), ({'device': 'cuda'}, False),
    ({'calls': (Call(0, 'ReLU', (0,), (1,), (), 0.1, 1),)}, False)])
def test_what_has_one_as_small_or_computes_elsewhere_has_nothing_to_gain(changes, could):
    assert could_have(dataclasses.replace(trace_of('ReLU', 1, 1), **changes)) is could
