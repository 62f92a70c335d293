"""Parameters of the papers' networks: counted by hand from the papers, against the chains and published figures.

Full-sized networks are only counted: their weights are never drawn.
"""
import chainer
import pytest

from models.deeplab import DeepLab
from models.densenet import LAYERS, DenseNet
from models.inception4 import InceptionV4
from models.papers import PAPER_NETWORKS
from models.pix2pixhd import Pix2PixHD


@pytest.fixture
def undrawn(monkeypatch):
    """Leaves weights and gradients as they are allocated: writing 180 million of each takes seconds and gigabytes."""
    for initializer in (
            chainer.initializers.HeNormal, chainer.initializers.LeCunNormal, chainer.initializers.Constant):
        monkeypatch.setattr(initializer, '__call__', lambda self, array: None)


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
    assert [type(link) for link in chain.links()].count(chainer.links.BatchNormalization) == sum(modules.values())


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
