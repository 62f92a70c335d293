"""Times by a roofline: operations and bytes of literal calls, and the memory that computations take."""
import dataclasses

import pytest

from chainer_ooc.cost.analytic import Work, analytic, with_memory, work_of
from chainer_ooc.cost.machine import Machine
from support.planning.literal_graphs import graph, layer

MACHINE = Machine('toy', 'toy', {'float32': 1000.0, 'float16': 4000.0}, 100.0, 10.0, 20.0, 0.5, 10**9, 0)


def inner(trace):
    """The same with an input that some call before has made, so that it has a gradient."""
    return dataclasses.replace(trace, maps=(dataclasses.replace(trace.maps[0], producer=0), *trace.maps[1:]))


def test_a_convolution_multiplies_each_output_with_a_window():
    # 2 images of 3x8x8, 5 filters of 3x3x3, outputs 2x5x6x6: 360 outputs, 27 products and sums each
    trace = layer('Convolution2DFunction', (2, 3, 8, 8), [(5, 3, 3, 3), (5,)], (2, 5, 6, 6), kept=(0,))
    forward, backward = work_of(trace)
    x, y, parameters = 4 * 384, 4 * 360, 4 * (135 + 5)
    assert forward == Work(2 * 360 * 27, x + y + parameters)
    # the batch has no gradient: one product; reads x, and the parameters, makes their gradients
    assert backward == Work(2 * 360 * 27, x + 2 * parameters)


def test_backward_of_an_inner_convolution_has_two_products():
    trace = inner(layer('Convolution2DFunction', (2, 3, 8, 8), [(5, 3, 3, 3)], (2, 5, 6, 6), kept=(0,)))
    backward = work_of(trace)[1]
    x, y, weights = 4 * 384, 4 * 360, 4 * 135
    assert backward == Work(2 * 2 * 360 * 27, x + x + y + 2 * weights)


def test_groups_and_dimensions_follow_from_the_weights():
    # 4 groups: each filter sees 2 of 8 channels; 3 dimensions
    trace = layer('ConvolutionND', (1, 8, 4, 4, 4), [(8, 2, 3, 3, 3)], (1, 8, 4, 4, 4))
    assert work_of(trace)[0].operations == 2 * (8 * 64) * (2 * 27)


def test_a_transposed_convolution_works_for_each_input():
    trace = layer('Deconvolution2DFunction', (1, 6, 5, 5), [(6, 4, 2, 2)], (1, 4, 10, 10))
    assert work_of(trace)[0].operations == 2 * (6 * 25) * (4 * 4)


def test_a_linear_function_is_a_product_of_matrices():
    assert work_of(layer('LinearFunction', (3, 10), [(7, 10), (7,)], (3, 7)))[0].operations == 2 * 3 * 7 * 10


def test_others_calculate_nothing_that_counts():
    assert work_of(layer('ReLU', (3, 10), [], (3, 10), kept=(1,))) == (Work(0, 240), Work(0, 120))


def test_normalisation_reads_twice():
    forward, backward = work_of(inner(layer('BatchNormalization', (2, 5), [(5,), (5,)], (2, 5), kept=(0,))))
    assert forward.nbytes == 3 * 40 + 40  # x twice, y; two parameters
    assert backward.nbytes == 40 + 40 + 2 * 40 + 40 + 40  # x, its gradient, both again; parameters and their gradients


def test_what_a_function_hides_is_written_and_read():
    trace = layer('LocalResponseNormalization', (2, 5), [], (2, 5), hidden=[(2, 5)], kept=(0, 1, 2))
    assert [each.nbytes for each in work_of(trace)] == [120, 120]


def test_a_view_costs_nothing():
    assert work_of(graph(('Reshape', (0,), (0,)))) == (Work(0, 0), Work(0, 0))


def test_seconds_are_those_of_the_lower_roof():
    # 24 bytes at 100 a second, against 2 * 2 * 2 operations at 1000 a second
    assert analytic(layer('LinearFunction', (1, 2), [(2, 2)], (1, 2)), MACHINE).seconds[0] == pytest.approx(0.32)
    # 1000 x 1000 x 1000
    many = analytic(layer('LinearFunction', (1000, 1000), [(1000, 1000)], (1000, 1000)), MACHINE).seconds[0]
    assert many == pytest.approx(2e9 / 1000)


def test_the_dtype_of_most_bytes_decides_the_rate():
    half = layer('LinearFunction', (1000, 1000), [(1000, 1000)], (1000, 1000), dtype='float16')
    assert analytic(half, MACHINE).seconds[0] == pytest.approx(2e9 / 4000)


def test_a_stated_time_draws_all_computations_out_alike():
    trace = layer('LinearFunction', (10, 20), [(30, 20)], (10, 30), kept=(0,))
    ideal, drawn_out = analytic(trace, MACHINE), analytic(trace, MACHINE, in_core_seconds=1234.5)
    assert sum(drawn_out.seconds) == pytest.approx(1234.5)
    ratios = [longer / short for longer, short in zip(drawn_out.seconds, ideal.seconds, strict=True)]
    assert ratios == pytest.approx([ratios[0]] * 2)


def test_the_link_is_the_machines():
    costs = analytic(layer('ReLU', (3, 10), [], (3, 10)), MACHINE)
    assert (costs.write_seconds(100), costs.read_seconds(100), costs.slowdown) == (10.5, 5.5, 0.0)


def test_computations_allocate_outputs_gradients_and_workspaces():
    trace = inner(layer('Convolution2DFunction', (2, 3, 8, 8), [(5, 3, 3, 3)], (2, 5, 6, 6), kept=(0,)))
    found = with_memory(trace, workspace_bytes=1000)
    assert found.calls[0].peak_bytes == 4 * 360 + 1000
    assert (found.steps[0].peak_bytes, found.steps[0].other_bytes) == (4 * 384 + 4 * 135 + 1000, 0)


def test_gradients_that_live_are_counted_beside_a_step():
    found = with_memory(graph(('A', (0,), (1,)), ('B', (1,), (2,)), ('C', (2,), (3,))), 0)
    assert [each.other_bytes for each in found.steps] == [0, 48, 32]
    assert [each.peak_bytes for each in found.calls] == [32, 48, 64]
