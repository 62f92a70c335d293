"""A row that compares bits: losses, parameters, running statistics and momentum of a policy and of `keep`.

Four iterations each, under deterministic settings, the policy at half of keep's peak, or just above the smallest
budget that its refusal names. Dropout's random stream on a GPU is
seeded anew for each training.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
from typing import Any

import here  # noqa: F401  chainer_ooc before chainer, and the examples on the path

# isort: split
import chainer
import numpy as np

import chainer_ooc
import near
from chainer_ooc.errors import InfeasibleBudgetError
from training_row import Training, configured

ITERATIONS = 4
SHARE = 0.5


def compare(*, device: str, network: str, batch: int, policy: str, min_bytes: int,
            image_side: int | None) -> dict[str, Any]:
    """Trains twice and compares every array."""
    on = near.of(device)
    expected, peak_bytes = _in_core(device, network, batch, min_bytes, image_side)
    budget_bytes = int(SHARE * peak_bytes)
    try:
        found, _, swapped_out_bytes = _trained(on, network, batch, policy, budget_bytes, min_bytes, image_side)
    except InfeasibleBudgetError as refused:
        budget_bytes = int(1.02 * refused.floor_bytes)
        found, _, swapped_out_bytes = _trained(on, network, batch, policy, budget_bytes, min_bytes, image_side)
    names = sorted(expected.keys() | found.keys())
    different = [name for name in names if expected.get(name) != found.get(name)]
    return {'iterations': ITERATIONS, 'equal': not different, 'different': different[:20],
            'arrays_equal': f'{len(names) - len(different)} of {len(names)}', 'budget_bytes': budget_bytes,
            'in_core_peak_bytes': peak_bytes, 'swapped_out_bytes': swapped_out_bytes}


@functools.cache
def _in_core(device: str, network: str, batch: int, min_bytes: int,
             image_side: int | None) -> tuple[dict[str, str], int]:
    """What all policies are compared with, once in a process: digests and peak of `keep`."""
    digests, peak_bytes, _ = _trained(near.of(device), network, batch, 'keep', None, min_bytes, image_side)
    return digests, peak_bytes


def _trained(on: near.Host | near.Cuda, network: str, batch: int, policy: str, budget_bytes: int | None,
             min_bytes: int, image_side: int | None) -> tuple[dict[str, str], int, int]:
    """Digests by name, the highest peak, and what was swapped out in the last iteration."""
    np.random.seed(0)
    if on.name == 'cuda':
        with contextlib.suppress(ImportError, RuntimeError):  # without cuRAND nothing draws on the device
            on.array_module.random.seed(0)
    digests, peaks = {}, []
    with configured(policy, budget_bytes, min_bytes=min_bytes, cudnn_deterministic=True):
        training = Training(network, batch, image_side, on)
        for number in range(ITERATIONS):
            training.iterate()
            digests[f'loss {number}'] = training.loss.hex()
            stats = chainer_ooc.stats()
            peaks.append(stats.peak_bytes)
    training.model.to_device('@numpy')
    serializer = chainer.serializers.DictionarySerializer()
    serializer['chain'].save(training.model)
    serializer['optimizer'].save(training.optimizer)
    for name, value in serializer.target.items():
        array = chainer.backend.CpuDevice().send(value) if hasattr(value, 'shape') else np.asarray(value)
        digests[name] = hashlib.sha256(repr((array.dtype, array.shape)).encode() + array.tobytes()).hexdigest()
    del training
    on.trim()
    return digests, max(peaks), stats.swapped_out_bytes
