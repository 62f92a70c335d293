"""A network as SuperNeurons sees it, against what the papers of the networks and section 4.1.1 say."""
import itertools
from operator import mul

import pytest

from chainer_ooc.papers.layer_networks import RESIDUAL_UNITS, alexnet, inception_v4, resnet, vgg16
from chainer_ooc.papers.layers import MEGABYTE, Layer, Network, nbytes

MAKES = {'alexnet': alexnet, 'vgg16': vgg16, 'inception_v4': inception_v4,
         **{f'resnet{depth}': lambda units=units: resnet(*units) for depth, units in RESIDUAL_UNITS.items()}}


@pytest.fixture(params=MAKES)
def network(request):
    return MAKES[request.param]()


def _at(network, name):
    return next(position for position, layer in enumerate(network.layers) if layer.name == name)


def _names(network, tensors):
    """Outputs by their layer, gradients by the layer for whose output they were made."""
    return [('d ' if each.is_gradient else '') + network.layers[each.reader if each.is_gradient else each.layer].name
            for each in tensors]


def test_layers_read_what_stands_before_them(network):
    for position, layer in enumerate(network.layers):
        assert all(each < position for each in layer.inputs)
        assert bool(layer.inputs) == bool(position)
        assert min(layer.shape) > 0


def test_only_forks_have_several_readers_and_all_but_the_last_have_one(network):
    for position, layer in enumerate(network.layers):
        count = len(network.readers[position])
        assert count > 1 if layer.kind == 'fork' else count == (position < len(network.layers) - 1), layer


def test_only_what_brings_branches_together_reads_several(network):
    for layer in network.layers:
        assert (len(layer.inputs) > 1) == (layer.kind in ('join', 'concat')), layer


@pytest.mark.parametrize(('make', 'millions'), [
    ('vgg16', 138.36), ('resnet50', 25.56), ('resnet101', 44.55), ('resnet152', 60.19), ('inception_v4', 42.68)])
def test_the_networks_learn_as_many_numbers_as_is_known(make, millions):
    assert MAKES[make]().weights / 1e6 == pytest.approx(millions, abs=0.005)


def test_alexnet_has_the_23_layers_of_the_footnote():
    assert ' '.join(each.name for each in alexnet().layers[1:]) == (
        'conv1 relu1 lrn1 pool1 conv2 relu2 lrn2 pool2 conv3 relu3 conv4 relu4 conv5 relu5 pool5 '
        'fc1 relu6 dropout1 fc2 relu7 dropout2 fc3 softmax')


@pytest.mark.parametrize(('make', 'stated'), [('resnet152', 567), ('inception_v4', 515)])
def test_layers_are_as_many_as_the_paper_counts_but_for_two(make, stated):
    assert len(MAKES[make]().layers) - 1 == stated - 2


@pytest.mark.parametrize(('name', 'shape'), [
    ('relu3', (64, 147, 147)), ('conv3a1', (192, 35, 35)), ('conv8b2', (224, 35, 35)),
    ('conv16a1', (192, 17, 17)), ('conv17d2', (256, 8, 8)), ('pool', (1536, 1, 1))])
def test_inception_has_the_sizes_of_its_figures(name, shape):
    network = inception_v4()
    assert network.layers[_at(network, name)].shape == shape


def test_inceptions_modules_give_what_the_next_takes():
    assert [each.shape for each in inception_v4().layers if each.kind == 'concat'] == [
        (160, 73, 73), (192, 71, 71), *[(384, 35, 35)] * 5, *[(1024, 17, 17)] * 8, *[(1536, 8, 8)] * 4]


def test_gradients_are_owned_as_in_the_drawing():
    network = alexnet()
    found = [(network.layers[each.layer].name, network.layers[each.reader].name)
             for each in network.tensors if each.is_gradient]
    assert found == [
        ('fc3', 'dropout2'), ('dropout2', 'relu7'), ('fc2', 'dropout1'), ('dropout1', 'relu6'), ('fc1', 'pool5'),
        ('pool5', 'relu5'), ('conv5', 'relu4'), ('conv4', 'relu3'), ('conv3', 'pool2'), ('pool2', 'lrn2'),
        ('conv2', 'pool1'), ('pool1', 'lrn1'), ('conv1', 'data')]


