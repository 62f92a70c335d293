"""VGG16 for training.

Source: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", 2014, table 1,
column D.
"""
from __future__ import annotations

import itertools

import chainer
import chainer.functions as F
import chainer.links as L

from models.reported_loss import reported


class Block(chainer.ChainList):
    """Some 3x3 convolutions at one image size, then a max pooling that halves it."""

    def __init__(self, convolutions, in_channels, out_channels):
        channels = [in_channels] + [out_channels] * convolutions
        super().__init__(*(
            L.Convolution2D(before, after, 3, pad=1, initialW=chainer.initializers.HeNormal())
            for before, after in itertools.pairwise(channels)))

    def forward(self, h):
        for convolution in self:
            h = F.relu(convolution(h))
        return F.max_pooling_2d(h, 2, stride=2)


class VGG16(chainer.Chain):
    """The network; any image of at least 32x32 pixels will do (the first linear layer takes its size from it)."""

    def __init__(self, classes=1000):
        super().__init__()
        with self.init_scope():
            self.block1 = Block(2, 3, 64)
            self.block2 = Block(2, 64, 128)
            self.block3 = Block(3, 128, 256)
            self.block4 = Block(3, 256, 512)
            self.block5 = Block(3, 512, 512)
            self.fc1 = L.Linear(None, 4096, initialW=chainer.initializers.HeNormal())
            self.fc2 = L.Linear(4096, 4096, initialW=chainer.initializers.HeNormal())
            self.fc3 = L.Linear(4096, classes)

    def forward(self, images, labels):
        h = self.block5(self.block4(self.block3(self.block2(self.block1(images)))))
        h = F.dropout(F.relu(self.fc1(h)))
        h = F.dropout(F.relu(self.fc2(h)))
        scores = self.fc3(h)
        return reported(self, F.softmax_cross_entropy(scores, labels), scores, labels)
