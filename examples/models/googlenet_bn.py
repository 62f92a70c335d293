"""GoogLeNet with batch normalisation, and its two auxiliary classifiers: what PoocH's authors ran as GoogLeNet.

Source: Ioffe and Szegedy, "Batch Normalization", 2015, figure 5 (the widths of the modules), in the form of Chainer's
example; the auxiliary losses count 0.3 each. The inception module is Chainer's own link. That PoocH and PoocH-2018 mean
this network by GoogLeNet is seen from their authors' scripts (github.com/yukiito2/chainer, branch 3.0.0rc1-pooch,
examples/imagenet/googlenetbn_test.sh and each_optimize_test.sh), whose batch sizes are those of the papers.
"""
from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L

from models.googlenet import AUXILIARY_WEIGHT
from models.reported_loss import reported

#: Of each module: channels of the 1x1, of the 3x3 and its reduction, of the double 3x3 and its reduction, the pooling
#: and its projection. A module without a projection halves the image.
MODULES = (
    (64, 64, 64, 64, 96, 'avg', 32), (64, 64, 96, 64, 96, 'avg', 64), (0, 128, 160, 64, 96, 'max', None),
    (224, 64, 96, 96, 128, 'avg', 128), (192, 96, 128, 96, 128, 'avg', 128), (128, 128, 160, 128, 160, 'avg', 128),
    (64, 128, 192, 160, 192, 'avg', 128), (0, 128, 192, 192, 256, 'max', None),
    (352, 192, 320, 160, 224, 'avg', 128), (352, 192, 320, 192, 224, 'max', 128))
#: An auxiliary classifier stands behind these.
WATCHED = (3, 6)


class NormalizedConvolution(chainer.Chain):
    """A convolution without bias, batch normalisation and a ReLU."""

    def __init__(self, in_channels, out_channels, ksize, stride=1, pad=0):
        super().__init__()
        with self.init_scope():
            self.convolution = L.Convolution2D(in_channels, out_channels, ksize, stride, pad, nobias=True)
            self.normalization = L.BatchNormalization(out_channels)

    def forward(self, x):
        return F.relu(self.normalization(self.convolution(x)))


class NormalizedClassifier(chainer.Chain):
    """A small classifier on an inner feature map."""

    def __init__(self, classes):
        super().__init__()
        with self.init_scope():
            self.projection = NormalizedConvolution(None, 128, 1)
            self.fc = L.Linear(None, 1024, nobias=True)
            self.normalization = L.BatchNormalization(1024)
            self.scores = L.Linear(1024, classes)

    def forward(self, h, labels):
        h = self.projection(F.average_pooling_2d(h, min(5, *h.shape[2:]), stride=3))
        return F.softmax_cross_entropy(self.scores(F.relu(self.normalization(self.fc(h)))), labels)


class GoogLeNetBN(chainer.Chain):
    """The network; any image of at least 32x32 pixels will do."""

    def __init__(self, classes=1000):
        super().__init__()
        with self.init_scope():
            self.stem = NormalizedConvolution(3, 64, 7, 2, 3)
            self.second = NormalizedConvolution(64, 192, 3, 1, 1)
            self.modules = chainer.ChainList(*(
                L.InceptionBN(None, *widths, stride=1 if widths[-1] else 2) for widths in MODULES))
            self.auxiliary = chainer.ChainList(*(NormalizedClassifier(classes) for _ in WATCHED))
            self.scores = L.Linear(1024, classes)

    def forward(self, images, labels):
        h = F.max_pooling_2d(self.stem(images), 3, stride=2, pad=1)
        h = F.max_pooling_2d(self.second(h), 3, stride=2, pad=1)
        auxiliary = []
        for number, module in enumerate(self.modules):
            h = module(h)
            if number in WATCHED:
                auxiliary.append(self.auxiliary[WATCHED.index(number)](h, labels))
        scores = self.scores(F.average_pooling_2d(h, h.shape[2:]))
        loss = F.softmax_cross_entropy(scores, labels) + AUXILIARY_WEIGHT * sum(auxiliary)
        return reported(self, loss, scores, labels)
