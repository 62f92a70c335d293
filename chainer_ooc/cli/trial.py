"""What ``doctor`` tries: a tiny training with every feature map swapped, and one convolution with a workspace.

The first shows whether all parts work together on this machine, the second what ``ooc_workspace`` brings here.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

from chainer_ooc.errors import WORKSPACE, OocError
from chainer_ooc.profiling.profile import configured
from chainer_ooc.quantities import parse_bytes

_ITERATIONS = 5  # recorded, and again where kernels were compiled; planned, while memory is pinned; and run
#: Images, channels in and out, and the side of the images, of a convolution of 3x3 as in the middle of ResNet50.
_CONVOLUTION = (16, 64, 56)
_PASSES = 3


def try_workspace() -> dict[str, Any]:
    """Times a convolution as NumPy computes it, without ``ooc_workspace`` and with it.

    Returns:
        The medians of a few runs, and what buffers take.
    """
    import chainer
    import chainer.functions as F
    import numpy as np

    images, channels, side = _CONVOLUTION
    x = np.ones((images, channels, side, side), np.float32)
    weights = np.ones((channels, channels, 3, 3), np.float32)
    found = {}
    for workspace in None, WORKSPACE:
        times = []
        with configured(ooc_workspace=workspace, use_ideep='never'), chainer.no_backprop_mode():
            for _ in range(_PASSES + 1):  # the first one has the system make pages
                began = time.perf_counter()
                F.convolution_2d(x, weights, pad=1)
                times.append(time.perf_counter() - began)
        found[workspace] = statistics.median(times[1:])
    return {'seconds': found[None], 'workspace_seconds': found[WORKSPACE],
            'scratch_bytes': 9 * math.prod(x.shape) * x.itemsize, 'workspace_bytes': parse_bytes(WORKSPACE)}


def try_training(spill_dir: str | None, device: str = '@numpy') -> dict[str, int]:
    """Trains in-core and with every map swapped, on a device as Chainer names it, and compares.

    Returns:
        Of the last iteration, how many maps were swapped out, and what was swapped in: a map that is read before its
        swap-out has ended never left.

    Raises:
        OocError: nothing was swapped, or the gradients differ.
    """
    import chainer_ooc

    expected = _gradients(device)
    try:
        with configured(ooc='swap-all', ooc_min_bytes=0, ooc_spill_dir=spill_dir):
            found = [_gradients(device) for _ in range(_ITERATIONS)]
            stats = chainer_ooc.stats()
    finally:
        chainer_ooc.reset()
    if stats is None or not stats.swap:
        raise OocError('a tiny network trained, and none of its feature maps was swapped')
    if any(gradients != expected for gradients in found):
        raise OocError('a tiny network trained with other gradients than in-core')
    return {'swap': stats.swap, 'swapped_in_bytes': stats.swapped_in_bytes}


def _gradients(device: str) -> list[bytes]:
    """Gradients of a network of fixed weights, as the bytes of float32 arrays."""
    import chainer
    import chainer.functions as F
    import chainer.links as L
    import numpy as np

    size = 64
    weights = np.linspace(-1, 1, size * size, dtype=np.float32).reshape(size, size)
    where = chainer.get_device(device)
    layers = [L.Linear(size, size, initialW=weights * scale).to_device(where) for scale in (0.2, 0.3)]
    images = where.send(weights[:32] * 2)
    hidden = F.relu(layers[0](images))
    loss = F.sum(F.sigmoid(layers[1](hidden)) ** 2)
    loss.backward()
    to_host = chainer.get_device('@numpy').send
    return [to_host(layer.W.grad).tobytes() for layer in layers]
