"""The networks of the papers: the shapes that the papers draw, on thin copies, and a step of each."""
import functools
import math

import chainer
import numpy as np
import pytest

from models.deeplab import DeepLab
from models.densenet import LAYERS, DenseNet
from models.googlenet_bn import GoogLeNetBN
from models.inception4 import InceptionV4
from models.papers import PAPER_NETWORKS
from models.pix2pixhd import Pix2PixHD, instance_normalized
from models.resnet import ResNet
from models.resnext3d import ResNeXt3D

# Thin copies: how to build one, and the smallest image of the network.
THIN = {
    'resnet': (functools.partial(ResNet, width=4), (3, 32, 32), PAPER_NETWORKS['resnet101']),
    'googlenet_bn': (GoogLeNetBN, (3, 64, 64), PAPER_NETWORKS['googlenet_bn']),
    'inception4': (functools.partial(InceptionV4, width=2), (3, 75, 75), PAPER_NETWORKS['inception4']),
    'resnext3d': (functools.partial(ResNeXt3D, (1, 1, 1, 1), width=16), (3, 8, 32, 32), PAPER_NETWORKS['resnext3d']),
    'densenet': (functools.partial(DenseNet, (2, 3, 2, 2), growth=4), (3, 32, 32), PAPER_NETWORKS['densenet']),
    'deeplab': (functools.partial(DeepLab, (1, 1, 1), width=8), (3, 32, 32), PAPER_NETWORKS['deeplab']),
    'pix2pixhd': (functools.partial(Pix2PixHD, width=4, blocks=2, enhancer=False), (36, 32, 32),
                  PAPER_NETWORKS['pix2pixhd']),
    'enhanced pix2pixhd': (functools.partial(Pix2PixHD, width=4, blocks=2), (36, 64, 64), PAPER_NETWORKS['pix2pixhd']),
}


def thin_batch(name):
    _, shape, network = THIN[name]
    images = np.random.RandomState(0).standard_normal((2, *shape)).astype(np.float32)
    return images, network.labels(images)


def shapes(h, *links):
    found = []
    for link in links:
        h = link(h)
        found.append(h.shape[1:])
    return found


