"""ResNeXt101 for videos: residual units whose spatial convolutions are three-dimensional and grouped.

Source: Hara et al., "Can Spatiotemporal 3D CNNs Retrace the History of 2D CNNs and ImageNet?", 2018, section 3.1: 33
units in stages of 3, 4, 23 and 3, cardinality 32, and a shortcut with a convolution where the shape changes. A unit is
a 1x1x1, a grouped 3x3x3 and a 1x1x1 convolution.

What differs: there, the pooling behind the first convolution halves time too. PoocH calls its network an extension
of that one, and states 58 GB for a clip of 448x224 pixels and 256 frames; with time halved there 25 GB of feature maps
would be all of it, and with images pooled alone it is 46 GB. `pool_time=2` is the published network.
"""
from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L

from models.reported_loss import reported
from models.resnet import ResidualUnit


class NormalizedConvolution3D(chainer.Chain):
    """A convolution without bias and the batch normalisation behind it."""

    def __init__(self, in_channels, out_channels, ksize, stride=1, pad=0, groups=1):
        super().__init__()
        with self.init_scope():
            self.convolution = L.ConvolutionND(
                3, in_channels, out_channels, ksize, stride, pad, nobias=True, groups=groups,
                initialW=chainer.initializers.HeNormal())
            self.normalization = L.BatchNormalization(out_channels)

    def forward(self, x):
        return self.normalization(self.convolution(x))


class GroupedBottleneck(ResidualUnit):
    """A unit: its inner channels are convolved in groups that do not see each other."""

    def __init__(self, in_channels, inner_channels, out_channels, stride, groups):
        super().__init__()
        with self.init_scope():
            self.narrow = NormalizedConvolution3D(in_channels, inner_channels, 1)
            self.spatial = NormalizedConvolution3D(inner_channels, inner_channels, 3, stride, 1, groups)
            self.widen = NormalizedConvolution3D(inner_channels, out_channels, 1)
            if stride > 1 or in_channels != out_channels:
                self.shortcut = NormalizedConvolution3D(in_channels, out_channels, 1, stride)
            else:
                self.shortcut = None


class ResNeXt3D(chainer.Chain):
    """The network; a video is an array (batch, 3, frames, height, width), of at least 8 frames of 32x32 pixels.

    Args:
        units: of each of the four stages.
        classes: number of classes; Kinetics has 400.
        groups: the cardinality.
        width: channels behind the first convolution; all others are multiples of it, and 2 * width of `groups`.
        pool_time: by how much the first pooling shortens a video.
    """

    def __init__(self, units=(3, 4, 23, 3), classes=400, groups=32, width=64, pool_time=1):
        super().__init__()
        self.pool_time = pool_time
        with self.init_scope():
            self.stem = NormalizedConvolution3D(3, width, 7, (1, 2, 2), 3)
            channels, stages = width, chainer.ChainList()
            for number, count in enumerate(units):
                inner, out, stride = 2 * width * 2**number, 4 * width * 2**number, 2 if number else 1
                first = GroupedBottleneck(channels, inner, out, stride, groups)
                others = [GroupedBottleneck(out, inner, out, 1, groups) for _ in range(count - 1)]
                stages.append(chainer.Sequential(first, *others))
                channels = out
            self.stages = stages
            self.classifier = L.Linear(channels, classes)

    def forward(self, videos, labels):
        window, pad = (3, 1) if self.pool_time > 1 else (1, 0)
        h = F.max_pooling_nd(F.relu(self.stem(videos)), (window, 3, 3), stride=(self.pool_time, 2, 2), pad=(pad, 1, 1),
                             cover_all=False)
        for each in self.stages:
            h = each(h)
        h = F.average_pooling_nd(h, h.shape[2:])
        scores = self.classifier(h)
        return reported(self, F.softmax_cross_entropy(scores, labels), scores, labels)
