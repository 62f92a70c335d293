import chainer
import numpy as np
import pytest

from models import ARCHITECTURES


def random_batch(size, batchsize=2):
    random = np.random.RandomState(0)
    return random.randn(batchsize, 3, size, size).astype(np.float32), np.arange(batchsize, dtype=np.int32)


def retained_bytes(loss, chain):
    """Bytes of each array of two dimensions or more that the graph of `loss` retains, parameters left out."""
    parameters = {id(parameter.array) for parameter in chain.params()}
    found, functions, seen = {}, [loss.creator_node], set()
    while functions:
        function = functions.pop()
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        arrays = [function.inputs[index].data for index in function._input_indexes_to_retain or ()]
        arrays += [array for array in function._retained_output_data or () if array is not None]
        for array in arrays:
            if array is not None and array.ndim > 1 and id(array) not in parameters:
                found.setdefault(array.__array_interface__['data'][0], array.nbytes)
        functions += [node.creator_node for node in function.inputs]
    return list(found.values())


@pytest.mark.parametrize('name', ['googlenet', 'resnet50'])  # the other two are slow: 25 and 44 million parameters
def test_network_trains_on_the_smallest_image_and_reports(name):
    architecture = ARCHITECTURES[name]
    chain = architecture.build(classes=5)
    optimizer = chainer.optimizers.MomentumSGD(lr=architecture.learning_rate).setup(chain)
    reporter = chainer.Reporter()
    reporter.add_observer('main', chain)
    with reporter:
        optimizer.update(chain, *random_batch(architecture.smallest_crop))
    assert set(reporter.observation) == {'main/loss', 'main/accuracy'}
    assert np.isfinite(reporter.observation['main/loss'].array)
    assert all(parameter.grad is not None for parameter in chain.params())


@pytest.mark.parametrize('name', sorted(ARCHITECTURES))
def test_network_gives_a_loss_on_the_smallest_image(name):
    architecture = ARCHITECTURES[name]
    with chainer.no_backprop_mode():
        loss = architecture.build(classes=5)(*random_batch(architecture.smallest_crop))
    assert loss.shape == ()
    assert loss.dtype == np.float32
    assert np.isfinite(loss.array)


def test_resnet50_retains_the_105_maps_that_pooch_counts():
    chain = ARCHITECTURES['resnet50'].build()
    images, labels = random_batch(224, batchsize=1)
    maps = retained_bytes(chain(images, labels), chain)
    maps.remove(4 * 1000)  # what softmax cross entropy keeps: the probabilities
    assert len(maps) == 105
    assert sum(maps) / 1e6 == pytest.approx(80.1, abs=0.05)


def test_resnet50_has_the_parameters_of_the_published_network():
    chain = ARCHITECTURES['resnet50'].build()
    assert sum(parameter.size for parameter in chain.params()) == 25_557_096
    kinds = [type(link) for link in chain.links()]
    assert kinds.count(chainer.links.BatchNormalization) == 53
    assert kinds.count(chainer.links.Convolution2D) == 49 + 4