def test_inception4_has_the_shapes_of_figure_9():
    chain = InceptionV4(width=1)
    images = np.zeros((1, 3, 299, 299), np.float32)
    with chainer.using_config('enable_backprop', False):
        found = shapes(images, chain.stem, chain.inception_a, chain.reduction_a, chain.inception_b, chain.reduction_b,
                       chain.inception_c)
    channels = (384, 384, 1024, 1024, 1536, 1536)  # of 32 at the published width
    assert found == [(of // 32, size, size) for of, size in zip(channels, (35, 35, 17, 17, 8, 8), strict=True)]


def test_googlenet_bn_has_the_shapes_of_figure_5():
    chain = GoogLeNetBN(classes=10)
    h = np.zeros((1, 192, 28, 28), np.float32)  # behind the second pooling
    with chainer.using_config('enable_backprop', False):
        found = shapes(h, *chain.modules)
    assert found == [(256, 28, 28), (320, 28, 28), *[(576, 14, 14)] * 5, *[(1024, 7, 7)] * 3]


def test_densenet121_has_the_shapes_of_table_1():
    chain = DenseNet(LAYERS[121], growth=2)
    h = np.zeros((1, 4, 56, 56), np.float32)  # behind the first convolution and pooling
    with chainer.using_config('enable_backprop', False):
        found = shapes(h, *chain.stages)
        assert chain.stem(np.zeros((1, 3, 224, 224), np.float32)).shape == (1, 4, 112, 112)
    channels = (256, 128, 512, 256, 1024, 512, 1024)  # at a growth of 32
    assert found == [(of // 16, size, size) for of, size in zip(channels, (56, 28, 28, 14, 14, 7, 7), strict=True)]


def test_deeplab_encodes_at_a_sixteenth_and_keeps_early_maps_at_a_quarter():
    chain = DeepLab((1, 1, 1), width=4)
    with chainer.using_config('enable_backprop', False):
        early, last = chain.encoder(np.zeros((2, 3, 513, 513), np.float32))
        assert chain.pyramid(last).shape == (2, 16, 33, 33)
    assert early.shape == (2, 16, 129, 129)
    assert last.shape == (2, 128, 33, 33)


def test_deeplab_spreads_the_convolutions_of_its_last_stage_and_pyramid():
    chain = DeepLab((1, 1, 1), width=4)
    assert [unit.spatial.convolution.dilate for unit in chain.encoder.stage5] == [(2, 2), (4, 4), (8, 8)]
    assert [each.convolution.dilate for each in chain.pyramid.spread] == [(6, 6), (12, 12), (18, 18)]
    spread = [link for link in chain.links() if getattr(link, 'dilate', (1, 1)) != (1, 1)]
    assert len(spread) == 6


def test_pix2pixhd_shrinks_by_16_and_paints_in_the_size_of_the_labels():
    labels = np.zeros((1, 36, 64, 128), np.float32)
    steps = list(Pix2PixHD(width=4, enhancer=False).generator)
    enhanced = Pix2PixHD(width=4).generator
    with chainer.using_config('enable_backprop', False):
        found = shapes(labels, *steps)
        assert enhanced(labels).shape == (1, 2, 64, 128)
    assert found[4] == (64, 4, 8)
    assert found[5:14] == 9 * [(64, 4, 8)]
    assert found[-1] == (4, 64, 128)


def test_instance_normalisation_normalises_each_map_by_itself():
    maps = np.random.RandomState(0).standard_normal((2, 3, 8, 8)).astype(np.float32) * 5 + 7
    mean, variance = maps.mean((2, 3), keepdims=True), maps.var((2, 3), keepdims=True)
    found = instance_normalized(chainer.Variable(maps)).array
    np.testing.assert_allclose(found, (maps - mean) / np.sqrt(variance + 2e-5), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', THIN)
def test_thin_network_trains_a_step_that_reaches_every_parameter(name):
    np.random.seed(0)
    chain = THIN[name][0]()
    optimizer = chainer.optimizers.MomentumSGD(lr=0.01).setup(chain)
    reporter = chainer.Reporter()
    reporter.add_observer('main', chain)
    with reporter:
        optimizer.update(chain, *thin_batch(name))
    loss = reporter.observation['main/loss']
    assert loss.shape == () and loss.dtype == np.float32 and np.isfinite(loss.array)
    for path, parameter in chain.namedparams():
        assert parameter.grad is not None, path
        assert np.isfinite(parameter.grad).all(), path
        assert parameter.ndim == 1 or parameter.grad.any(), path


def test_every_paper_network_is_named_and_makes_its_batch():
    assert set(PAPER_NETWORKS) == {'resnet50', 'resnet101', 'resnet152', 'alexnet', 'googlenet', 'googlenet_bn',
                                   'vgg16', 'inception4', 'resnext3d', 'densenet', 'deeplab', 'pix2pixhd'}
    assert all(name == network.name for name, network in PAPER_NETWORKS.items())
    assert PAPER_NETWORKS['resnet50'].batch_shape(640) == (640, 3, 224, 224)
    assert PAPER_NETWORKS['resnext3d'].batch_shape((448, 224, 256)) == (1, 3, 256, 448, 224)
    assert PAPER_NETWORKS['deeplab'].batch_shape((65, 33)) == (2, 3, 65, 33)
    images, labels = PAPER_NETWORKS['resnet50'].batch((32, 48))
    assert images.shape == (1, 3, 32, 48) and images.dtype == np.float32
    assert labels.shape == (1,) and labels.dtype == np.int32


@pytest.mark.parametrize(('name', 'shape', 'dtype'), [
    ('densenet', (2,), np.int32), ('deeplab', (2, 9, 7), np.int32), ('pix2pixhd', (2, 3, 9, 7), np.float32)])
def test_labels_have_the_shape_that_the_loss_takes(name, shape, dtype):
    labels = PAPER_NETWORKS[name].labels(np.zeros((2, 3, 9, 7), np.float32))
    assert labels.shape == shape and labels.dtype == dtype
    assert math.isfinite(labels.max()) and labels.max() < 21
