"""Inception v4 for training: modules of paths that work beside each other.

Modules are written as the paper draws them. A path is a list of steps: ``(channels, ksize)`` is a convolution that
keeps the size of the image, ``(channels, ksize, stride)`` one without padding (marked V in the figures), a list of
convolutions is a fork into all of them, and a function is a pooling. Convolutions have no bias; behind each are a batch
normalisation and a ReLU.

Source: Szegedy et al., "Inception-v4, Inception-ResNet and the Impact of Residual Connections on Learning", 2016,
figures 3 to 9 and table 1. The second 1x7 convolution of a path in figure 5 is 7x1 here, as the authors' program has
it. Left out: the auxiliary classifier of that program, which the paper does not draw.
"""
from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from models.reported_loss import reported
from models.resnet import NormalizedConvolution

PUBLISHED_WIDTH = 32
UNIT = 32  # each number of channels in the paper is a multiple of it


class Convolution(NormalizedConvolution):
    """A convolution, batch normalisation and ReLU; without a stride it pads, so that the image keeps its size."""

    def __init__(self, in_channels, out_channels, ksize, stride=None):
        pad = tuple(np.broadcast_to(ksize, 2) // 2) if stride is None else 0
        super().__init__(in_channels, out_channels, ksize, stride or 1, pad)

    def forward(self, x):
        return F.relu(super().forward(x))


class Paths(chainer.ChainList):
    """Paths from one input; their results are concatenated by channels.

    Args:
        in_channels: of the input, at the published width.
        width: channels behind the network's first convolution; all others are scaled with it.
        paths: lists of steps, see above; channels at the published width.
    """

    def __init__(self, in_channels, width, *paths):
        super().__init__(*(path(in_channels, width, steps) for steps in paths))

    def forward(self, x):
        return F.concat([each(x) for each in self], axis=1)


def path(in_channels, width, steps):
    """Makes the steps of one path."""
    links, channels = [], in_channels
    for step in steps:
        if callable(step):
            links.append(step)
        elif isinstance(step, list):
            links.append(Paths(channels, width, *([each] for each in step)))
        else:
            links.append(Convolution(channels // UNIT * width, step[0] // UNIT * width, *step[1:]))
            channels = step[0]
    return chainer.Sequential(*links)


def average(x):
    return F.average_pooling_2d(x, 3, stride=1, pad=1)


def maximum(x):
    return F.max_pooling_2d(x, 3, stride=2, cover_all=False)


def stem(width):
    """Figure 3: an image of 299x299 pixels becomes 384 maps of 35x35."""
    return chainer.Sequential(
        Convolution(3, width, 3, 2),
        path(32, width, [(32, 3, 1), (64, 3)]),
        Paths(64, width, [maximum], [(96, 3, 2)]),
        Paths(160, width,
              [(64, 1), (96, 3, 1)],
              [(64, 1), (64, (7, 1)), (64, (1, 7)), (96, 3, 1)]),
        Paths(192, width, [(192, 3, 2)], [maximum]))


def inception_a(width):
    """Figure 4, at 35x35."""
    return Paths(
        384, width,
        [average, (96, 1)],
        [(96, 1)],
        [(64, 1), (96, 3)],
        [(64, 1), (96, 3), (96, 3)])


def reduction_a(width):
    """Figure 7, from 35x35 to 17x17, with the k, l, m and n of table 1."""
    return Paths(
        384, width,
        [maximum],
        [(384, 3, 2)],
        [(192, 1), (224, 3), (256, 3, 2)])


def inception_b(width):
    """Figure 5, at 17x17."""
    return Paths(
        1024, width,
        [average, (128, 1)],
        [(384, 1)],
        [(192, 1), (224, (1, 7)), (256, (7, 1))],
        [(192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)), (256, (7, 1))])


def reduction_b(width):
    """Figure 8, from 17x17 to 8x8."""
    return Paths(
        1024, width,
        [maximum],
        [(192, 1), (192, 3, 2)],
        [(256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3, 2)])


def inception_c(width):
    """Figure 6, at 8x8: two of its paths fork at their ends."""
    ends = [(256, (1, 3)), (256, (3, 1))]
    return Paths(
        1536, width,
        [average, (256, 1)],
        [(256, 1)],
        [(384, 1), ends],
        [(384, 1), (448, (1, 3)), (512, (3, 1)), ends])


class InceptionV4(chainer.Chain):
    """The network; any image of at least 75x75 pixels will do.

    Args:
        classes: number of classes.
        width: channels behind the first convolution; all others are multiples of it.
    """

    def __init__(self, classes=1000, width=PUBLISHED_WIDTH):
        super().__init__()
        with self.init_scope():
            self.stem = stem(width)
            self.inception_a = chainer.Sequential(*(inception_a(width) for _ in range(4)))
            self.reduction_a = reduction_a(width)
            self.inception_b = chainer.Sequential(*(inception_b(width) for _ in range(7)))
            self.reduction_b = reduction_b(width)
            self.inception_c = chainer.Sequential(*(inception_c(width) for _ in range(3)))
            self.classifier = L.Linear(1536 // UNIT * width, classes)

    def forward(self, images, labels):
        h = self.reduction_a(self.inception_a(self.stem(images)))
        h = self.reduction_b(self.inception_b(h))
        h = self.inception_c(h)
        h = F.dropout(F.average_pooling_2d(h, h.shape[2:]), 0.2)
        scores = self.classifier(h)
        return reported(self, F.softmax_cross_entropy(scores, labels), scores, labels)
