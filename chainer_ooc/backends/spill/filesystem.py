"""What kind of folder the spill file lies in, and which folder to take when none is named.

A spill file on a RAM disk frees nothing: its bytes stay in memory. Many systems mount ``/tmp`` as one, hence the second
candidate.

Left out: network file systems (they work, and the measured bandwidth shows them) and quotas below the file system's
own figures.
"""

from __future__ import annotations

import os
import tempfile

from chainer_ooc.errors import SpillError

RAM_DISKS = frozenset({'tmpfs', 'ramfs', 'devtmpfs', 'zram'})


def filesystem_type(folder: str) -> str:
    """Returns the type of the file system that holds ``folder``, such as ``'ext4'``, or ``'unknown'``."""
    path = os.path.realpath(folder)
    best, kind = '', 'unknown'
    for mounted_at, mounted_type in _mounts():
        inside = path == mounted_at or path.startswith(mounted_at.rstrip('/') + '/')
        if inside and len(mounted_at) >= len(best):  # a later mount hides an earlier one at the same place
            best, kind = mounted_at, mounted_type
    return kind


def is_ram_disk(folder: str) -> bool:
    """Whether the folder's bytes lie in memory."""
    return filesystem_type(folder) in RAM_DISKS


def ram_disk_warning(folder: str) -> str:
    """What to tell of such a folder; '' of others."""
    return 'the spill folder is a RAM disk: what is swapped out stays in memory' if is_ram_disk(folder) else ''


def default_folder() -> str:
    """Returns the folder for temporary files; ``/var/tmp`` where that is a RAM disk that neither TMPDIR nor TEMP names.

    Raises:
        SpillError: No folder for temporary files takes a file.
    """
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise SpillError(error.errno, f'{error.strerror}; set chainer.config.ooc_spill_dir to a folder that can be '
                         'written to, and look at ulimit -f') from error
    chosen = any(os.environ.get(name) for name in ('TMPDIR', 'TEMP', 'TMP'))
    if not chosen and is_ram_disk(folder) and os.access('/var/tmp', os.W_OK) and not is_ram_disk('/var/tmp'):
        return '/var/tmp'
    return folder


def free_space(descriptor_or_folder: int | str) -> int:
    """Returns the bytes that an ordinary user can still write on the file system."""
    figures = os.statvfs(descriptor_or_folder)
    return figures.f_bavail * figures.f_frsize


def _mounts() -> list[tuple[str, str]]:
    """Mount points and types, in the order of mounting."""
    try:
        with open('/proc/self/mountinfo', encoding='utf-8', errors='surrogateescape') as lines:
            return [_mount(line) for line in lines]
    except OSError:
        return []


def _mount(line: str) -> tuple[str, str]:
    """Point and type of one mountinfo line: ``id parent dev root POINT options [tags] - TYPE source options``."""
    before, _, after = line.partition(' - ')
    point = before.split(' ')[4]
    for code, character in (('\\040', ' '), ('\\011', '\t'), ('\\012', '\n'), ('\\134', '\\')):
        point = point.replace(code, character)
    return point, after.split(' ', 1)[0]
