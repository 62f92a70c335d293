"""How much private memory this process can still get: the tightest of what the system, the container and ulimit allow.

    RLIMIT_DATA   limit - VmData                     private writable mappings: what ``--wall`` of the examples sets
    RLIMIT_AS     limit - VmSize                     all mappings
    a container   limit - (usage - cache)            see ``groups``; this group and those above it
    the system    MemAvailable

Of the last two each rank on this machine has its share (see ``ranks``); the first two are a process's own. Memory that
glibc holds free in its heap can be used on top of the first two; the caller says how much that is.

Left out: NUMA nodes, and swap space, which would be a slower spill file.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import resource
import sys
from collections.abc import Callable, Sequence

from chainer_ooc.backends.host import groups
from chainer_ooc.backends.host.groups import Group
from chainer_ooc.quantities import format_bytes
from chainer_ooc.ranks.node import share

_STRICT = '2'  # of vm.overcommit_memory: the system promises no more than it has

_KILOBYTES = re.compile(rb'^([^:\n]+):\s*(\d+) kB$', re.MULTILINE)

#: Memory of the machine.
PHYSICAL_BYTES = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')


def free_bytes(reusable_bytes: Callable[[], int] = int, in_force: Sequence[Group] | None = None) -> int:
    """Returns the smallest of ``limits_bytes``, at least 0; ``sys.maxsize`` where nothing is known."""
    return max(0, min(limits_bytes(reusable_bytes, in_force).values(), default=sys.maxsize))


def limits_bytes(reusable_bytes: Callable[[], int] = int, in_force: Sequence[Group] | None = None) -> dict[str, int]:
    """Returns the bytes that are left by each limit in force, by its name.

    Args:
        reusable_bytes: gives what RLIMIT_DATA and RLIMIT_AS count, and the process can use again; asked where there is
            one of them.
        in_force: the groups that this process is in; they are looked for if this is None.
    """
    left: dict[str, int] = {}
    limited = {(name, used): soft for name, number, used in (
        ('RLIMIT_DATA', resource.RLIMIT_DATA, 'VmData'), ('RLIMIT_AS', resource.RLIMIT_AS, 'VmSize'))
        if (soft := resource.getrlimit(number)[0]) != resource.RLIM_INFINITY}
    status = kilobyte_fields('/proc/self/status') if limited else {}
    for (name, used), soft in limited.items():
        if used in status:
            left[name] = soft - status[used] + reusable_bytes()
    available = kilobyte_fields('/proc/meminfo').get('MemAvailable')
    if available is not None:
        left['MemAvailable'] = share(available)
    if in_force is None:
        in_force = groups.groups()
    if in_force:
        left['cgroup'] = share(min(each.left_bytes() for each in in_force))
    return left


def is_limited() -> bool:
    """Whether a mapping may be refused that is no larger than the machine's memory (1 us)."""
    return (resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
            or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY or _overcommit() == _STRICT)


@functools.cache
def _overcommit() -> str:
    return ''.join(lines('/proc/sys/vm/overcommit_memory'))


def kilobyte_fields(path: str) -> dict[str, int]:
    """Reads the lines ``Name:   123 kB`` of a file of ``/proc`` as bytes; nothing where the file is missing."""
    return {name.decode(): int(value) * 1024 for name, value in _KILOBYTES.findall(groups.read(path))}


def lines(path: str) -> list[str]:
    """The lines of a small file of the system; none where it is missing."""
    return groups.read(path).decode('ascii', 'replace').splitlines()


@functools.cache
def describe_machine() -> str:
    """The machine in one line: ``'Some CPU @ 2.00GHz, 8 cores, 16.69 GB'``, whatever a container or ulimit leaves."""
    memory_bytes = kilobyte_fields('/proc/meminfo').get('MemTotal')
    memory = 'memory unknown' if memory_bytes is None else format_bytes(memory_bytes)
    return f'{_processor()}, {os.cpu_count() or 1} cores, {memory}'


def _processor() -> str:
    """The model's name; where the system does not tell, as on some ARM boards, the architecture."""
    for line in lines('/proc/cpuinfo'):
        name, _, value = line.partition(':')
        if name.strip() == 'model name' and value.strip():
            return ' '.join(value.split())
    return platform.machine() or 'unknown processor'