def test_no_other_rule_by_kind_of_layer_gives_36_tensors_and_their_sum():
    network = alexnet()
    kinds = sorted({each.kind for each in network.layers[1:]})
    outputs = sum(each.numbers for each in network.layers[1:])
    found = []
    for count, for_images in itertools.product(range(len(kinds) + 1), (False, True)):
        for chosen in itertools.combinations(kinds, count):
            owned = [network.layers[each.inputs[0]].numbers for each in network.layers[1:]
                     if each.kind in chosen and (each.inputs[0] or for_images)]
            if len(owned) == 13 and (outputs + sum(owned)) * 800 / MEGABYTE == pytest.approx(2189.437, rel=1e-3):
                found.append((chosen, for_images))
    assert found == [(('conv', 'dropout', 'fc', 'pool'), True)]


def test_no_other_13_gradients_give_the_last_digit_of_the_sum():
    network = alexnet()
    outputs = sum(each.numbers for each in network.layers[1:])
    sizes = [network.layers[each.inputs[0]].numbers for each in network.layers[1:]]
    kinds = sorted(set(sizes))
    fitting = [counts for counts in itertools.product(*(range(sizes.count(each) + 1) for each in kinds))
               if sum(counts) == 13
               and abs((outputs + sum(map(mul, counts, kinds))) * 800 / MEGABYTE - 2189.437) <= 5e-4]
    owned = [each.numbers for each in network.tensors if each.is_gradient]
    assert fitting == [tuple(owned.count(each) for each in kinds)]


def test_the_largest_layer_of_alexnet_is_lrn1():
    network = alexnet()
    assert network.layers[network.largest_layer].name == 'lrn1'
    assert network.layer_numbers(network.largest_layer) * 800 / MEGABYTE == pytest.approx(886.23, abs=0.005)


def test_backward_steps_need_what_cudnn_asks_for():
    network = resnet(1, 1, 1, 1)
    for name, needed in (('relu1', ['bn1', 'relu1', 'd relu1']), ('bn1', ['conv1', 'd relu1', 'd conv1']),
                         ('pool1', ['relu1', 'pool1', 'd fork2.1', 'd relu1'])):  # a fork hands its reader's on
        assert _names(network, network.needed(_at(network, name))) == needed
    assert all(each.is_gradient for each in network.needed(_at(network, 'join')))
    assert all(each.is_gradient for each in network.needed(_at(network, 'fork2.1')))


def test_a_fork_copies_its_input_for_each_reader():
    network = resnet(1, 1, 1, 1)
    fork = _at(network, 'fork2.1')
    assert len(network.outputs(fork)) == 2
    assert nbytes(network.outputs(fork), 3) == 2 * 3 * 4 * 64 * 56 * 56


def test_a_join_of_two_owns_one_gradient_and_hands_the_other_on():
    network = resnet(2, 1, 1, 1)
    join = _at(network, 'join')
    assert [each.layer for each in network.tensors if each.is_gradient].count(join) == 1


def test_a_layer_that_writes_in_place_hands_its_gradient_on():
    network = Network('tiny', (
        Layer('data', 'data', (1, 2, 2), ()), Layer('conv', 'conv', (3, 2, 2), (0,)),
        Layer('relu', 'act', (3, 2, 2), (1,)), Layer('pool', 'pool', (3, 1, 1), (2,)),
        Layer('fc', 'fc', (5, 1, 1), (3,)), Layer('softmax', 'softmax', (5, 1, 1), (4,))))
    assert network.gradients[1, 2] is network.gradients[2, 3]
    assert network.gradients[4, 5] == network.output(5, -1)
    assert sorted(each.numbers for each in network.tensors if each.is_gradient) == [3, 4, 12]
    assert network.segments == {3: (2, 3)}
    assert network.checkpoint_before(3) == 1
