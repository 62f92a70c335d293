"""GoogLeNet for training, with its two auxiliary classifiers.

Source: Szegedy et al., "Going Deeper with Convolutions", 2014, table 1 and figure 3; the auxiliary losses count 0.3
each (section 5). The inception module is Chainer's own link.
"""
from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L

from models.reported_loss import reported

AUXILIARY_WEIGHT = 0.3


class AuxiliaryClassifier(chainer.Chain):
    """A small classifier on an inner feature map, which feeds gradients to the lower layers."""

    def __init__(self, in_channels, classes):
        super().__init__()
        with self.init_scope():
            self.projection = L.Convolution2D(in_channels, 128, 1)
            self.fc = L.Linear(None, 1024)
            self.scores = L.Linear(1024, classes)

    def forward(self, h, labels):
        window = min(5, *h.shape[2:])
        h = F.relu(self.projection(F.average_pooling_2d(h, window, stride=3)))
        h = F.dropout(F.relu(self.fc(h)), 0.7)
        return F.softmax_cross_entropy(self.scores(h), labels)


class GoogLeNet(chainer.Chain):
    """The network; any image of at least 32x32 pixels will do."""

    def __init__(self, classes=1000):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(3, 64, 7, stride=2, pad=3)
            self.conv2_reduce = L.Convolution2D(64, 64, 1)
            self.conv2 = L.Convolution2D(64, 192, 3, pad=1)
            self.inception3a = L.Inception(192, 64, 96, 128, 16, 32, 32)
            self.inception3b = L.Inception(256, 128, 128, 192, 32, 96, 64)
            self.inception4a = L.Inception(480, 192, 96, 208, 16, 48, 64)
            self.inception4b = L.Inception(512, 160, 112, 224, 24, 64, 64)
            self.inception4c = L.Inception(512, 128, 128, 256, 24, 64, 64)
            self.inception4d = L.Inception(512, 112, 144, 288, 32, 64, 64)
            self.inception4e = L.Inception(528, 256, 160, 320, 32, 128, 128)
            self.inception5a = L.Inception(832, 256, 160, 320, 32, 128, 128)
            self.inception5b = L.Inception(832, 384, 192, 384, 48, 128, 128)
            self.classifier = L.Linear(1024, classes)
            self.auxiliary1 = AuxiliaryClassifier(512, classes)
            self.auxiliary2 = AuxiliaryClassifier(528, classes)

    def forward(self, images, labels):
        h = F.max_pooling_2d(F.relu(self.conv1(images)), 3, stride=2)
        h = F.local_response_normalization(h)
        h = F.relu(self.conv2(F.relu(self.conv2_reduce(h))))
        h = F.max_pooling_2d(F.local_response_normalization(h), 3, stride=2)
        h = self.inception3b(self.inception3a(h))
        h = self.inception4a(F.max_pooling_2d(h, 3, stride=2))
        auxiliary1 = self.auxiliary1(h, labels)
        h = self.inception4d(self.inception4c(self.inception4b(h)))
        auxiliary2 = self.auxiliary2(h, labels)
        h = F.max_pooling_2d(self.inception4e(h), 3, stride=2)
        h = self.inception5b(self.inception5a(h))
        h = F.dropout(F.average_pooling_2d(h, h.shape[2:]), 0.4)
        scores = self.classifier(h)
        loss = F.softmax_cross_entropy(scores, labels) + AUXILIARY_WEIGHT * (auxiliary1 + auxiliary2)
        return reported(self, loss, scores, labels)
