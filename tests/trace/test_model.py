import dataclasses

import pytest

from chainer_ooc.trace import ArrayForm, Call, Step, Trace


def call(index, label, extents=(), seconds=0.5):
    forms = tuple(ArrayForm('<f4', (each, 3)) for each in extents)
    return Call(index, label, (0,), (1,), (), seconds, 100, forms, forms)


def step(position, call):
    return Step(position, call, (0,), 0.5, 100, 10)


def trace(calls, steps=(), **changes):
    usual = Trace(device='host', calls=calls, steps=steps, maps=(), seconds=1.0, write_bytes_per_second=1e9,
                  read_bytes_per_second=2e9)
    return dataclasses.replace(usual, **changes)


# position    0            1     | 2      3             4
#             Convolution  ReLU  | ReLU   Convolution   (not of this graph)
CONVOLUTION = trace(
    (call(0, 'Convolution2DFunction'), call(1, 'ReLU')), (step(2, 1), step(3, 0), step(4, -1)))


@pytest.mark.parametrize(('position', 'name'), [
    (0, 'Convolution2DFunction, forward of call 0'),
    (1, 'ReLU, forward of call 1'),
    (2, 'ReLU, backward of call 1'),
    (3, 'Convolution2DFunction, backward of call 0')])
def test_messages_name_a_position_by_function_direction_and_call(position, name):
    assert CONVOLUTION.name_of(position) == name


def test_a_step_of_no_recorded_call_is_named_as_such():
    assert CONVOLUTION.name_of(4).startswith('a function outside of the recorded graph, backward')
    steps = (*CONVOLUTION.steps[:-1], dataclasses.replace(CONVOLUTION.steps[-1], label='MatMul'))
    named = dataclasses.replace(CONVOLUTION, steps=steps)
    assert named.name_of(4) == 'MatMul outside of the recorded graph, backward at position 4'


def test_positions_count_calls_then_steps():
    assert (CONVOLUTION.backward_start, CONVOLUTION.positions) == (2, 5)
    assert (trace(()).backward_start, trace(()).positions) == (0, 0)


@pytest.mark.parametrize('changes', [
    {'seconds': 9.0}, {'write_bytes_per_second': 1.0}, {'read_bytes_per_second': 1.0}, {'versions': {'numpy': '9'}},
    {'calls': (call(0, 'Convolution2DFunction', seconds=7.0), call(1, 'ReLU', seconds=8.0))}])
def test_equal_graphs_have_equal_fingerprints_whatever_the_times(changes):
    assert dataclasses.replace(CONVOLUTION, **changes).fingerprint == CONVOLUTION.fingerprint


@pytest.mark.parametrize('calls', [
    (),
    CONVOLUTION.calls[:1],
    CONVOLUTION.calls[::-1],
    (*CONVOLUTION.calls, call(2, 'ReLU')),
    (call(0, 'Convolution2DFunction', [8]), CONVOLUTION.calls[1])])
def test_another_graph_has_another_fingerprint(calls):
    assert dataclasses.replace(CONVOLUTION, calls=calls).fingerprint != CONVOLUTION.fingerprint


def test_the_same_calls_whose_steps_run_in_another_order_are_another_graph():
    steps = CONVOLUTION.steps
    swapped = [dataclasses.replace(each, call=other.call) for each, other in zip(steps, steps[::-1], strict=True)]
    assert dataclasses.replace(CONVOLUTION, steps=tuple(swapped)).fingerprint != CONVOLUTION.fingerprint


def test_a_fingerprint_is_the_same_in_every_process():
    # SHA-256 of the signatures joined by line feeds, not Python's hash(), which differs from run to run.
    assert CONVOLUTION.fingerprint == '8b291cae7abcaf7e4e9c3175c9dd488a3c90ddc61bdab9610d050075ff61e7d3'


def test_a_trace_is_shown_as_one_line():
    assert repr(CONVOLUTION) == '<Trace of graph 8b291cae7abc on host: 2 calls, 3 steps, 0 feature maps, 1 s>'
    assert ': 1 call, 0 steps, ' in repr(trace((call(0, 'ReLU'),)))


def test_a_trace_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONVOLUTION.seconds = 2.0
