"""The peer: ResNet50 in PyTorch on the same card, in-core, with checkpoints, and with feature maps in pinned memory.

The network is ours, layer by layer (`models.resnet`: a stage halves the image in its first 1x1 convolution), with
momentum SGD and data that lie on the device. As in Chainer's rows convolutions and products are float32 without TF32.
The budget is PyTorch's own limit, `torch.cuda.set_per_process_memory_fraction`.

Source: the three ways are those of PyTorch's documentation: `torch.utils.checkpoint`, here around each residual
unit, and `torch.autograd.graph.save_on_cpu(pin_memory=True)`.
"""
from __future__ import annotations

import contextlib
import pathlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

import evidence
import profiler
from pace import Pace

SETTLE = 2
LEARNING_RATE = 0.001
BLOCKS = (3, 4, 6, 3)


def train(*, device: str, mode: str, batch: int, iterations: int, budget_bytes: int | None,
          image_side: int, tf32: bool, trace: str | None = None) -> dict[str, Any]:
    """Trains ResNet50 and returns the seconds of an iteration and the allocator's peaks; see `training_row.train`.

    Raises:
        RuntimeError: PyTorch is not installed, or has no GPU.
        OutOfTimeError: it cannot end in its time.
    """
    try:
        import torch
    except ImportError:
        raise RuntimeError('PyTorch is not installed; it is only the peer of the comparison') from None
    on_gpu = device == 'cuda'
    if on_gpu and not torch.cuda.is_available():
        raise RuntimeError('this PyTorch has no GPU')
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    if on_gpu:
        torch.cuda.init()
        if budget_bytes is not None:
            total_bytes = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(budget_bytes / total_bytes, 1.0))
    where = torch.device('cuda:0' if on_gpu else 'cpu')
    model = _network(torch, mode == 'checkpoint').to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    images = torch.rand(batch, 3, image_side, image_side, device=where)
    labels = torch.arange(batch, device=where) % 1000

    host_seconds: list[float] = []

    def iterate() -> float:
        saved = torch.autograd.graph.save_on_cpu(pin_memory=on_gpu) if mode == 'save_on_cpu' else (
            contextlib.nullcontext())
        _synchronize(torch, on_gpu)
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with saved:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
        optimizer.step()
        host_seconds.append(time.perf_counter() - began)
        _synchronize(torch, on_gpu)
        return time.perf_counter() - began

    _, times = Pace().run(iterate, SETTLE, iterations, _peaks_from_here(torch, on_gpu), evidence.note)
    peaks: dict[str, Any] = {'peak_bytes': torch.cuda.max_memory_allocated(),
             'held_peak_bytes': torch.cuda.max_memory_reserved()} if on_gpu else {}
    median_seconds = statistics.median(times)
    timed = host_seconds[-len(times):]
    if trace is not None and on_gpu:
        peaks['profile'] = profiler.profile(iterate, torch.cuda.synchronize, pathlib.Path(trace))
    return {'seconds': median_seconds, 'spread': [min(times), max(times)], 'images_per_second': batch / median_seconds,
            'host_seconds': statistics.median(timed),
            'torch': torch.__version__, 'cudnn': torch.backends.cudnn.version(), **peaks}


@contextlib.contextmanager
def _peaks_from_here(torch: Any, on_gpu: bool) -> Iterator[None]:
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    yield


def _synchronize(torch: Any, on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def _network(torch: Any, checkpoints: bool) -> Any:
    """ResNet50; with `checkpoints` the maps within a residual unit are computed a second time."""
    from torch.utils.checkpoint import checkpoint

    nn = torch.nn

    def convolution(inner: int, outer: int, side: int, stride: int = 1) -> Any:
        return nn.Sequential(nn.Conv2d(inner, outer, side, stride, side // 2, bias=False), nn.BatchNorm2d(outer))

    class Unit(nn.Module):
        def __init__(self, inner: int, width: int, outer: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(convolution(inner, width, 1, stride), nn.ReLU(), convolution(width, width, 3),
                                      nn.ReLU(), convolution(width, outer, 1))
            self.shortcut = convolution(inner, outer, 1, stride) if inner != outer else nn.Identity()

        def forward(self, x: Any) -> Any:
            return checkpoint(self.computed, x, use_reentrant=False) if checkpoints else self.computed(x)

        def computed(self, x: Any) -> Any:
            return torch.relu(self.body(x) + self.shortcut(x))

    units, inner = [], 64
    for number, count in enumerate(BLOCKS):
        width = 64 * 2**number
        for place in range(count):
            units.append(Unit(inner, width, 4 * width, 2 if number and not place else 1))
            inner = 4 * width
    return nn.Sequential(convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *units,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000))
