"""AlexNet for training, in one column.

Source: Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks", 2012. The 23 layers are
those that SuperNeurons draws (section 3): local response normalisation before the first two poolings, dropout behind
the first two linear layers. The two groups that the original split over two GPUs are one here, as they are there.
"""
from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L

from models.reported_loss import reported


class AlexNet(chainer.Chain):
    """The network; any image of at least 63x63 pixels will do (the first linear layer takes its size from it)."""

    def __init__(self, classes=1000):
        super().__init__()
        weights = {'initialW': chainer.initializers.HeNormal()}
        with self.init_scope():
            self.conv1 = L.Convolution2D(3, 96, 11, stride=4, pad=2, **weights)
            self.conv2 = L.Convolution2D(96, 256, 5, pad=2, **weights)
            self.conv3 = L.Convolution2D(256, 384, 3, pad=1, **weights)
            self.conv4 = L.Convolution2D(384, 384, 3, pad=1, **weights)
            self.conv5 = L.Convolution2D(384, 256, 3, pad=1, **weights)
            self.fc1 = L.Linear(None, 4096, **weights)
            self.fc2 = L.Linear(4096, 4096, **weights)
            self.fc3 = L.Linear(4096, classes)

    def forward(self, images, labels):
        h = F.local_response_normalization(F.relu(self.conv1(images)))
        h = F.max_pooling_2d(h, 3, stride=2)
        h = F.local_response_normalization(F.relu(self.conv2(h)))
        h = F.max_pooling_2d(h, 3, stride=2)
        h = F.relu(self.conv3(h))
        h = F.relu(self.conv4(h))
        h = F.relu(self.conv5(h))
        h = F.max_pooling_2d(h, 3, stride=2)
        h = F.dropout(F.relu(self.fc1(h)))
        h = F.dropout(F.relu(self.fc2(h)))
        scores = self.fc3(h)
        return reported(self, F.softmax_cross_entropy(scores, labels), scores, labels)
