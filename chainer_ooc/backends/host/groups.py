"""Memory groups (cgroups): the limit of a container, at which nothing is refused and the kernel kills.

What a group's limit holds is more than arrays: the page cache that its processes fill counts too, and with it the spill
file. Most of that the kernel takes back before it kills, but not at once what is dirty or being written: groups of
version 1 do not slow writers down, and a full group does not wait for the disk. Hence two answers: what is left in the
end, for budgets, and what is left now, for the next allocation.

    limit  |  usage:  arrays, heap, libraries  |  tmpfs  |  dirty, being written  |  clean cache  |  never used
                                                                                  |<----- left now ---------->|
                                                         |<------------------ left in the end --------------->|

                          version 1                                     version 2
    limit                 memory.limit_in_bytes                         memory.max, memory.high
    usage                 memory.usage_in_bytes                         memory.current
    cache, tmpfs          total_cache, total_shmem                      file, shmem
    clean and dirty       total_inactive_file + total_active_file       inactive_file + active_file, no more than
                          no more than cache without tmpfs              cache without tmpfs
    dirty, being written  total_dirty + total_writeback                 file_dirty + file_writeback

An answer takes 8 us while the group has room that was never used, and 25 us afterwards.

Left out: limits of swap and of the kernel's memory alone, and what other groups may take from a group above.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

_UNLIMITED = 1 << 60  # version 1 writes "no limit" as a number of pages near 2**63
_MOST_BYTES = 1 << 14


@dataclass(frozen=True)
class Version:
    """How one version names its files and fields."""

    limits: tuple[str, ...]
    used: str
    cache: str
    fixed: str
    clean_and_dirty: tuple[str, str]
    dirty: tuple[str, str]


_VERSION_1 = Version(('memory.limit_in_bytes',), 'memory.usage_in_bytes', 'total_cache', 'total_shmem',
                     ('total_inactive_file', 'total_active_file'), ('total_dirty', 'total_writeback'))
_VERSION_2 = Version(('memory.max', 'memory.high'), 'memory.current', 'file', 'shmem',
                     ('inactive_file', 'active_file'), ('file_dirty', 'file_writeback'))
_FIELD = re.compile(rb'^(\w+) (\d+)$', re.MULTILINE)


@dataclass(frozen=True)
class Group:
    """A group with a limit that this process is in; `limit_bytes` is what the limit was when it was found."""

    folder: str
    limit_bytes: int
    version: Version

    @property
    def used_path(self) -> str:
        """The file that says how much is in use."""
        return os.path.join(self.folder, self.version.used)

    @property
    def stat_path(self) -> str:
        """The file that says what for."""
        return os.path.join(self.folder, 'memory.stat')

    def left_bytes(self) -> int:
        """What is left when all of the page cache is taken back; negative where the limit was lowered."""
        stat = self._stat()
        cache_bytes = stat.get(self.version.cache, 0) - stat.get(self.version.fixed, 0)
        return self.limit_bytes - self._used_bytes() + max(0, cache_bytes)

    def left_now_bytes(self, enough_bytes: int = 1 << 62, dirty_bytes: int = 0) -> int:
        """What is left when that part of the page cache is taken back which needs no disk.

        Args:
            enough_bytes: no more than that need be found.
            dirty_bytes: so much of the cache is dirty at least, or is going to be.
        """
        unused_bytes = self.limit_bytes - self._used_bytes()
        if unused_bytes - dirty_bytes >= enough_bytes:
            return unused_bytes - dirty_bytes
        stat = self._stat()
        cache_bytes = sum(stat.get(name, 0) for name in self.version.clean_and_dirty)
        if (all_bytes := stat.get(self.version.cache)) is not None:  # the lists have memory that was offered, too
            cache_bytes = min(cache_bytes, all_bytes - stat.get(self.version.fixed, 0))
        busy_bytes = max(dirty_bytes, sum(stat.get(name, 0) for name in self.version.dirty))
        return unused_bytes + cache_bytes - busy_bytes

    def _used_bytes(self) -> int:
        return _number(self.used_path) or 0

    def _stat(self) -> dict[str, int]:
        text = read(self.stat_path)
        return {name.decode(): int(value) for name, value in _FIELD.findall(text)}


def groups(root: str = '/sys/fs/cgroup', membership: str = '/proc/self/cgroup') -> list[Group]:
    """Finds the groups with a limit that this process is in, those above its own included."""
    found: list[Group] = []
    for line in read(membership).decode('ascii', 'replace').splitlines():
        _, controllers, path = line.split(':', 2)
        if not controllers:
            found += _limited(root, path, _VERSION_2)
        elif 'memory' in controllers.split(','):
            found += _limited(os.path.join(root, 'memory'), path, _VERSION_1)
    return found


def _limited(root: str, path: str, version: Version) -> Iterator[Group]:
    for folder in _upwards(root, path):
        found = [number for name in version.limits if (number := _number(os.path.join(folder, name))) is not None]
        if found and min(found) < _UNLIMITED and _number(os.path.join(folder, version.used)) is not None:
            yield Group(folder, min(found), version)


def _upwards(root: str, path: str) -> Iterator[str]:
    """Yields the group's folder and all above it; in a container the path may be that of the outside."""
    parts = [part for part in path.strip('/').split('/') if part and part != '..']
    for length in range(len(parts), -1, -1):
        yield os.path.join(root, *parts[:length])


def _number(path: str) -> int | None:
    text = read(path).strip()
    return int(text) if text.isdigit() else None


def read(path: str) -> bytes:
    """Reads a small file of the system, or the first 16 KiB; nothing where it is missing.

    What `open` returns takes five times as long.
    """
    try:
        with io.FileIO(path) as file:  # not a descriptor: an interrupt would leave it open
            return file.read(_MOST_BYTES) or b''
    except OSError:
        return b''
