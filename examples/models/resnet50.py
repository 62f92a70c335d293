"""ResNet50 for training, in the form of its authors' Caffe model.

Source: He et al., "Deep Residual Learning for Image Recognition", 2015, table 1 and figure 5 (right). As in Chainer's
own `ResNet50Layers` a stage halves the image in the first 1x1 convolution of its first block, so that the retained
feature maps are the set that PoocH counts: 105 maps, 80.1 MB per image of 224x224. They are the inputs of 53 batch
normalisations, of 49 convolutions (a shortcut shares its input with the block's first convolution), of the max
pooling, of the average pooling and of the last linear function. The additions retain nothing.
"""
from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L

from models.reported_loss import reported


class NormalizedConvolution(chainer.Chain):
    """A convolution and the batch normalisation behind it."""

    def __init__(self, in_channels, out_channels, ksize, stride=1, pad=0, nobias=True):
        super().__init__()
        with self.init_scope():
            self.convolution = L.Convolution2D(
                in_channels, out_channels, ksize, stride, pad, nobias=nobias, initialW=chainer.initializers.HeNormal())
            self.normalization = L.BatchNormalization(out_channels)

    def forward(self, x):
        return self.normalization(self.convolution(x))


class Bottleneck(chainer.Chain):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the shortcut is a convolution where the shape changes."""

    def __init__(self, in_channels, inner_channels, out_channels, stride=1):
        super().__init__()
        with self.init_scope():
            self.narrow = NormalizedConvolution(in_channels, inner_channels, 1, stride)
            self.spatial = NormalizedConvolution(inner_channels, inner_channels, 3, pad=1)
            self.widen = NormalizedConvolution(inner_channels, out_channels, 1)
            if in_channels != out_channels:
                self.shortcut = NormalizedConvolution(in_channels, out_channels, 1, stride)
            else:
                self.shortcut = None

    def forward(self, x):
        h = F.relu(self.narrow(x))
        h = F.relu(self.spatial(h))
        h = self.widen(h)
        return F.relu(h + (x if self.shortcut is None else self.shortcut(x)))


def stage(blocks, in_channels, inner_channels, out_channels, stride):
    """Makes the blocks that work at one image size; the first one changes size and channels."""
    first = Bottleneck(in_channels, inner_channels, out_channels, stride)
    others = [Bottleneck(out_channels, inner_channels, out_channels) for _ in range(blocks - 1)]
    return chainer.Sequential(first, *others)


class ResNet50(chainer.Chain):
    """The network; any image of at least 32x32 pixels will do."""

    def __init__(self, classes=1000):
        super().__init__()
        with self.init_scope():
            self.stem = NormalizedConvolution(3, 64, 7, stride=2, pad=3, nobias=False)
            self.stage2 = stage(3, 64, 64, 256, 1)
            self.stage3 = stage(4, 256, 128, 512, 2)
            self.stage4 = stage(6, 512, 256, 1024, 2)
            self.stage5 = stage(3, 1024, 512, 2048, 2)
            self.classifier = L.Linear(2048, classes)

    def forward(self, images, labels):
        h = F.max_pooling_2d(F.relu(self.stem(images)), 3, stride=2)
        h = self.stage5(self.stage4(self.stage3(self.stage2(h))))
        h = F.average_pooling_2d(h, h.shape[2:])
        scores = self.classifier(h)
        return reported(self, F.softmax_cross_entropy(scores, labels), scores, labels)
