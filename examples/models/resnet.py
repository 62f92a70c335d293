"""Residual networks of any depth, in the form of their authors' Caffe model.

A network has four stages, and so many bottleneck units in each; ``ResNet((3, 4, 6, 3))`` is ResNet50. `units_of` gives
deeper ones by formula, as their authors did: the first and the last stage stay as they are, the third takes what is
left, where images are small. `width` thins a network out, for those who want its depth without its size.

As in Chainer's own `ResNet50Layers` a stage halves the image in the first 1x1 convolution of its first block.

Source: He et al., "Deep Residual Learning for Image Recognition", 2015, table 1 and figure 5 (right). Ours: `units_of`
beyond 50 units.
"""
from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L

from models.reported_loss import reported

FEWEST_UNITS = 16


def units_of(count):
    """Spreads `count` units over four stages: 16, 33 and 50 units are ResNet50, ResNet101 and ResNet152.

    Raises:
        ValueError: there are fewer than 16.
    """
    if count < FEWEST_UNITS:
        raise ValueError(f'a residual network of {count} units is not in the table; ask for {FEWEST_UNITS} or more')
    second = 8 if count >= 50 else 4
    return 3, second, count - 3 - second - 3, 3


class NormalizedConvolution(chainer.Chain):
    """A convolution and the batch normalisation behind it."""

    def __init__(self, in_channels, out_channels, ksize, stride=1, pad=0, nobias=True, dilate=1):
        super().__init__()
        with self.init_scope():
            self.convolution = L.Convolution2D(
                in_channels, out_channels, ksize, stride, pad, nobias=nobias, dilate=dilate,
                initialW=chainer.initializers.HeNormal())
            self.normalization = L.BatchNormalization(out_channels)

    def forward(self, x):
        return self.normalization(self.convolution(x))


class ResidualUnit(chainer.Chain):
    """Three convolutions, which a subclass makes, beside a shortcut; None is the input itself."""

    def forward(self, x):
        h = F.relu(self.narrow(x))
        h = F.relu(self.spatial(h))
        h = self.widen(h)
        return F.relu(h + (x if self.shortcut is None else self.shortcut(x)))


class Bottleneck(ResidualUnit):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the shortcut is a convolution where the shape changes.

    `dilate` is the distance between the pixels that the 3x3 convolution sees.
    """

    def __init__(self, in_channels, inner_channels, out_channels, stride=1, dilate=1):
        super().__init__()
        with self.init_scope():
            self.narrow = NormalizedConvolution(in_channels, inner_channels, 1, stride)
            self.spatial = NormalizedConvolution(inner_channels, inner_channels, 3, pad=dilate, dilate=dilate)
            self.widen = NormalizedConvolution(inner_channels, out_channels, 1)
            if in_channels != out_channels:
                self.shortcut = NormalizedConvolution(in_channels, out_channels, 1, stride)
            else:
                self.shortcut = None


def stage(blocks, in_channels, inner_channels, out_channels, stride):
    """Makes the blocks that work at one image size; the first one changes size and channels."""
    first = Bottleneck(in_channels, inner_channels, out_channels, stride)
    others = [Bottleneck(out_channels, inner_channels, out_channels) for _ in range(blocks - 1)]
    return chainer.Sequential(first, *others)


class ResNet(chainer.Chain):
    """A network of bottleneck units; any image of at least 32x32 pixels will do.

    Args:
        units: of each of the four stages.
        classes: number of classes.
        width: channels behind the first convolution; all others are multiples of it.
    """

    def __init__(self, units=(3, 4, 6, 3), classes=1000, width=64):
        super().__init__()
        with self.init_scope():
            self.stem = NormalizedConvolution(3, width, 7, stride=2, pad=3, nobias=False)
            self.stage2 = stage(units[0], width, width, 4 * width, 1)
            self.stage3 = stage(units[1], 4 * width, 2 * width, 8 * width, 2)
            self.stage4 = stage(units[2], 8 * width, 4 * width, 16 * width, 2)
            self.stage5 = stage(units[3], 16 * width, 8 * width, 32 * width, 2)
            self.classifier = L.Linear(32 * width, classes)

    def forward(self, images, labels):
        h = F.max_pooling_2d(F.relu(self.stem(images)), 3, stride=2)
        h = self.stage5(self.stage4(self.stage3(self.stage2(h))))
        h = F.average_pooling_2d(h, h.shape[2:])
        scores = self.classifier(h)
        return reported(self, F.softmax_cross_entropy(scores, labels), scores, labels)
