"""The convolution and pooling layers of a network, found by watching it run, and run one at a time.

Equal layers are one entry with a count. Left out: everything else in a network; see overhead.py for whole iterations.
"""
from __future__ import annotations

import collections
import dataclasses
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import chainer
import chainer.functions as F
import numpy

from models import ARCHITECTURES


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        kind: 'convolution', 'max pooling' or 'average pooling'.
        image: Channels, height and width of its input.
        weights: Shape of its weights, or None.
        biased: Whether it has a bias.
        geometry: Keyword arguments of Chainer's function.
        first: Whether its input is the network's, which needs no gradient.
    """

    kind: str
    image: tuple[int, ...]
    weights: tuple[int, ...] | None
    biased: bool
    geometry: tuple[tuple[str, Any], ...]
    first: bool

    def __str__(self) -> str:
        given = dict(self.geometry)
        window = self.weights[2:] if self.weights else given['ksize']
        channels = f' to {self.weights[0]}' if self.weights else ''
        return (f"{self.kind} {'x'.join(map(str, window))}/{given['stride'][0]} "
                f"{'x'.join(map(str, self.image))}{channels}")


class Watch(chainer.FunctionHook):
    """Counts the layers that are called while it is the function hook."""

    def __init__(self, images: numpy.ndarray) -> None:
        self.layers: collections.Counter[Layer] = collections.Counter()
        self._images = images

    def forward_postprocess(self, function: Any, in_data: tuple[numpy.ndarray, ...]) -> None:
        name = type(function).__name__
        if name == 'Convolution2DFunction':
            kind, weights = 'convolution', in_data[1].shape
            geometry = {'stride': (function.sy, function.sx), 'pad': (function.ph, function.pw),
                        'dilate': (function.dy, function.dx), 'groups': function.groups}
        elif name == 'MaxPoolingND':
            kind, weights = 'max pooling', None
            geometry = {'ksize': function.ksize, 'stride': function.stride, 'pad': function.pad,
                        'cover_all': function.cover_all}
        elif name == 'AveragePooling2D':
            kind, weights = 'average pooling', None
            geometry = {'ksize': (function.kh, function.kw), 'stride': (function.sy, function.sx),
                        'pad': (function.ph, function.pw)}
        else:
            return
        self.layers[Layer(kind, in_data[0].shape[1:], weights, len(in_data) == 3, tuple(geometry.items()),
                          in_data[0] is self._images)] += 1


def layers_of(network: str, crop: int) -> dict[Layer, int]:
    """Finds the layers of a network of `models.ARCHITECTURES` and how often each is there."""
    images = numpy.zeros((1, 3, crop, crop), numpy.float32)
    chain = ARCHITECTURES[network].build(10)
    with chainer.using_config('enable_backprop', False), Watch(images) as watch:
        chain(images, numpy.zeros(1, numpy.int32))
    return dict(watch.layers)


class Bench:
    """A layer with data, to be run forward and backward.

    Args:
        layer: The layer.
        batchsize: Images.
        clock: Gives seconds.
    """

    def __init__(self, layer: Layer, batchsize: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        random = numpy.random.default_rng(0)
        self._layer = layer
        self._x = random.standard_normal((batchsize, *layer.image), numpy.float32)
        self._parameters = []
        if layer.weights:
            self._parameters.append(random.standard_normal(layer.weights, numpy.float32))
        if layer.biased:
            self._parameters.append(random.standard_normal(layer.weights[:1], numpy.float32))
        self._gy = None

    def run(self, workspace: int | None) -> tuple[float, float]:
        """Runs the layer once.

        Returns:
            tuple: Seconds of forward and of backward.
        """
        x = self._x if self._layer.first else chainer.Variable(self._x)
        parameters = [chainer.Parameter(array) for array in self._parameters]
        with chainer.using_config('ooc_workspace', workspace):
            began = self._clock()
            y = self._call(x, parameters)
            forward_seconds = self._clock() - began
            if self._gy is None:
                self._gy = numpy.random.default_rng(1).standard_normal(y.shape, numpy.float32)
            y.grad = self._gy
            began = self._clock()
            y.backward()
            return forward_seconds, self._clock() - began

    def scratch_bytes(self, workspace: int | None) -> int:
        """Returns the most that forward took besides what it gives and keeps."""
        tracemalloc.start()
        try:
            with chainer.using_config('ooc_workspace', workspace):
                y = self._call(chainer.Variable(self._x), self._parameters)
            left, peak = tracemalloc.get_traced_memory()
            del y
            return peak - left
        finally:
            tracemalloc.stop()

    def _call(self, x: Any, parameters: list[Any]) -> chainer.Variable:
        function = {'convolution': F.convolution_2d, 'max pooling': F.max_pooling_2d,
                    'average pooling': F.average_pooling_2d}[self._layer.kind]
        return function(x, *parameters, **dict(self._layer.geometry))
