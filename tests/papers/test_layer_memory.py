"""What is near when, drawn for a small network; the sizes are those of one image with one number a pixel."""
import pytest

from chainer_ooc.papers import layer_memory
from chainer_ooc.papers.layer_networks import RESIDUAL_UNITS, alexnet, inception_v4, resnet, vgg16
from chainer_ooc.papers.layers import Layer, Network


def _chain(*layers):
    """Layers in a row: (name, kind, numbers)."""
    return Network('chain', (Layer('data', 'data', (1, 1, 1), ()), *(
        Layer(name, kind, (numbers, 1, 1), (at,)) for at, (name, kind, numbers) in enumerate(layers))))


@pytest.fixture
def chain():
    # conv1 100 -> relu1 100 -> pool1 10 -> conv2 50 -> relu2 50 -> fc 4 -> softmax 4
    return _chain(('conv1', 'conv', 100), ('relu1', 'act', 100), ('pool1', 'pool', 10), ('conv2', 'conv', 50),
                  ('relu2', 'act', 50), ('fc', 'fc', 4), ('softmax', 'softmax', 4))


def _numbers(course):
    return [each.numbers for each in course.moments]


def test_liveness_frees_each_tensor_after_the_last_step_that_needs_it(chain):
    #              conv1 relu1 pool1 conv2 relu2  fc  softmax
    forward = [100, 200, 210, 260, 310, 314, 318]
    #  softmax: all. fc (without fc): + d relu2. relu2: without softmax. conv2 (without conv2, relu2): + d pool1
    #  pool1: conv1 relu1 pool1 + d pool1 + d relu1. relu1: conv1 relu1 d. conv1: + the images' 1
    backward = [318, 314 - 4 + 4 + 50, 310 + 50, 210 + 50 + 10, 210 + 10 + 100, 300, 101]
    assert _numbers(layer_memory.liveness(chain)) == forward + backward


def test_offloading_takes_convolutions_away_until_their_segment_is_due(chain):
    #  conv1 leaves once relu1 has read it, conv2 once relu2 has
    forward = [100, 200, 110, 160, 210, 164, 168]
    #  fc: conv2 comes for relu2. conv2: conv1 comes for pool1
    backward = [168, 160 + 4 + 50 + 50, 160 + 50 + 50, 110 + 50 + 10 + 100, 320, 300, 101]
    assert _numbers(layer_memory.offloading(chain)) == forward + backward


def test_speed_centric_runs_each_layer_of_a_segment_once(chain):
    course = layer_memory.speed_centric(chain)
    assert course.recomputations == 3
    assert [each.name for each in course.moments[7:]] == [f'backward of {name}' for name in (
        'softmax', 'fc', 'fc', 'relu2', 'conv2', 'conv2', 'conv2', 'pool1', 'relu1', 'conv1')]
    #  fc: conv2 and what softmax made, then relu2. conv2: conv1 comes beside d conv2, then relu1, then pool1
    assert _numbers(course)[7:] == [8, 104, 154, 150, 250, 260, 270, 320, 300, 101]


def test_memory_centric_runs_the_chain_for_each_step(chain):
    course = layer_memory.memory_centric(chain)
    assert course.recomputations == 1 + 3
    #  conv2 frees relu1 once pool1 is made: it is made again for the backward of pool1
    assert _numbers(course)[7:] == [8, 104, 154, 150, 250, 260, 170, 220, 320, 300, 101]


def test_cost_aware_is_memory_centric_where_a_segment_exceeds_the_largest_layer():
    #  what stays: conv 100 + 3 x 100 + 10, and the gradients 100 and 10, over the largest layer's 400
    network = _chain(('conv1', 'conv', 100), ('relu1', 'act', 100), ('lrn1', 'lrn', 100), ('relu2', 'act', 100),
                     ('pool1', 'pool', 10), ('conv2', 'conv', 5), ('relu3', 'act', 5), ('pool2', 'pool', 5),
                     ('fc', 'fc', 4), ('softmax', 'softmax', 4))
    assert layer_memory.segment_numbers(network, 5) == 520
    assert layer_memory.segment_numbers(network, 8) == 25
    speed, cost, memory = (each(network) for each in (
        layer_memory.speed_centric, layer_memory.cost_aware, layer_memory.memory_centric))
    assert [each.recomputations for each in (speed, cost, memory)] == [4 + 2, 10 + 2, 10 + 3]


@pytest.mark.parametrize('make', [alexnet, vgg16, inception_v4, lambda: resnet(*RESIDUAL_UNITS[50])])
def test_each_technique_lowers_the_peak_of_the_one_before(make):
    network = make()
    peaks = [sum(each.numbers for each in network.tensors), *(each(network).peak.numbers for each in (
        layer_memory.liveness, layer_memory.offloading, layer_memory.cost_aware))]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4


@pytest.mark.parametrize('make', [alexnet, vgg16, inception_v4, lambda: resnet(*RESIDUAL_UNITS[50])])
def test_cost_aware_stays_within_the_largest_layer_with_fewer_recomputations(make):
    network = make()
    cost, memory = layer_memory.cost_aware(network), layer_memory.memory_centric(network)
    assert cost.peak.numbers <= network.layer_numbers(network.largest_layer)
    assert layer_memory.speed_centric(network).recomputations <= cost.recomputations <= memory.recomputations


def test_only_gradients_are_near_in_the_last_step(chain):
    for way in ('liveness', 'offloading', 'speed_centric', 'memory_centric', 'cost_aware'):
        last = getattr(layer_memory, way)(chain).moments[-1]
        assert (last.name, last.tensors) == ('backward of conv1', 2)  # the gradients of its output and of the images
