"""The networks of the papers: their sizes against published figures, the shapes that the papers draw, a step of each.

Full-sized networks are only counted: their weights are never drawn.
"""
import functools
import math

import chainer
import numpy as np
import pytest

from models.deeplab import DeepLab
from models.densenet import LAYERS, DenseNet
from models.inception4 import InceptionV4
from models.papers import PAPER_NETWORKS
from models.pix2pixhd import Pix2PixHD, instance_normalized
from models.resnet import ResNet
from models.resnext3d import ResNeXt3D

BATCH_NORMALIZATION = chainer.links.BatchNormalization

# Thin copies: how to build one, and the smallest image of the network.
THIN = {
    'resnet': (functools.partial(ResNet, width=4), (3, 32, 32), PAPER_NETWORKS['resnet101']),
    'inception4': (functools.partial(InceptionV4, width=2), (3, 75, 75), PAPER_NETWORKS['inception4']),
    'resnext3d': (functools.partial(ResNeXt3D, (1, 1, 1, 1), width=16), (3, 8, 32, 32), PAPER_NETWORKS['resnext3d']),
    'densenet': (functools.partial(DenseNet, (2, 3, 2, 2), growth=4), (3, 32, 32), PAPER_NETWORKS['densenet']),
    'deeplab': (functools.partial(DeepLab, (1, 1, 1), width=8), (3, 32, 32), PAPER_NETWORKS['deeplab']),
    'pix2pixhd': (functools.partial(Pix2PixHD, width=4, blocks=2, enhancer=False), (36, 32, 32),
                  PAPER_NETWORKS['pix2pixhd']),
    'enhanced pix2pixhd': (functools.partial(Pix2PixHD, width=4, blocks=2), (36, 64, 64), PAPER_NETWORKS['pix2pixhd']),
}


@pytest.fixture
def undrawn(monkeypatch):
    """Leaves weights and gradients as they are allocated: writing 180 million of each takes seconds and gigabytes."""
    for initializer in (
            chainer.initializers.HeNormal, chainer.initializers.LeCunNormal, chainer.initializers.Constant):
        monkeypatch.setattr(initializer, '__call__', lambda self, array: None)


def thin_batch(name):
    _, shape, network = THIN[name]
    images = np.random.RandomState(0).standard_normal((2, *shape)).astype(np.float32)
    return images, network.labels(images)


def sizes(chain):
    return sum(parameter.size for parameter in chain.params())


def convolution(before, after, ksize, bias=False):
    """Numbers of a convolution with a kernel of `ksize` pixels in all."""
    return before * after * ksize + bias * after


def normalized(before, after, ksize):
    """Numbers of a convolution and of the scale and shift behind it."""
    return convolution(before, after, ksize) + 2 * after


def normalized_path(before, *steps):
    """Numbers of convolutions in a row: (channels, pixels of the kernel) each."""
    channels = [before, *(after for after, _ in steps)]
    return sum(normalized(channels[at], after, ksize) for at, (after, ksize) in enumerate(steps))


def resnet_stage(units, before, width):
    """Numbers of bottleneck units of 4 * width channels; the first one has a convolution beside it."""
    out = 4 * width
    first = normalized_path(before, (width, 1), (width, 9), (out, 1)) + normalized(before, out, 1)
    return first + (units - 1) * normalized_path(out, (width, 1), (width, 9), (out, 1))


def resnet_body(units):
    return sum(resnet_stage(count, before, width)
               for count, before, width in zip(units, (64, 256, 512, 1024), (64, 128, 256, 512), strict=True))


@pytest.mark.parametrize(('name', 'units', 'published'), [
    ('resnet50', (3, 4, 6, 3), 25_557_032),
    ('resnet101', (3, 4, 23, 3), 44_549_160),
    ('resnet152', (3, 8, 36, 3), 60_192_808),
])
def test_resnets_have_the_published_parameters(undrawn, name, units, published):
    """Source: torchvision's num_params; its first convolution has no bias, that of the authors' Caffe model has."""
    expected = normalized(3, 64, 49) + 64 + resnet_body(units) + convolution(2048, 1000, 1, bias=True)
    assert sizes(PAPER_NETWORKS[name].build()) == expected == published + 64


