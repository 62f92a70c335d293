"""Gradients in backward, on small graphs written out: what lives, what is made, what is moved."""
import dataclasses

import pytest

from chainer_ooc.cost.gradients import arguments_of, follow_gradients, parameter_bytes
from chainer_ooc.trace import ArrayForm, Call
from support.planning.literal_graphs import graph


def test_arguments_and_results_are_read_from_a_call():
    call = graph(('Convolution2DFunction', (0, 'p7'), (1,))).calls[0]
    assert [(each.nbytes, each.shape) for each in arguments_of(call)] == [(16, (1, 4)), (28, (7,))]
    assert [(each.nbytes, each.shape) for each in call.results] == [(32, (2, 4))]
    assert parameter_bytes(call) == 28


def test_scalars_and_other_dtypes_are_read_too():
    call = Call(0, 'SoftmaxCrossEntropy', (0, 1), (2,), (), 0.0, 0,
                (ArrayForm('<f2', (2, 10)), ArrayForm('<i4', (2,))), (ArrayForm('<f8', ()),))
    assert [(each.nbytes, each.shape) for each in arguments_of(call)] == [(40, (2, 10)), (8, (2,))]
    assert [(each.nbytes, each.shape) for each in call.results] == [(8, ())]


def test_a_chain_has_the_gradient_of_one_map_at_a_time():
    # 0 -> A -> 1 -> B -> 2 -> C -> 3; the batch, 0, has no gradient
    found = follow_gradients(graph(('A', (0,), (1,)), ('B', (1,), (2,)), ('C', (2,), (3,))))
    assert found.live_bytes == (0, 48, 32)
    assert found.made_bytes == (48, 32, 0)
    assert found.moved_bytes == (48, 48 + 32, 32)


def test_gradients_of_parameters_stay():
    found = follow_gradients(graph(('A', (0, 'p100'), (1,)), ('B', (1, 'p10'), (2,))))
    assert found.live_bytes == (0, 32 + 40)
    assert found.made_bytes == (32 + 40, 400)


def test_a_sum_passes_its_gradient_on_and_a_second_part_is_added():
    # 1 -> B -> 2; Add(1, 2) -> 3 -> C -> 4: the shortcut of a residual unit
    found = follow_gradients(graph(('A', (0,), (1,)), ('B', (1,), (2,)), ('Add', (1, 2), (3,)), ('C', (3,), (4,))))
    # step of C makes that of 3 (64); Add hands the same block to 1 and 2; B makes a second part of 1, and the sum
    assert found.live_bytes == (0, 64, 64, 32)
    assert found.made_bytes == (64, 0, 64, 0)
    # of B: reads 64, writes 32, reads both parts of 32 for the sum, and writes 32
    assert found.moved_bytes == (64, 0, 64 + 32 + 64 + 32, 32)


def test_a_second_part_may_be_added_in_place():
    # as above; the block of 3's gradient, which is the first part of 1's, is B's alone to hand on by then
    found = follow_gradients(graph(
        ('A', (0,), (1,)), ('B', (1,), (2,)), ('Add', (1, 2), (3,)), ('C', (3,), (4,))), adds_in_place=True)
    assert found.live_bytes == (0, 64, 64, 32)
    assert found.made_bytes == (64, 0, 32, 0)  # what 2's step still reads is not written to


def test_what_nobody_shares_is_added_to_where_it_lies():
    # B and C both read 1
    found = follow_gradients(graph(
        ('A', (0,), (1,)), ('B', (1,), (2,)), ('C', (1,), (3,)), ('D', (2, 3), (4,))), adds_in_place=True)
    assert found.live_bytes == (0, 48 + 64, 48 + 32, 32)
    assert found.made_bytes == (48 + 64, 32, 0, 0)
    assert found.moved_bytes[2] == 48 + 2 * 32  # the gradient of 2; reads and writes that of 1


def test_two_readers_have_their_gradients_added():
    # B and C both read 1; 2 and 3 are joined by D
    found = follow_gradients(graph(('A', (0,), (1,)), ('B', (1,), (2,)), ('C', (1,), (3,)), ('D', (2, 3), (4,))))
    assert found.live_bytes == (0, 48 + 64, 48 + 32, 32)
    assert found.made_bytes == (48 + 64, 32, 64, 0)


def test_a_view_of_a_gradient_keeps_all_of_it_alive():
    # Concat(1, 2) -> 3: both have views of 3's gradient, which lives until the second has been used
    found = follow_gradients(graph(
        ('A', (0,), (1,)), ('B', (0,), (2,)), ('Concat', (1, 2), (3,)), ('C', (3,), (4,))))
    assert found.live_bytes == (0, 64, 64, 64)
    assert found.made_bytes == (64, 0, 0, 0)


def test_a_reshaped_map_has_one_gradient():
    # storage 1 is seen in two shapes
    found = follow_gradients(graph(('A', (0,), (1,)), ('Reshape', (1,), (1,)), ('B', (1,), (2,))))
    assert found.live_bytes == (0, 32, 32)
    assert found.made_bytes == (32, 0, 0)


@pytest.mark.parametrize('dtype', ['int32', 'int64', 'bool'])
def test_what_is_no_float_has_no_gradient(dtype):
    trace = graph(('A', (0,), (1,)), ('B', (1,), (2,)))
    maps = (trace.maps[0], dataclasses.replace(trace.maps[1], dtype=dtype), trace.maps[2])
    assert follow_gradients(dataclasses.replace(trace, maps=maps)).made_bytes == (0, 0)
