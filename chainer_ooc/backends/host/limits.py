"""How much private memory this process can still get: the tightest of what the system, the container and ulimit allow.

    RLIMIT_DATA   limit - VmData                     private writable mappings: what ``--wall`` of the examples sets
    RLIMIT_AS     limit - VmSize                     all mappings
    cgroup v2     memory.max - (current - cache)     this group and those above it
    cgroup v1     limit - (usage - cache)            likewise
    the system    MemAvailable

A container's page cache, in which the spill file's pages lie too, counts as available: the kernel takes it back before
it refuses memory. What tmpfs holds is called cache as well but cannot be taken back, so it is not.

Left out: NUMA nodes, swap space (whoever trains into swap has chosen a worse spill file), and memory that glibc
holds free in its heap, which is available on top.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
from collections.abc import Iterator

_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a number of pages near 2**63
_STRICT = '2'  # of vm.overcommit_memory: the system promises no more than it has

#: Memory of the machine.
PHYSICAL_BYTES = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')


def free_bytes() -> int:
    """Returns the smallest of ``limits_bytes``, at least 0; ``sys.maxsize`` where nothing is known."""
    return max(0, min(limits_bytes().values(), default=sys.maxsize))


def limits_bytes() -> dict[str, int]:
    """Returns the bytes that are left by each limit in force, by its name."""
    status = kilobyte_fields('/proc/self/status')
    left: dict[str, int] = {}
    for name, number, used in (('RLIMIT_DATA', resource.RLIMIT_DATA, 'VmData'),
                               ('RLIMIT_AS', resource.RLIMIT_AS, 'VmSize')):
        soft, _ = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY and used in status:
            left[name] = soft - status[used]
    available = kilobyte_fields('/proc/meminfo').get('MemAvailable')
    if available is not None:
        left['MemAvailable'] = available
    cgroup = list(_cgroup_left_bytes())
    if cgroup:
        left['cgroup'] = min(cgroup)
    return left


def is_limited() -> bool:
    """Whether a mapping may be refused that is no larger than the machine's memory (1 us)."""
    unlimited = all(resource.getrlimit(number)[0] == resource.RLIM_INFINITY
                    for number in (resource.RLIMIT_DATA, resource.RLIMIT_AS))
    return not unlimited or _overcommit() == _STRICT


@functools.cache
def _overcommit() -> str:
    return ''.join(lines('/proc/sys/vm/overcommit_memory'))


def kilobyte_fields(path: str) -> dict[str, int]:
    """Reads the lines ``Name:   123 kB`` of a file of ``/proc`` as bytes; nothing where the file is missing."""
    fields = {}
    for line in lines(path):
        name, _, value = line.partition(':')
        if value.endswith(' kB'):
            fields[name] = int(value[:-3]) * 1024
    return fields


def _cgroup_left_bytes(root: str = '/sys/fs/cgroup', membership: str = '/proc/self/cgroup') -> Iterator[int]:
    """Yields the bytes left by each memory group that this process is in."""
    for line in lines(membership):
        _, controllers, path = line.split(':', 2)
        if not controllers:
            yield from _version_2(root, path)
        elif 'memory' in controllers.split(','):
            yield from _version_1(os.path.join(root, 'memory'), path)


def _version_2(root: str, path: str) -> Iterator[int]:
    for folder in _upwards(root, path):
        yield from _left(folder, 'memory.max', 'memory.current', 'file', 'shmem')


def _version_1(root: str, path: str) -> Iterator[int]:
    for folder in _upwards(root, path):
        yield from _left(folder, 'memory.limit_in_bytes', 'memory.usage_in_bytes', 'total_cache', 'total_shmem')


def _left(folder: str, limit_file: str, used_file: str, cache: str, fixed: str) -> Iterator[int]:
    """Yields the bytes left by one group, or nothing where it sets no limit."""
    limit, used = (_number(os.path.join(folder, name)) for name in (limit_file, used_file))
    if limit is None or used is None or limit >= _UNLIMITED:
        return
    words = [line.split() for line in lines(os.path.join(folder, 'memory.stat'))]
    sizes = {word[0]: int(word[1]) for word in words if len(word) == 2}
    yield limit - used + max(0, sizes.get(cache, 0) - sizes.get(fixed, 0))


def _upwards(root: str, path: str) -> Iterator[str]:
    """Yields the group's folder and all above it; in a container the path may be that of the outside."""
    parts = [part for part in path.strip('/').split('/') if part and part != '..']
    for length in range(len(parts), -1, -1):
        yield os.path.join(root, *parts[:length])


def _number(path: str) -> int | None:
    text = ''.join(lines(path))
    return int(text) if text.isdigit() else None


def lines(path: str) -> list[str]:
    """Reads a small file of the system; nothing where it is missing."""
    try:
        with open(path, encoding='ascii', errors='replace') as file:
            return file.read().splitlines()
    except OSError:
        return []
