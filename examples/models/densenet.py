"""Densely connected networks of any depth: each layer sees the maps of all layers before it in its block.

A block concatenates what its layers make, `growth` maps each; between two blocks a transition halves the number of maps
and the size of the image. Concatenations are written out, so that each layer holds a copy of all maps before it: memory
grows with the square of a block's layers.

Source: Huang et al., "Densely Connected Convolutional Networks", 2017, sections 3 and 4 and table 1: bottleneck layers
of 4 * growth maps, compression by a half. Left out: the dropout of its networks for small images.
"""
from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L

from models.reported_loss import reported
from models.resnet import NormalizedConvolution

LAYERS = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32), 264: (6, 12, 64, 48)}


class Activated(chainer.Chain):
    """Batch normalisation and ReLU, then a convolution without bias."""

    def __init__(self, in_channels, out_channels, ksize, pad=0):
        super().__init__()
        with self.init_scope():
            self.normalization = L.BatchNormalization(in_channels)
            self.convolution = L.Convolution2D(
                in_channels, out_channels, ksize, pad=pad, nobias=True, initialW=chainer.initializers.HeNormal())

    def forward(self, x):
        return self.convolution(F.relu(self.normalization(x)))


class Block(chainer.ChainList):
    """Layers of a 1x1 and a 3x3 convolution; each adds `growth` maps to those that it was given."""

    def __init__(self, layers, in_channels, growth):
        super().__init__(*(
            chainer.Sequential(
                Activated(in_channels + number * growth, 4 * growth, 1), Activated(4 * growth, growth, 3, pad=1))
            for number in range(layers)))

    def forward(self, h):
        for layer in self:
            h = F.concat((h, layer(h)), axis=1)
        return h


class Transition(Activated):
    """A 1x1 convolution that halves the number of maps, and an average pooling that halves the image."""

    def __init__(self, in_channels):
        super().__init__(in_channels, in_channels // 2, 1)

    def forward(self, x):
        return F.average_pooling_2d(super().forward(x), 2, stride=2)


class DenseNet(chainer.Chain):
    """The network; any image of at least 32x32 pixels will do.

    Args:
        layers: of each block; those of the published depths are in `LAYERS`. A depth counts two convolutions a layer,
            one a transition, the first one and the classifier.
        classes: number of classes.
        growth: maps that a layer adds; the first convolution makes twice as many.
    """

    def __init__(self, layers=LAYERS[121], classes=1000, growth=32):
        super().__init__()
        with self.init_scope():
            self.stem = NormalizedConvolution(3, 2 * growth, 7, stride=2, pad=3)
            channels, stages = 2 * growth, chainer.ChainList()
            for number, count in enumerate(layers):
                if number:
                    stages.append(Transition(channels))
                    channels //= 2
                stages.append(Block(count, channels, growth))
                channels += count * growth
            self.stages = stages
            self.normalization = L.BatchNormalization(channels)
            self.classifier = L.Linear(channels, classes)

    def forward(self, images, labels):
        h = F.max_pooling_2d(F.relu(self.stem(images)), 3, stride=2, pad=1, cover_all=False)
        for each in self.stages:
            h = each(h)
        h = F.relu(self.normalization(h))
        h = F.average_pooling_2d(h, h.shape[2:])
        scores = self.classifier(h)
        return reported(self, F.softmax_cross_entropy(scores, labels), scores, labels)
