"""The networks of `examples/models` in PyTorch: same layers, same shapes, other initial weights.

torchvision has VGG16 as it is. Its ResNet50 halves the image in the 3x3 convolution of a stage's first unit, has no
bias in its first convolution, and pads before the pooling; all three are changed here. Its GoogLeNet has batch
normalization in place of local response normalization and 3x3 convolutions in place of 5x5; the original is written
out. `pytorch.py` compares the shapes of all weights and outputs with those of Chainer's layers.

What is PyTorch's advantage stays: ReLUs work in place, as torchvision's do.

With checkpoints the maps within a segment are computed a second time. A segment is a residual unit, an inception
module, or the layers up to and with a pooling; classifiers are none.
"""
from __future__ import annotations

import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

#: Of the inception modules, in order: inputs, 1x1, before 3x3, 3x3, before 5x5, 5x5, behind the pooling.
INCEPTION = {
    '3a': (192, 64, 96, 128, 16, 32, 32), '3b': (256, 128, 128, 192, 32, 96, 64),
    '4a': (480, 192, 96, 208, 16, 48, 64), '4b': (512, 160, 112, 224, 24, 64, 64),
    '4c': (512, 128, 128, 256, 24, 64, 64), '4d': (512, 112, 144, 288, 32, 64, 64),
    '4e': (528, 256, 160, 320, 32, 128, 128), '5a': (832, 256, 160, 320, 32, 128, 128),
    '5b': (832, 384, 192, 384, 48, 128, 128),
}
AUXILIARY_WEIGHT = 0.3


class Checkpointed(nn.Module):
    """A segment that keeps its input alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def build(network: str, side: int, checkpoints: bool = False) -> nn.Module:
    """Makes a network; called with images it gives scores, GoogLeNet also those of its auxiliary classifiers.

    Args:
        network: 'resnet50', 'googlenet' or 'vgg16'.
        side: Of an image in pixels.
        checkpoints: Whether segments are computed a second time.
    """
    segment = Checkpointed if checkpoints else lambda inner: inner
    return {'resnet50': resnet50, 'googlenet': GoogLeNet, 'vgg16': vgg16}[network](side, segment)


def loss_of(scores: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """What is minimised: the loss, and that of auxiliary classifiers with the paper's weight."""
    if isinstance(scores, torch.Tensor):
        return F.cross_entropy(scores, labels)
    main, *others = (F.cross_entropy(each, labels) for each in scores)
    return main + AUXILIARY_WEIGHT * sum(others)


def resnet50(side: int, segment) -> nn.Module:
    """ResNet50 of any image size."""
    model = torchvision.models.resnet50()
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), model.bn1, model.relu, _pooling())
    units = [unit for stage in (model.layer1, model.layer2, model.layer3, model.layer4) for unit in stage]
    return nn.Sequential(segment(stem), *map(segment, units), nn.AdaptiveAvgPool2d(1), nn.Flatten(), model.fc)


def vgg16(side: int, segment) -> nn.Module:
    """VGG16; its first linear layer takes its size from the image, without torchvision's pooling to 7x7."""
    model = torchvision.models.vgg16()
    if side // 32 != 7:
        model.classifier[0] = nn.Linear(512 * (side // 32) ** 2, 4096)
    stages, layers = [], []
    for layer in model.features:
        layers.append(layer)
        if isinstance(layer, nn.MaxPool2d):
            stages.append(segment(nn.Sequential(*layers)))
            layers = []
    return nn.Sequential(*stages, nn.Flatten(), model.classifier)


def _pooling() -> nn.Module:
    """As Chainer pools by default: no margin, and a window also for what is left over."""
    return nn.MaxPool2d(3, 2, ceil_mode=True)


def _normalization() -> nn.Module:
    """Chainer's adds alpha for each channel, PyTorch's divides it by their number."""
    return nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0)


def _convolution(inner: int, outer: int, ksize: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inner, outer, ksize, stride, ksize // 2), nn.ReLU(inplace=True))


class Inception(nn.Module):
    """Four branches side by side; one ReLU behind all of them, as Chainer's link has it."""

    def __init__(self, inner: int, one: int, before3: int, three: int, before5: int, five: int, pooled: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inner, one, 1)
        self.three = nn.Sequential(_convolution(inner, before3, 1), nn.Conv2d(before3, three, 3, padding=1))
        self.five = nn.Sequential(_convolution(inner, before5, 1), nn.Conv2d(before5, five, 5, padding=2))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(inner, pooled, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1).relu_()


class AuxiliaryClassifier(nn.Module):
    """A small classifier on an inner feature map of `size` x `size`."""

    def __init__(self, inner: int, size: int) -> None:
        super().__init__()
        window = min(5, size)
        self.layers = nn.Sequential(
            nn.AvgPool2d(window, 3), *_convolution(inner, 128, 1), nn.Flatten(),
            nn.Linear(128 * ((size - window) // 3 + 1) ** 2, 1024), nn.ReLU(inplace=True), nn.Dropout(0.7),
            nn.Linear(1024, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class GoogLeNet(nn.Module):
    """The network of 2014, with both auxiliary classifiers; the side of an image is a multiple of 32."""

    def __init__(self, side: int, segment) -> None:
        super().__init__()
        module = {name: segment(Inception(*widths)) for name, widths in INCEPTION.items()}
        self.lower = nn.Sequential(
            segment(nn.Sequential(*_convolution(3, 64, 7, 2), _pooling(), _normalization())),
            segment(nn.Sequential(*_convolution(64, 64, 1), *_convolution(64, 192, 3), _normalization(), _pooling())),
            module['3a'], module['3b'], _pooling(), module['4a'])
        self.middle = nn.Sequential(module['4b'], module['4c'], module['4d'])
        self.upper = nn.Sequential(
            module['4e'], _pooling(), module['5a'], module['5b'], nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Dropout(0.4), nn.Linear(1024, 1000))
        self.auxiliary1 = AuxiliaryClassifier(512, side // 16)
        self.auxiliary2 = AuxiliaryClassifier(528, side // 16)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        lower = self.lower(images)
        auxiliary1 = self.auxiliary1(lower)
        middle = self.middle(lower)
        return self.upper(middle), auxiliary1, self.auxiliary2(middle)
