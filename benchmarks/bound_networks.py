"""The networks that the bound is worked out for: those of the examples, and small forms of three more kinds.

`UNet` has skips over the whole network, so that maps are away for long. `TransformerEncoder` has many maps of equal
size beside each other. `LSTM` has many small ones, each read by the step before and behind it.

Left out: what no feature map depends on, such as embeddings of positions, and dropout.
"""
from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import surroundings  # noqa: F401  puts the examples on the path

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from models import ARCHITECTURES
from models.densenet import LAYERS, DenseNet
from models.resnext3d import ResNeXt3D


@dataclasses.dataclass(frozen=True)
class Network:
    """A network and what it is recorded with.

    Attributes:
        title: how tables call it.
        build: makes the chain; called as ``chain(examples, classes)`` it returns the loss.
        shape: of one example.
        examples: in the recorded batch. Times grow with the batch from there on, those of parameters too: so many that
            a layer takes longer for its examples than for its parameters.
    """

    title: str
    build: Callable[[], chainer.Chain]
    shape: tuple[int, ...]
    examples: int = 2


class UNet(chainer.Chain):
    """Halves the image four times, doubles it four times, each time beside what it was on the way down.

    Source: Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation", 2015, figure 1. What
    differs: convolutions are padded, so that nothing is cropped.

    Args:
        channels: behind the first convolution.
        depth: how often the image is halved.
    """

    def __init__(self, channels: int = 64, depth: int = 4):
        super().__init__()
        sizes = [channels * 2 ** level for level in range(depth + 1)]
        with self.init_scope():
            self.down = chainer.ChainList(*(_twice(before, after) for before, after in zip(
                [1, *sizes[:-1]], sizes, strict=True)))
            self.grow = chainer.ChainList(*(
                L.Deconvolution2D(2 * size, size, 2, 2) for size in reversed(sizes[:-1])))
            self.up = chainer.ChainList(*(_twice(2 * size, size) for size in reversed(sizes[:-1])))
            self.pixel = L.Convolution2D(channels, 2, 1)

    def forward(self, images: np.ndarray, classes: np.ndarray) -> chainer.Variable:
        h, skips = self.down[0](images), []
        for each in self.down[1:]:
            skips.append(h)
            h = each(F.max_pooling_2d(h, 2))
        for grow, each in zip(self.grow, self.up, strict=True):
            h = each(F.concat([skips.pop(), grow(h)]))
        pixels = np.resize(classes % 2, (len(images), *images.shape[2:]))
        return F.softmax_cross_entropy(self.pixel(h), pixels)


def _twice(before: int, after: int) -> chainer.Sequential:
    return chainer.Sequential(L.Convolution2D(before, after, 3, pad=1), F.relu,
                              L.Convolution2D(after, after, 3, pad=1), F.relu)


class EncoderLayer(chainer.Chain):
    """Self-attention and two linear layers, each normalised before and added to what it has read."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.heads = heads
        with self.init_scope():
            self.before_attention, self.before_linear = L.LayerNormalization(size), L.LayerNormalization(size)
            self.to_heads, self.from_heads = L.Linear(size, 3 * size), L.Linear(size, size)
            self.widen, self.narrow = L.Linear(size, 4 * size), L.Linear(4 * size, size)

    def forward(self, rows: chainer.Variable, batch: int) -> chainer.Variable:
        rows += self.from_heads(self._attend(self.to_heads(self.before_attention(rows)), batch))
        return rows + self.narrow(F.relu(self.widen(self.before_linear(rows))))

    def _attend(self, rows: chainer.Variable, batch: int) -> chainer.Variable:
        by_head = F.transpose(F.reshape(rows, (batch, -1, 3, self.heads, rows.shape[1] // 3 // self.heads)),
                              (2, 0, 3, 1, 4))
        queries, keys, values = F.separate(by_head)
        shares = F.softmax(F.matmul(queries, keys, transb=True) * keys.shape[-1] ** -0.5, axis=3)
        return F.reshape(F.transpose(F.matmul(shares, values), (0, 2, 1, 3)), (len(rows), -1))


class TransformerEncoder(chainer.Chain):
    """Encodes square patches of images, and classifies their mean.

    Source: Vaswani et al., "Attention Is All You Need", 2017, section 3; Dosovitskiy et al., "An Image is Worth 16x16
    Words", 2020, for patches and for sizes (ViT-B/16). What differs: ReLU, and the mean in place of a token of classes.
    """

    def __init__(self, layers: int = 12, size: int = 768, heads: int = 12, patch: int = 16):
        super().__init__()
        with self.init_scope():
            self.patches = L.Convolution2D(3, size, patch, patch)
            self.layers = chainer.ChainList(*(EncoderLayer(size, heads) for _ in range(layers)))
            self.norm, self.top = L.LayerNormalization(size), L.Linear(size, 1000)

    def forward(self, images: np.ndarray, classes: np.ndarray) -> chainer.Variable:
        h = self.patches(images)
        rows = F.reshape(F.transpose(h, (0, 2, 3, 1)), (-1, h.shape[1]))
        for each in self.layers:
            rows = each(rows, len(images))
        means = F.mean(F.reshape(self.norm(rows), (len(images), -1, h.shape[1])), axis=1)
        return F.softmax_cross_entropy(self.top(means), classes)


class LSTM(chainer.Chain):
    """Layers of LSTM over a sequence of vectors; the last state is classified.

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, with the forget gate of Gers et al., 2000.
    """

    def __init__(self, inputs: int = 128, size: int = 256, layers: int = 2):
        super().__init__()
        with self.init_scope():
            self.layers = chainer.ChainList(*(
                L.StatelessLSTM(size if layer else inputs, size) for layer in range(layers)))
            self.top = L.Linear(size, 1000)

    def forward(self, sequences: np.ndarray, classes: np.ndarray) -> chainer.Variable:
        states: list[tuple[chainer.Variable | None, chainer.Variable | None]] = [(None, None)] * len(self.layers)
        for time in range(sequences.shape[1]):
            h = sequences[:, time]
            for number, layer in enumerate(self.layers):
                states[number] = layer(*states[number], h)
                h = states[number][1]
        return F.softmax_cross_entropy(self.top(h), classes)


NETWORKS = {
    **{name: Network(each.title, each.build, (3, 224, 224)) for name, each in ARCHITECTURES.items()},
    'resnext3d': Network('ResNeXt101 (3D)', ResNeXt3D, (3, 16, 112, 112)),
    'unet': Network('U-Net', UNet, (1, 256, 256)),
    'densenet': Network('DenseNet121', functools.partial(DenseNet, LAYERS[121]), (3, 224, 224)),
    'transformer': Network('Transformer encoder', TransformerEncoder, (3, 224, 224)),
    'lstm': Network('LSTM', LSTM, (100, 128), 64),
}