def inception4_sizes():
    """Counts figures 3 to 8 of the paper."""
    n, p = normalized, normalized_path
    stem = (p(3, (32, 9), (32, 9), (64, 9)) + n(64, 96, 9) + p(160, (64, 1), (96, 9))
            + p(160, (64, 1), (64, 7), (64, 7), (96, 9)) + n(192, 192, 9))
    a = 2 * n(384, 96, 1) + p(384, (64, 1), (96, 9)) + p(384, (64, 1), (96, 9), (96, 9))
    reduction_a = n(384, 384, 9) + p(384, (192, 1), (224, 9), (256, 9))
    b = (n(1024, 128, 1) + n(1024, 384, 1) + p(1024, (192, 1), (224, 7), (256, 7))
         + p(1024, (192, 1), (192, 7), (224, 7), (224, 7), (256, 7)))
    reduction_b = p(1024, (192, 1), (192, 9)) + p(1024, (256, 1), (256, 7), (320, 7), (320, 9))
    c = (2 * n(1536, 256, 1) + n(1536, 384, 1) + 2 * n(384, 256, 3)
         + p(1536, (384, 1), (448, 3), (512, 3)) + 2 * n(512, 256, 3))
    return stem + 4 * a + reduction_a + 7 * b + reduction_b + 3 * c + convolution(1536, 1000, 1, bias=True)


def test_inception4_has_the_published_parameters(undrawn):
    """Source: 42.7 million in timm's model card of inception_v4, the weights of the authors."""
    chain = InceptionV4()
    assert sizes(chain) == inception4_sizes()
    assert inception4_sizes() / 1e6 == pytest.approx(42.7, abs=0.05)
    modules = {'stem': 11, 'a': 4 * 7, 'reduction a': 4, 'b': 7 * 10, 'reduction b': 6, 'c': 3 * 10}
    assert [type(link) for link in chain.links()].count(BATCH_NORMALIZATION) == sum(modules.values())


def densenet_sizes(layers, growth=32):
    """Counts the blocks and transitions of table 1."""
    total, channels = normalized(3, 2 * growth, 49), 2 * growth
    for number, count in enumerate(layers):
        if number:
            total, channels = total + 2 * channels + convolution(channels, channels // 2, 1), channels // 2
        for _ in range(count):
            total += 2 * channels + normalized(channels, 4 * growth, 1) + convolution(4 * growth, growth, 9)
            channels += growth
    return total + 2 * channels + convolution(channels, 1000, 1, bias=True)


@pytest.mark.parametrize(('depth', 'published'), [(121, 7_978_856), (169, 14_149_480), (201, 20_013_928)])
def test_densenets_have_the_published_parameters_and_depth(undrawn, depth, published):
    """Source: torchvision's num_params; no convolution has a bias in either."""
    chain = DenseNet(LAYERS[depth])
    assert sizes(chain) == densenet_sizes(LAYERS[depth]) == published
    kinds = [type(link) for link in chain.links()]
    assert kinds.count(chainer.links.Convolution2D) + kinds.count(chainer.links.Linear) == depth


def test_deeplab_has_the_parameters_of_its_parts(undrawn):
    """The paper gives none; the encoder is a ResNet101 without biases and classifier."""
    encoder = normalized(3, 64, 49) + resnet_body((3, 4, 23, 3))
    pyramid = 2 * normalized(2048, 256, 1) + 3 * normalized(2048, 256, 9) + normalized(5 * 256, 256, 1)
    decoder = normalized(256, 48, 1) + normalized(256 + 48, 256, 9) + normalized(256, 256, 9)
    assert sizes(DeepLab()) == encoder + pyramid + decoder + convolution(256, 21, 1, bias=True)


def row(before, *steps):
    """Numbers of convolutions with biases in a row, whose normalisation has none."""
    channels = [before, *(after for after, _ in steps)]
    return sum(convolution(channels[at], after, ksize, bias=True) for at, (after, ksize) in enumerate(steps))


@pytest.mark.parametrize('enhancer', [False, True])
def test_pix2pixhd_has_the_parameters_that_its_appendix_spells(undrawn, enhancer):
    """c7s1-64 d128 d256 d512 d1024 R1024 x9 u512 u256 u128 u64 c7s1-3; c7s1-32 d64 R64 x3 u32 c7s1-3 with it."""
    coarse = row(36, (64, 49), (128, 9), (256, 9), (512, 9), (1024, 9), *18 * [(1024, 9)],
                 (512, 9), (256, 9), (128, 9), (64, 9))
    local = row(36, (32, 49), (64, 9), *6 * [(64, 9)], (32, 9))
    expected = coarse + local + row(32, (3, 49)) if enhancer else coarse + row(64, (3, 49))
    assert sizes(Pix2PixHD(enhancer=enhancer)) == expected


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
    assert set(PAPER_NETWORKS) == {'resnet50', 'resnet101', 'resnet152', 'alexnet', 'googlenet', 'vgg16', 'inception4',
                                   'resnext3d', 'densenet', 'deeplab', 'pix2pixhd'}
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
