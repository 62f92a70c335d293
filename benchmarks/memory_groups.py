"""Memory groups of version 1, as a container's limit is one: made below the group that this process is in.

Only root may make them, and only where the hierarchy of version 1 has the memory controller. A group counts what its
processes use and the page cache that they fill, and when it is full and nothing can be taken back, the kernel kills.
"""
from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Iterator

ROOT = pathlib.Path('/sys/fs/cgroup/memory')


class MemoryGroup:
    """A group with a limit.

    Attributes:
        folder: where the kernel shows it.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def enter(self) -> None:
        """Puts the calling process into the group; for `preexec_fn`."""
        (self.folder / 'cgroup.procs').write_text(str(os.getpid()))

    def number(self, name: str) -> int:
        """Reads one of the group's files, such as 'usage_in_bytes'."""
        return int((self.folder / f'memory.{name}').read_text())

    def stat(self) -> dict[str, int]:
        """Reads what the group's memory consists of, groups below included."""
        lines = (self.folder / 'memory.stat').read_text().splitlines()
        return {name: int(value) for name, value in map(str.split, lines)}

    def kills(self) -> int:
        """How often the kernel has killed a process of the group."""
        words = (self.folder / 'memory.oom_control').read_text().split()
        return int(words[words.index('oom_kill') + 1])


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Makes a group and removes it afterwards.

    Raises:
        OSError: groups cannot be made here; the message says why.
    """
    folder = own_folder() / f'chainer_ooc-{os.getpid()}-{time.monotonic_ns()}'
    folder.mkdir()
    try:
        (folder / 'memory.limit_in_bytes').write_text(str(limit_bytes))
        yield MemoryGroup(folder)
    finally:
        _remove(folder)


def own_folder() -> pathlib.Path:
    """The folder of the group that this process is in.

    Raises:
        OSError: there is none of version 1.
    """
    for line in pathlib.Path('/proc/self/cgroup').read_text().splitlines():
        _, controllers, path = line.split(':', 2)
        if 'memory' in controllers.split(','):
            folder = ROOT / path.strip('/')
            return folder if folder.is_dir() else ROOT
    raise FileNotFoundError('there are no memory groups of version 1 (/proc/self/cgroup)')


def _remove(folder: pathlib.Path) -> None:
    """A process that was killed leaves its group a moment later than its parent hears of it."""
    for _ in range(100):
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.05)
    folder.rmdir()
