"""A network in the manner of DeepLabv3+, which names the class of every pixel.

The encoder is a ResNet101 whose last stage spreads its convolutions instead of shrinking the image again; a pyramid of
such convolutions at several spreads looks at the result, and a decoder joins it with early maps, where edges are sharp:

    image 513 -> stem 129 -> stage2 129 ---------------------------------> reduction --+
                                |                                                      v
                                +-> stage3 65 -> stage4 33 -> stage5 33 -> pyramid -> join 129 -> scores 513

Source: Chen et al., "Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation", 2018, sections
3.1 and 4.2 (ResNet-101 as network backbone, output stride 16), and for the encoder their "Rethinking Atrous Convolution
for Semantic Image Segmentation", 2017, sections 3.2 and 3.3. Left out: the Xception backbone with separable
convolutions, and multi-scale inputs.
"""
from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L

from models.reported_loss import reported
from models.resnet import Bottleneck, NormalizedConvolution, stage

LAST_STAGE_RATES = (2, 4, 8)  # a spread of 2 at output stride 16, times the grid (1, 2, 4) of three units
PYRAMID_RATES = (6, 12, 18)


class Convolution(NormalizedConvolution):
    """A convolution that keeps the size of the image, batch normalisation and ReLU."""

    def __init__(self, in_channels, out_channels, ksize, dilate=1):
        super().__init__(in_channels, out_channels, ksize, pad=ksize // 2 * dilate, dilate=dilate)

    def forward(self, x):
        return F.relu(super().forward(x))


class Encoder(chainer.Chain):
    """A residual network without its classifier, which shrinks the image by 16 instead of 32."""

    def __init__(self, units, width):
        super().__init__()
        before = (16 * width, 32 * width, 32 * width)
        with self.init_scope():
            self.stem = NormalizedConvolution(3, width, 7, stride=2, pad=3)
            self.stage2 = stage(units[0], width, width, 4 * width, 1)
            self.stage3 = stage(units[1], 4 * width, 2 * width, 8 * width, 2)
            self.stage4 = stage(units[2], 8 * width, 4 * width, 16 * width, 2)
            self.stage5 = chainer.Sequential(*(
                Bottleneck(channels, 8 * width, 32 * width, dilate=rate)
                for channels, rate in zip(before, LAST_STAGE_RATES, strict=True)))

    def forward(self, images):
        """Returns the early maps, at a quarter of the image's size, and the last ones."""
        h = F.max_pooling_2d(F.relu(self.stem(images)), 3, stride=2, pad=1, cover_all=False)
        early = self.stage2(h)
        return early, self.stage5(self.stage4(self.stage3(early)))


class Pyramid(chainer.Chain):
    """Atrous spatial pyramid pooling: one map seen at several spreads, and as a whole."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        with self.init_scope():
            self.point = Convolution(in_channels, out_channels, 1)
            self.spread = chainer.ChainList(*(
                Convolution(in_channels, out_channels, 3, rate) for rate in PYRAMID_RATES))
            self.whole = Convolution(in_channels, out_channels, 1)
            self.join = Convolution((2 + len(PYRAMID_RATES)) * out_channels, out_channels, 1)

    def forward(self, x):
        whole = self.whole(F.average_pooling_2d(x, x.shape[2:]))
        whole = F.broadcast_to(whole, (*whole.shape[:2], *x.shape[2:]))
        return self.join(F.concat([self.point(x), *(each(x) for each in self.spread), whole], axis=1))


class DeepLab(chainer.Chain):
    """The network; any image of at least 32x32 pixels will do, in batches of at least two.

    A single image would leave one value a channel to the batch normalisation of the pyramid's whole.

    Args:
        units: of the first three stages; the last one has three.
        classes: number of classes; PASCAL VOC has 20 and the background. A pixel of class -1 does not count.
        width: channels behind the first convolution; all others are multiples of a quarter of it.
    """

    def __init__(self, units=(3, 4, 23), classes=21, width=64):
        super().__init__()
        with self.init_scope():
            self.encoder = Encoder(units, width)
            self.pyramid = Pyramid(32 * width, 4 * width)
            self.reduction = Convolution(4 * width, 3 * width // 4, 1)
            self.decoder = chainer.Sequential(
                Convolution(4 * width + 3 * width // 4, 4 * width, 3), Convolution(4 * width, 4 * width, 3))
            self.classifier = L.Convolution2D(4 * width, classes, 1, initialW=chainer.initializers.HeNormal())

    def forward(self, images, labels):
        early, h = self.encoder(images)
        h = F.resize_images(self.pyramid(h), early.shape[2:])
        h = self.decoder(F.concat((h, self.reduction(early)), axis=1))
        scores = F.resize_images(self.classifier(h), images.shape[2:])
        return reported(self, F.softmax_cross_entropy(scores, labels), scores, labels)
