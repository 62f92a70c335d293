"""The spill file: nameless, private, and clear about what fails."""
import contextlib
import errno
import gc
import os
import resource
import stat
import subprocess

import numpy as np
import pytest

from chainer_ooc.backends.spill import filesystem
from chainer_ooc.backends.spill.spill_file import PIECE_BYTES, SpillFile, SpillWarning
from chainer_ooc.errors import SpillError
from support.interrupting import interrupted_at

MB = 1 << 20


@pytest.fixture(autouse=True)
def on_a_disk(monkeypatch):
    """The folder for temporary files may be a RAM disk; here it shall count as a disk."""
    monkeypatch.setattr(filesystem, 'RAM_DISKS', frozenset())


@pytest.fixture
def spill(tmp_path):
    file = SpillFile(str(tmp_path))
    yield file
    file.close()


@pytest.fixture
def file_size_limit():
    """Lets files of this process grow to 8 MB only, which a full disk resembles closely."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 * MB, before[1]))
    yield 8 * MB
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def numbers(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def read(spill, nbytes, start=0):
    into = np.zeros(nbytes, np.uint8)
    spill.read(into.data, start)
    return into


def test_the_file_has_no_name_and_one_reader(spill, tmp_path):
    status = os.fstat(spill._descriptor)
    assert status.st_nlink == 0
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert not os.get_inheritable(spill._descriptor)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_nameless_files_gets_one_unlinked_at_once(tmp_path, monkeypatch):
    def refuse(path, flags, *arguments, **keywords):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, 'Operation not supported')
        return opened(path, flags, *arguments, **keywords)

    opened = os.open
    monkeypatch.setattr(os, 'open', refuse)
    spill = SpillFile(str(tmp_path))
    monkeypatch.undo()
    test_the_file_has_no_name_and_one_reader(spill, tmp_path)
    spill.close()


@pytest.mark.parametrize('nameless', [pytest.param(True, marks=pytest.mark.long), False])
@pytest.mark.filterwarnings('ignore:unclosed file', 'ignore::pytest.PytestUnraisableExceptionWarning')
def test_an_interrupt_at_no_step_leaves_a_descriptor(tmp_path, monkeypatch, nameless):
    if not nameless:
        monkeypatch.setattr(os, 'O_TMPFILE', os.O_DIRECTORY)  # which the system refuses, as nothing else here does
    left, number = [], 1
    before = len(os.listdir('/proc/self/fd'))
    while interrupted_at(number, lambda: SpillFile(str(tmp_path)).close()):
        gc.collect()
        if len(os.listdir('/proc/self/fd')) != before:
            left.append(number)
            before = len(os.listdir('/proc/self/fd'))
        number += 1
    assert number > 50 and not left


def test_a_missing_folder_is_named_with_the_next_step(tmp_path):
    with pytest.raises(SpillError, match=r'No such file or directory; set chainer.config.ooc_spill_dir') as caught:
        SpillFile(str(tmp_path / 'nowhere'))
    assert 'nowhere' in str(caught.value)
    assert caught.value.errno == errno.ENOENT


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(SpillError, match='Not a directory'):
        SpillFile(str(tmp_path / 'file'))


def test_an_unwritable_folder_is_named_with_the_next_step(tmp_path):
    tmp_path.chmod(0o500)
    user = os.geteuid()
    if not user:
        os.seteuid(65534)  # root may write anywhere
    try:
        with pytest.raises(SpillError, match=r'Permission denied; set chainer.config.ooc_spill_dir'):
            SpillFile(str(tmp_path))
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)


def test_a_ram_disk_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem, 'RAM_DISKS', frozenset({'tmpfs'}))
    monkeypatch.setattr(filesystem, '_mounts', lambda: [('/', 'ext4'), (str(tmp_path.parent), 'tmpfs')])
    with pytest.warns(SpillWarning, match='is a RAM disk.*set chainer.config.ooc_spill_dir'):
        SpillFile(str(tmp_path)).close()


def test_where_no_folder_for_temporary_files_takes_a_file_the_next_step_is_named(monkeypatch):
    def find():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(filesystem.tempfile, 'gettempdir', find)
    with pytest.raises(SpillError, match=r"in \['/tmp'\]; set chainer.config.ooc_spill_dir"):
        SpillFile()


def test_without_a_folder_a_ram_disk_is_avoided_unless_asked_for(monkeypatch):
    monkeypatch.setattr(filesystem, 'RAM_DISKS', frozenset({'tmpfs'}))
    monkeypatch.setattr(filesystem, '_mounts', lambda: [('/', 'ext4'), ('/tmp', 'tmpfs')])
    monkeypatch.setattr(filesystem.tempfile, 'gettempdir', lambda: '/tmp')
    for name in ('TMPDIR', 'TEMP', 'TMP'):
        monkeypatch.delenv(name, raising=False)
    assert filesystem.default_folder() == '/var/tmp'
    monkeypatch.setenv('TMPDIR', '/tmp')
    assert filesystem.default_folder() == '/tmp'


def test_the_innermost_and_latest_mount_tells_the_type(monkeypatch):
    monkeypatch.setattr(filesystem, '_mounts', lambda: [
        ('/', 'ext4'), ('/mnt', 'xfs'), ('/mnt/a', 'tmpfs'), ('/mnt/a', 'btrfs'), ('/mn', 'nfs')])
    kinds = [filesystem.filesystem_type(path) for path in ('/else', '/mnt', '/mnt/a/b', '/mnt/ab')]
    assert kinds == ['ext4', 'xfs', 'btrfs', 'xfs']


def test_a_mount_point_with_a_space_is_read():
    line = '36 35 98:0 /m1 /mnt/my\\040disk rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n'
    assert filesystem._mount(line) == ('/mnt/my disk', 'ext3')


def test_short_writes_and_reads_are_continued(spill, monkeypatch):
    source, write, preadv = numbers(3 * PIECE_BYTES + 5), os.pwritev, os.preadv
    calls = []

    def short(call):
        def moves_at_most(descriptor, views, offset):
            calls.append(call)
            return call(descriptor, [views[0][:PIECE_BYTES // 3]], offset)
        return moves_at_most

    monkeypatch.setattr(os, 'pwritev', short(write))
    monkeypatch.setattr(os, 'preadv', short(preadv))
    spill.write(source.data, 4096)
    assert np.array_equal(read(spill, source.nbytes, 4096), source)
    assert len(calls) >= 18


def test_a_file_that_ends_too_early_is_an_error(spill):
    source = numbers(2 * MB)
    spill.write(source.data, 0)
    os.ftruncate(spill._descriptor, MB)
    with pytest.raises(SpillError, match='ends after 1048576 of 2097152 bytes at offset 0') as caught:
        read(spill, 2 * MB)
    assert caught.value.errno == errno.EIO
    assert 'whole in the other tier' in str(caught.value)


def test_a_full_disk_is_found_while_growing(spill, file_size_limit):
    with pytest.raises(SpillError, match=r'growing the spill file .*needed 9.4 MB, free ') as caught:
        spill.grow(0, 9 * MB)
    assert caught.value.errno == errno.EFBIG
    assert 'may have 8.4 MB: raise that limit (ulimit -f)' in str(caught.value)
    assert spill.free_bytes(0) == file_size_limit


def test_too_many_open_files_are_no_fault_of_the_folder(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    here = len(os.listdir('/proc/self/fd'))
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (here + 8, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open('/dev/null', os.O_RDONLY))
        with pytest.raises(SpillError, match=r'Too many open files; raise that limit \(ulimit -n\)'):
            SpillFile(str(tmp_path))
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_full_disk_is_found_while_writing(spill, file_size_limit):
    source = numbers(9 * MB)
    before = source.copy()
    with pytest.raises(SpillError, match=r'writing to the spill file .*needed 9.4 MB, free .*ulimit -f'):
        spill.write(source.data, 0)
    assert np.array_equal(source, before)


def test_a_writing_that_is_not_wanted_any_more_stops_between_pieces(spill):
    asked = []
    spill.write(numbers(4 * PIECE_BYTES).data, 0, lambda: asked.append(1) or len(asked) > 2)
    assert os.fstat(spill._descriptor).st_size == 2 * PIECE_BYTES


def test_closing_twice_is_closing(tmp_path):
    spill = SpillFile(str(tmp_path))
    spill.close()
    spill.close()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MB, where the machine lets us mount one."""
    folder = tmp_path / 'disk'
    folder.mkdir()
    command = ['mount', '-t', 'tmpfs', '-o', 'size=8m', 'tmpfs', str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip('mounting a small file system needs root and its permission to mount')
    yield folder
    subprocess.run(['umount', str(folder)], check=True)


def test_a_disk_that_is_really_full(small_disk):
    spill = SpillFile(str(small_disk))
    try:
        with pytest.raises(SpillError, match='No space left on device') as caught:
            spill.grow(0, 9 * MB)
        assert caught.value.errno == errno.ENOSPC
        with pytest.raises(SpillError, match=r'writing .* No space left on device \(needed 9.4 MB, free'):
            spill.write(numbers(9 * MB).data, 0)
    finally:
        spill.close()
