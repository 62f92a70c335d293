"""What a worker can be asked for, by name. Each imports what it needs when it runs: PyTorch and CuPy never meet."""
from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any


def _training(**asks: Any) -> dict[str, Any]:
    from training_row import train

    return train(**asks)


def _warm_up(**asks: Any) -> dict[str, Any]:
    from training_row import warm_up

    return warm_up(**asks)


def _turns(**asks: Any) -> dict[str, Any]:
    from turns_row import take_turns

    return take_turns(**asks)


def _bits(**asks: Any) -> dict[str, Any]:
    from bits_row import compare

    return compare(**asks)


def _link(device: str, nbytes: int) -> dict[str, Any]:
    import near

    return near.of(device).link(nbytes)


def _backend_link(device: str) -> dict[str, Any]:
    import near

    bandwidth = near.of(device).backend_bandwidth()
    return {'nbytes': None, 'out_bytes_per_second': bandwidth.write_bytes_per_second,
            'in_bytes_per_second': bandwidth.read_bytes_per_second, 'latency_seconds': bandwidth.latency_seconds}


def _describe(device: str) -> dict[str, Any]:
    import near

    return near.of(device).describe()


def _host_alloc(device: str, nbytes: int, ask_first: bool) -> dict[str, Any]:
    import near

    return near.of(device).pin(nbytes, ask_first)


def _chunks(device: str, nbytes: int) -> dict[str, Any]:
    import near

    return near.of(device).chunks(nbytes)


def _doctor(device: str) -> dict[str, Any]:
    import doctor_row

    return doctor_row.examine(device)


def _convolution(**asks: Any) -> dict[str, Any]:
    from operations_row import convolution

    return convolution(**asks)


def _maps(**asks: Any) -> dict[str, Any]:
    from operations_row import maps

    return maps(**asks)


def _queueing(**asks: Any) -> dict[str, Any]:
    from operations_row import queueing

    return queueing(**asks)


def _torch(**asks: Any) -> dict[str, Any]:
    from torch_row import train

    return train(**asks)


def _fails() -> dict[str, Any]:
    raise ValueError('this row fails by intent')


def _crashes() -> dict[str, Any]:
    os.abort()


def _hangs() -> dict[str, Any]:
    time.sleep(3600)
    return {}


KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    'describe': _describe, 'doctor': _doctor, 'warm-up': _warm_up, 'link': _link, 'backend-link': _backend_link,
    'host-alloc': _host_alloc, 'chunks': _chunks, 'training': _training, 'turns': _turns, 'bits': _bits,
    'torch': _torch, 'convolution': _convolution, 'maps': _maps, 'queueing': _queueing, 'fails': _fails,
    'crashes': _crashes, 'hangs': _hangs, 'works': dict,
}
