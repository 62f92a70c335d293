"""ResNet50 for training.

Its retained feature maps are the set that PoocH counts: 105 maps, 80.1 MB per image of 224x224. They are the inputs of
53 batch normalisations, of 49 convolutions (a shortcut shares its input with the block's first convolution), of the max
pooling, of the average pooling and of the last linear function. The additions retain nothing.

Source: He et al., "Deep Residual Learning for Image Recognition", 2015, table 1; see `resnet`.
"""
from __future__ import annotations

from models.resnet import ResNet


class ResNet50(ResNet):
    """The network; any image of at least 32x32 pixels will do."""

    def __init__(self, classes=1000):
        super().__init__((3, 4, 6, 3), classes)
