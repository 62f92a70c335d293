"""A row that trains: seconds per iteration, peaks, what was predicted of both, and what happened on the way.

    settle          iterations in which the graph is recorded, planned, and planned again
    iterations      timed: forward, backward and update, from one synchronised moment to the next
    one more        in which a thread watches the driver's memory, and no time is taken

Data lie on the device, weights are random, the optimizer is momentum SGD. 'plain' is Chainer with `ooc` unset.
"""
from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

import here  # noqa: F401  chainer_ooc before chainer, and the examples on the path

# isort: split
import chainer
import near
import networks

import chainer_ooc

LEARNING_RATE = 0.001
#: Most of cuDNN's kernels for tensor cores keep copies of x and y in another order: ResNet50's second stage 0.98 GiB.
TF32 = {'use_cudnn_tensor_core': 'always', 'ooc_workspace': '1.1GB'}


class Training:
    """A network, its batch on the device, and its optimizer."""

    def __init__(self, network: str, batch: Any, image_side: int | None, device: near.Host | near.Cuda) -> None:
        self._device = device
        self.model, self._batch = networks.build(network, batch, image_side, device)
        self.optimizer = chainer.optimizers.MomentumSGD(lr=LEARNING_RATE, momentum=0.9).setup(self.model)
        self.loss = float('nan')

    def iterate(self) -> float:
        """Runs one iteration and returns its seconds."""
        self._device.synchronize()
        began = time.perf_counter()
        loss = self.model(*self._batch)
        self.model.cleargrads()
        loss.backward()
        self.optimizer.update()
        self._device.synchronize()
        seconds = time.perf_counter() - began
        self.loss = float(loss.array)
        return seconds


@contextlib.contextmanager
def configured(policy: str, budget_bytes: int | None, allocator: str | None = None,
               min_bytes: int | None = None, **entries: Any) -> Iterator[None]:
    """Sets chainer.config.ooc* meanwhile, and forgets all plans afterwards."""
    asked = {'ooc_budget': budget_bytes, 'ooc_allocator': allocator, 'ooc_min_bytes': min_bytes,
             'ooc': None if policy == 'plain' else policy}
    with contextlib.ExitStack() as stack:
        stack.callback(chainer_ooc.reset)
        for name, value in {**entries, **{key: value for key, value in asked.items() if value is not None}}.items():
            stack.enter_context(chainer.using_config(name, value))
        yield


def train(*, device: str, network: str, batch: Any, policy: str, budget_bytes: int | None, settle: int,
          iterations: int, min_bytes: int, image_side: int | None, allocator: str | None = None,
          tf32: bool = False) -> dict[str, Any]:
    """Trains and returns the figures of the timed iterations."""
    on = near.of(device)
    on.trim()
    base_bytes = on.used_bytes()
    try:
        with configured(policy, budget_bytes, allocator, min_bytes, **(TF32 if tf32 else {})):
            return _figures(Training(network, batch, image_side, on), on, base_bytes, policy, batch, settle, iterations)
    finally:
        on.trim()


def warm_up(*, device: str, network: str, batch: int, image_side: int | None) -> dict[str, Any]:
    """Two iterations of plain Chainer, the first of which compiles each kernel that the cache lacks."""
    on = near.of(device)
    training = Training(network, batch, image_side, on)
    first_seconds, second_seconds = training.iterate(), training.iterate()
    return {'first_seconds': first_seconds, 'second_seconds': second_seconds}


def _figures(training: Training, on: near.Host | near.Cuda, base_bytes: int, policy: str, batch: Any, settle: int,
             iterations: int) -> dict[str, Any]:
    before = [training.iterate() for _ in range(settle)]
    stats, times = [], []
    for _ in range(iterations):
        times.append(training.iterate())
        stats.append(chainer_ooc.stats())
    with near.highest(on) as seen:
        training.iterate()
    median_seconds = statistics.median(times)
    return {
        'seconds': median_seconds, 'spread': [min(times), max(times)], 'all_seconds': times, 'settle_seconds': before,
        'images_per_second': networks.images_of(batch) / median_seconds, 'loss': training.loss,
        'driver_peak_bytes': seen[0] - base_bytes, 'driver_base_bytes': base_bytes,
        **({} if policy == 'plain' else _accounted(stats)),
    }


def _accounted(stats: list[chainer_ooc.IterationStats]) -> dict[str, Any]:
    """What the statistics say of the timed iterations: the highest peak, the middle of the rest."""
    last = stats[-1]
    predicted = [each.predicted_seconds for each in stats if each.predicted_seconds is not None]
    return {
        'phases': sorted({each.phase for each in stats}), 'peak_bytes': max(each.peak_bytes for each in stats),
        'predicted_peak_bytes': last.predicted_peak_bytes,
        'predicted_seconds': statistics.median(predicted) if predicted else None,
        'accounted_seconds': statistics.median(each.seconds for each in stats),
        'stall_seconds': statistics.median(each.stall_seconds for each in stats),
        'verdicts': f'{last.keep}/{last.swap}/{last.recompute}', 'faults': max(each.faults for each in stats),
        'recomputed_calls': last.recomputed_calls, 'swapped_out_bytes': last.swapped_out_bytes,
        'swapped_in_bytes': last.swapped_in_bytes,
    }
