"""A generator in the manner of pix2pixHD, which paints a photograph from a map of labels.

The global generator shrinks the map four times, changes it in nine residual blocks, and widens it again. The local
enhancer paints images twice as large: it adds what the global generator makes of the halved map to its own maps.

    labels ----------------------> front --(+)--> blocks --> back --> last --> photograph
       |                                    ^
       +--> half --> global generator ------+

Source: Wang et al., "High-Resolution Image Synthesis and Semantic Manipulation with Conditional GANs", 2018, section
3.1 and the appendix on the generator's architecture. Left out: the discriminators and with them the adversarial and the
feature matching loss, and the encoder of instances. The loss is the distance to the photograph (L1), whose backward
pass runs through the generator as theirs does. Convolutions pad with zeros, where the authors mirror the border.
"""
from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L


def instance_normalized(h):
    """Normalises each map of each image by itself, as a batch of one whose channels are all maps of all images."""
    batch, channels, *size = h.shape
    xp = chainer.backend.get_array_module(h)
    gamma, beta = xp.ones(batch * channels, h.dtype), xp.zeros(batch * channels, h.dtype)
    flat = F.batch_normalization(F.reshape(h, (1, batch * channels, *size)), gamma, beta)
    return F.reshape(flat, h.shape)


class Convolution(chainer.Chain):
    """A convolution, instance normalisation and ReLU; the image keeps its size but for the stride."""

    def __init__(self, in_channels, out_channels, ksize=3, stride=1):
        super().__init__()
        with self.init_scope():
            self.convolution = L.Convolution2D(
                in_channels, out_channels, ksize, stride, ksize // 2, initialW=chainer.initializers.HeNormal())

    def forward(self, x):
        return F.relu(instance_normalized(self.convolution(x)))


class Widening(chainer.Chain):
    """A transposed 3x3 convolution that doubles the image, instance normalisation and ReLU."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        with self.init_scope():
            self.convolution = L.Deconvolution2D(
                in_channels, out_channels, 3, stride=2, pad=1, initialW=chainer.initializers.HeNormal())

    def forward(self, x):
        # The link takes the size of its result when it is made, but images differ: the shortest would be 2 * size - 1.
        size = tuple(2 * length for length in x.shape[2:])
        h = F.deconvolution_2d(x, self.convolution.W, self.convolution.b, stride=2, pad=1, outsize=size)
        return F.relu(instance_normalized(h))


class ResidualBlock(chainer.Chain):
    """Two 3x3 convolutions beside their input, and nothing behind the addition."""

    def __init__(self, channels):
        super().__init__()
        with self.init_scope():
            self.first = Convolution(channels, channels)
            self.second = L.Convolution2D(channels, channels, 3, pad=1, initialW=chainer.initializers.HeNormal())

    def forward(self, x):
        return x + instance_normalized(self.second(self.first(x)))


class GlobalGenerator(chainer.Sequential):
    """Shrinks, changes and widens; without the convolution that makes the photograph of its `width` maps."""

    def __init__(self, in_channels, width, halvings, blocks):
        channels = [width * 2**number for number in range(halvings + 1)]
        super().__init__(
            Convolution(in_channels, width, 7),
            *(Convolution(before, 2 * before, stride=2) for before in channels[:-1]),
            *(ResidualBlock(channels[-1]) for _ in range(blocks)),
            *(Widening(2 * after, after) for after in reversed(channels[:-1])))


class LocalEnhancer(chainer.Chain):
    """Joins the maps of a global generator, of half the size, with maps of its own."""

    def __init__(self, in_channels, width, halvings, blocks):
        super().__init__()
        with self.init_scope():
            self.coarse = GlobalGenerator(in_channels, width, halvings, blocks)
            self.front = chainer.Sequential(
                Convolution(in_channels, width // 2, 7), Convolution(width // 2, width, stride=2))
            self.blocks = chainer.Sequential(*(ResidualBlock(width) for _ in range(3)))
            self.back = Widening(width, width // 2)

    def forward(self, labels):
        half = F.average_pooling_2d(labels, 3, stride=2, pad=1)
        return self.back(self.blocks(self.front(labels) + self.coarse(half)))


class Pix2PixHD(chainer.Chain):
    """The network; sides of a map are multiples of 16 and at least 32, with the enhancer of 32 and at least 64.

    It is called with maps of labels, float32, shape ``(batch, in_channels, height, width)``, and with the photographs,
    values of -1 to 1, float32, shape ``(batch, 3, height, width)``.

    Args:
        in_channels: of a map of labels; Cityscapes has 35 classes, and one more map shows where instances end.
        width: channels behind the global generator's first convolution; all others are multiples of half of it.
        halvings: how often the global generator shrinks the map.
        blocks: residual blocks of the global generator.
        enhancer: with the local enhancer.
    """

    def __init__(self, in_channels=36, width=64, halvings=4, blocks=9, enhancer=True):
        super().__init__()
        generator = LocalEnhancer if enhancer else GlobalGenerator
        with self.init_scope():
            self.generator = generator(in_channels, width, halvings, blocks)
            self.last = L.Convolution2D(
                width // 2 if enhancer else width, 3, 7, pad=3, initialW=chainer.initializers.HeNormal())

    def forward(self, labels, photographs):
        painted = F.tanh(self.last(self.generator(labels)))
        loss = F.mean_absolute_error(painted, photographs)
        chainer.report({'loss': loss}, self)
        return loss
