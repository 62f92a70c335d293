"""The networks of SuperNeurons' tables, layer by layer.

Images have 227 x 227 pixels (Inception v4: 299 x 299), convolutions are not grouped, no pooling but Inception's average
pads, and rounds down. The paper says none of this for its residual networks; its authors' public release does, and the
455.125 MB of its table 1 come out of it exactly. With forks and joins, ResNet152 has 565 layers and Inception v4 has
513; the paper counts 567 and 515.

Source: SuperNeurons, footnote 3 of section 4.1.1 (AlexNet) and its public release; Simonyan and Zisserman (2015), table
1, D; He et al. (2016), table 1; Szegedy et al. (2017), figures 3 to 9.
"""

from __future__ import annotations

from typing import Any

from chainer_ooc.papers.layers import Layer, Network, Shape

#: Units of the four stages of a residual network, by its number of layers.
RESIDUAL_UNITS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}

_VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)  # 0: pooling


class _Builder:
    """Appends layers; `at` is the position of the one that the next reads."""

    def __init__(self, pixels: int) -> None:
        self.layers = [Layer('data', 'data', (3, pixels, pixels), ())]
        self.at = 0

    def append(self, name: str, kind: str, shape: Shape | None = None, inputs: tuple[int, ...] = (),
               weights: int = 0) -> int:
        """Adds a layer that reads `inputs`, by default the current one, with its input's shape by default."""
        inputs = inputs or (self.at,)
        self.layers.append(Layer(name, kind, shape or self.layers[inputs[0]].shape, inputs, weights))
        self.at = len(self.layers) - 1
        return self.at

    def conv(self, name: str, channels: int, kernel: int | tuple[int, int], stride: int = 1, pad: int | None = None,
             bias: bool = True) -> None:
        """Without a pad, the kernel's half is padded."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        before, *sides = self.layers[self.at].shape
        rows, columns = (
            (side + 2 * (size // 2 if pad is None else pad) - size) // stride + 1
            for side, size in zip(sides, (height, width), strict=True))
        self.append(name, 'conv', (channels, rows, columns), (), (before * height * width + bias) * channels)

    def pool(self, name: str, kernel: int = 3, stride: int = 2, pad: int = 0) -> None:
        channels, height, width = self.layers[self.at].shape
        rows, columns = ((side + 2 * pad - kernel) // stride + 1 for side in (height, width))
        self.append(name, 'pool', (channels, rows, columns))

    def bn(self, name: str) -> None:
        self.append(name, 'bn', weights=2 * self.layers[self.at].shape[0])

    def normalized(self, name: str, channels: int, kernel: int | tuple[int, int], stride: int = 1,
                   pad: int | None = None) -> None:
        """A convolution with its normalisation and activation."""
        self.conv(f'conv{name}', channels, kernel, stride, pad, bias=False)
        self.bn(f'bn{name}')
        self.append(f'relu{name}', 'act')

    def fc(self, name: str, size: int) -> None:
        before = self.layers[self.at].numbers
        self.append(name, 'fc', (size, 1, 1), (), (before + 1) * size)

    def classify(self, name: str) -> None:
        self.fc(name, 1000)
        self.append('softmax', 'softmax')

    def classify_by_three(self) -> None:
        """The end of AlexNet and VGG16: two layers with activation and dropout before the one that classifies."""
        for number in (1, 2):
            self.fc(f'fc{number}', 4096)
            self.append(f'relu{number + 5}', 'act')
            self.append(f'dropout{number}', 'dropout')
        self.classify('fc3')

    def together(self, kind: str, ends: list[int]) -> None:
        """Joins branches by adding or by concatenating them."""
        channels, *sides = self.layers[ends[0]].shape
        if kind == 'concat':
            channels = sum(self.layers[each].shape[0] for each in ends)
        self.append(kind, kind, (channels, sides[0], sides[1]), tuple(ends))


def alexnet() -> Network:
    """AlexNet with 23 layers."""
    net = _Builder(227)
    for number, channels, kernel, stride, pad in ((1, 96, 11, 4, 0), (2, 256, 5, 1, 2), (3, 384, 3, 1, 1),
                                                  (4, 384, 3, 1, 1), (5, 256, 3, 1, 1)):
        net.conv(f'conv{number}', channels, kernel, stride, pad)
        net.append(f'relu{number}', 'act')
        if number < 3:
            net.append(f'lrn{number}', 'lrn')
        if number in (1, 2, 5):
            net.pool(f'pool{number}')
    net.classify_by_three()
    return Network('AlexNet', tuple(net.layers))


def vgg16() -> Network:
    """VGG16."""
    net = _Builder(227)
    for number, channels in enumerate(_VGG16, start=1):
        if channels:
            net.conv(f'conv{number}', channels, 3)
            net.append(f'relu{number}', 'act')
        else:
            net.pool(f'pool{number}', 2)
    net.classify_by_three()
    return Network('VGG16', tuple(net.layers))


def resnet(*units: int) -> Network:
    """A residual network with bottlenecks, by its units in each of four stages; see `RESIDUAL_UNITS`."""
    net = _Builder(227)
    net.normalized('1', 64, 7, 2)
    net.pool('pool1')
    for stage, count in enumerate(units):
        for number in range(count):
            _unit(net, f'{stage + 2}.{number + 1}', 64 << stage, 2 if stage and not number else 1, not number)
    net.pool('pool2', 7, 1)
    net.classify('fc')
    return Network(f'ResNet{3 * sum(units) + 2}', tuple(net.layers))


def _unit(net: _Builder, name: str, channels: int, stride: int, is_projected: bool) -> None:
    fork = net.append(f'fork{name}', 'fork')
    if is_projected:
        net.conv(f'conv{name}s', 4 * channels, 1, stride, bias=False)
        net.bn(f'bn{name}s')
    shortcut, net.at = net.at, fork
    net.normalized(f'{name}a', channels, 1, stride)
    net.normalized(f'{name}b', channels, 3)
    net.conv(f'conv{name}c', 4 * channels, 1, bias=False)
    net.bn(f'bn{name}c')
    net.together('join', [shortcut, net.at])
    net.append(f'relu{name}', 'act')


# Branches of Inception v4. A convolution is (channels, kernel), with a stride and a pad if they are not 1 and half the
# kernel; 'mean' pools with a stride of 1, 'max' with a stride of 2. A branch may end in branches.
_STEM_1 = (('max',), ((96, 3, 2, 0),))
_STEM_2 = (((64, 1), (96, 3, 1, 0)), ((64, 1), (64, (7, 1)), (64, (1, 7)), (96, 3, 1, 0)))
_STEM_3 = (((192, 3, 2, 0),), ('max',))
_A = (((96, 1),), ((64, 1), (96, 3)), ((64, 1), (96, 3), (96, 3)), ('mean', (96, 1)))
_A_TO_B = (((384, 3, 2, 0),), ((192, 1), (224, 3), (256, 3, 2, 0)), ('max',))
_B = (((384, 1),), ((192, 1), (224, (1, 7)), (256, (7, 1))),
      ((192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)), (256, (7, 1))), ('mean', (128, 1)))
_B_TO_C = (((192, 1), (192, 3, 2, 0)), ((256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3, 2, 0)), ('max',))
_C_ENDS = (((256, (1, 3)),), ((256, (3, 1)),))
_C = (((256, 1),), ((384, 1), _C_ENDS), ((384, 1), (448, (1, 3)), (512, (3, 1)), _C_ENDS), ('mean', (256, 1)))
_INCEPTION = (_STEM_1, _STEM_2, _STEM_3, *[_A] * 4, _A_TO_B, *[_B] * 7, _B_TO_C, *[_C] * 3)


def inception_v4() -> Network:
    """Inception v4 for images of 299 x 299 pixels."""
    net = _Builder(299)
    for number, (channels, stride, pad) in enumerate(((32, 2, 0), (32, 1, 0), (64, 1, 1)), start=1):
        net.normalized(str(number), channels, 3, stride, pad)
    for number, branches in enumerate(_INCEPTION, start=1):
        net.together('concat', _branches(net, str(number), branches))
    net.pool('pool', 8, 1)
    net.append('dropout', 'dropout')
    net.classify('fc')
    return Network('InceptionV4', tuple(net.layers))


def _branches(net: _Builder, name: str, branches: tuple[Any, ...]) -> list[int]:
    """Appends a fork and its branches, and returns where they end."""
    fork = net.append(f'fork{name}', 'fork')
    ends: list[int] = []
    for letter, branch in zip('abcdef', branches):  # noqa: B905 - as many letters as branches
        net.at = fork
        for number, step in enumerate(branch, start=1):
            where = f'{name}{letter}{number}'
            if step is _C_ENDS:
                ends += _branches(net, where, step)
                break
            if isinstance(step, str):
                net.pool(f'pool{where}', 3, *((1, 1) if step == 'mean' else (2, 0)))
            else:
                net.normalized(where, *step)
        else:
            ends.append(net.at)
    return ends
