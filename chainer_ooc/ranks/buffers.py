"""What exchanges of gradients will keep on a GPU, before the first of them has allocated it.

    communicator    keeps                                                       allocated by
    naive           nothing; MPI has buffers of its own on the host
    flat            two buffers of all gradients, in float32                    the first exchange
    pure_nccl       one of all parameters in chainer.config.dtype;              the first update, which sends them
                    two of all gradients in allreduce_grad_dtype, or the same   the first exchange

With double buffering the first update also copies the model with its gradients. What is allocated already is counted
with all else on the device. Left out: NCCL's own buffers, which CuPy does not see.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

#: Of `flat`, whatever the gradients are.
_FLAT_ITEMSIZE = 4


def to_come_bytes(parameters: Sequence[Any]) -> int:
    """Bytes that optimizers over several ranks will have their communicators keep, and do not yet.

    Args:
        parameters: those of the training; an optimizer with none of them does not count.
    """
    seam = sys.modules.get('chainer._ooc')
    if seam is None or not seam.exchanging:
        return 0
    known = {id(each) for each in parameters}
    optimizers = [each for ref in seam.exchanging if (each := ref()) is not None]
    return sum(_of_optimizer(each, known) for each in optimizers)


def _of_optimizer(optimizer: Any, known: set[int]) -> int:
    target = optimizer.target
    own = [] if target is None else [each for each in target.params() if each.array is not None]
    if not known.intersection(map(id, own)):
        return 0
    elements = sum(int(each.size) for each in own)
    nbytes = sum(max(0, itemsize * elements - int(buffer.size))
                 for buffer, itemsize in _buffers(optimizer.communicator))
    is_doubled = 'communicated_target' in vars(optimizer)
    if is_doubled and optimizer.communicated_target is None:
        nbytes += 2 * sum(int(each.array.nbytes) for each in own)
    return nbytes


def _buffers(communicator: Any) -> Iterator[tuple[Any, int]]:
    """The buffers that a communicator has, and the bytes that each will hold for an element."""
    import chainer

    found = {name: buffer for name in ('gpu_tmp_buffer', 'gpu_buffer_a', 'gpu_buffer_b')
             if isinstance(getattr(buffer := getattr(communicator, name, None), 'size', None), int)}
    exchanged = _FLAT_ITEMSIZE
    if 'gpu_tmp_buffer' in found:
        itemsize = np.dtype(chainer.get_dtype()).itemsize
        exchanged_dtype = communicator.allreduce_grad_dtype
        exchanged = itemsize if exchanged_dtype is None else np.dtype(exchanged_dtype).itemsize
        yield found.pop('gpu_tmp_buffer'), itemsize
    for each in found.values():
        yield each, exchanged
