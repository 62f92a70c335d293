"""The machine in one line: its processor, the number of its cores, and its memory."""

from __future__ import annotations

import functools
import os
import platform

from chainer_ooc.backends.host import limits
from chainer_ooc.quantities import format_bytes


@functools.cache
def describe() -> str:
    """``'Some CPU @ 2.00GHz, 8 cores, 15.54 GiB'``: the machine's own, whatever a container or ulimit leaves of it."""
    memory_bytes = limits.kilobyte_fields('/proc/meminfo').get('MemTotal')
    memory = 'memory unknown' if memory_bytes is None else format_bytes(memory_bytes)
    return f'{_processor()}, {os.cpu_count() or 1} cores, {memory}'


def _processor(path: str = '/proc/cpuinfo') -> str:
    """The model's name; where the system does not tell, as on some ARM boards, the architecture."""
    for line in limits.lines(path):
        name, _, value = line.partition(':')
        if name.strip() == 'model name' and value.strip():
            return ' '.join(value.split())
    return platform.machine() or 'unknown processor'
