"""Rows of single operations: how far each is from what the card can do, and what it costs the host to queue one.

    convolution   one of ResNet50's, forward or one gradient, by what cuDNN chooses under several settings
    maps          kernels that read and write whole maps, beside a plain copy
    queueing      until a call of a tiny operation returns

They tell what makes an iteration slow, where it is: float32 without tensor cores, copies into the order that tensor
cores want, kernels of our own, or the program itself.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import here  # noqa: F401  chainer_ooc before chainer, and the examples on the path

# isort: split
import chainer
import chainer.functions as F
import numpy as np

import near
from chainer_ooc.kernels.cudnn import handles, normalization
from chainer_ooc.kernels.cudnn.operations import Convolution, Port
from chainer_ooc.kernels.cudnn.settings import PlanSettings
from engines import operation_of
from layers import Layer, layers_of

WAYS = {'forward': Port.Y, 'gradient of the input': Port.X, 'gradient of the filter': Port.W}
#: By name: what is asked of cuDNN, and whether channels come last.
SETTINGS = {
    'float32': (PlanSettings(None, False, False), False),
    'float32_repeatable': (PlanSettings(None, True, False), False),
    'float32_timed': (PlanSettings(None, False, False, timed=True), False),
    'tf32': (PlanSettings(None, False, True), False),
    'tf32_timed': (PlanSettings(None, False, True, timed=True), False),
    'tf32_last': (PlanSettings(None, False, True), True),
}
CHANNELS, SIDE = 256, 56  # of the maps of ResNet50's first stage
QUEUED = 200


def convolution(*, device: str, network: str, side: int, batch: int, number: int, way: str) -> dict[str, Any]:
    """One of a network's convolutions; `number` counts them from that with the most operations on.

    Raises:
        SkippedError: without a GPU there is no cuDNN.
        RuntimeError: cuDNN cannot be used.
    """
    on = _gpu(device)
    handle = handles.current()
    if handle is None:
        raise RuntimeError('cuDNN cannot be used; the warnings say why')
    layer = largest_convolutions(network, side)[number]
    return {'layer': str(layer), **speeds(handle, on.seconds_of, operation_of(layer, batch, 'float32', WAYS[way]))}


def largest_convolutions(network: str, side: int) -> list[Layer]:
    """The layers that convolve, but for the first, whose input needs no gradient, by their operations in all."""
    counts = {layer: count for layer, count in layers_of(network, side).items() if layer.weights and not layer.first}
    return sorted(counts, key=lambda layer: -counts[layer] * operations(operation_of(layer, 1, 'float32', Port.Y)))


def operations(operation: Convolution) -> int:
    """Of floating point: a product and a sum for each factor."""
    return 2 * prod(operation.y_shape) * prod(operation.w_shape[1:])


def speeds(handle: handles.Handle, seconds_of: Callable[[Callable[[], object]], float],
           operation: Convolution) -> dict[str, float]:
    """Operations per second under each of `SETTINGS` for which cuDNN has a kernel."""
    found = {}
    for name, (settings, last) in SETTINGS.items():
        asked = replace(operation, channels_last=last, filter_last=last)
        plan = handle.find(asked, settings)
        if plan is None:
            continue
        shapes = {Port.X: asked.x_shape, Port.W: asked.w_shape, Port.Y: asked.y_shape}
        arrays = {port: handle.empty((prod(shape),), np.dtype(asked.dtype)) for port, shape in shapes.items()}
        for array in arrays.values():
            array.fill(1)
        seconds = seconds_of(lambda plan=plan, arrays=arrays: handle.run(plan, arrays))
        found[f'{name}_per_second'] = operations(asked) / seconds
    return found


def maps(*, device: str, batch: int) -> dict[str, Any]:
    """Bytes per second of what each kernel has to read and write, see `normalization` for its own.

    Raises:
        SkippedError: without a GPU these kernels do not run.
    """
    on = _gpu(device)
    xp = on.array_module
    x, gy = (xp.ones((batch, CHANNELS, SIDE, SIDE), np.float32) for _ in range(2))
    gamma, beta = xp.ones(CHANNELS, np.float32), xp.zeros(CHANNELS, np.float32)
    _, mean, _, inv_std = normalization.forward(x, gamma, beta, 2e-5, 0.9, None, None)
    calls: Mapping[str, tuple[int, Callable[[], object]]] = {
        'copy': (2, x.copy), 'sum': (3, lambda: x + gy), 'relu': (2, lambda: F.relu(x).array),
        'normalize': (3, lambda: normalization.forward(x, gamma, beta, 2e-5, 0.9, None, None)),
        'normalize_backward': (5, lambda: normalization.backward(x, gamma, gy, mean, inv_std))}
    with chainer.using_config('enable_backprop', False):
        return {f'{name}_per_second': count * x.nbytes / on.seconds_of(call) for name, (count, call) in calls.items()}


def queueing(*, device: str) -> dict[str, Any]:
    """Seconds of the host for one call, without waiting for the card.

    Raises:
        SkippedError: without a GPU nothing is queued.
    """
    on = _gpu(device)
    xp = on.array_module
    x, w = xp.ones((1, 16, 8, 8), np.float32), xp.ones((16, 16, 1, 1), np.float32)
    gamma, beta = xp.ones(16, np.float32), xp.zeros(16, np.float32)
    calls: Mapping[str, Callable[[], object]] = {
        'empty': lambda: xp.empty(x.shape, x.dtype), 'sum': lambda: x + x, 'relu': lambda: F.relu(x),
        'convolution': lambda: F.convolution_2d(x, w), 'normalization': lambda: F.batch_normalization(x, gamma, beta)}
    found = {}
    for name, call in calls.items():
        call()
        on.synchronize()
        began = time.perf_counter()
        for _ in range(QUEUED):
            call()
        found[f'{name}_seconds'] = (time.perf_counter() - began) / QUEUED
    return found


def _gpu(device: str) -> near.Cuda:
    on = near.of(device)
    if not isinstance(on, near.Cuda):
        raise near.SkippedError('what is asked here runs on a GPU alone')
    return on
