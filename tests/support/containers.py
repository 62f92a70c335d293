"""A memory group whose files a test writes."""
from chainer_ooc.backends.host import groups

MB = 1 << 20
LIMIT = 1024 * MB


class Container:
    """A group of version 1 whose files the test writes.

    Attributes:
        found: the group, as the kernel's files show it.
    """

    def __init__(self, folder):
        self._folder = folder / 'memory' / 'job'
        self._folder.mkdir(parents=True)
        (folder / 'membership').write_text('4:memory:/job\n')
        self.holds(0)
        self.found = groups.groups(str(folder), str(folder / 'membership'))

    def holds(self, kept_bytes, clean_bytes=0, dirty_bytes=0, limit_bytes=LIMIT):
        """Says what the group's memory is."""
        files = {'limit_in_bytes': limit_bytes, 'usage_in_bytes': kept_bytes + clean_bytes + dirty_bytes}
        for name, value in files.items():
            (self._folder / f'memory.{name}').write_text(f'{value}\n')
        (self._folder / 'memory.stat').write_text(
            f'total_cache {clean_bytes + dirty_bytes}\ntotal_shmem 0\ntotal_inactive_file {clean_bytes + dirty_bytes}\n'
            f'total_active_file 0\ntotal_dirty {dirty_bytes}\ntotal_writeback 0\n')
