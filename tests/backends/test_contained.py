"""What a container leaves, as C asks for it: arrays and Python's large objects are made where no Python may run."""
import os
import random
import sys

import numpy as np
import pytest

from chainer_ooc.backends.host import arena, groups
from chainer_ooc.backends.host.arena import Arena
from support.containers import LIMIT, MB, Container

pytestmark = [pytest.mark.usefixtures('no_gap'),
              pytest.mark.skipif(bool(arena.available()), reason=str(arena.available()))]


@pytest.fixture
def container(tmp_path):
    return Container(tmp_path)


@pytest.fixture
def pool(container):
    pool = Arena()
    pool.begin()
    pool.contain(container.found)
    yield pool
    pool.close()


def leaves(nbytes):
    asked = arena.library().container_leaves
    asked.argtypes = [arena.ctypes.c_size_t]
    return bool(asked(nbytes))


@pytest.mark.parametrize('ranks', [1, 3])
def test_c_finds_what_python_finds(container, pool, ranks):
    draw = random.Random(ranks)
    for _ in range(200):
        kept, clean, dirty = (draw.randrange(0, LIMIT // 2) for _ in range(3))
        container.holds(kept, clean, dirty)
        left_bytes = container.found[0].left_now_bytes() // ranks
        pool.contain(container.found, ranks, aside_bytes=8 * MB)
        assert leaves(left_bytes - 8 * MB) is (left_bytes >= 8 * MB)
        assert not leaves(max(0, left_bytes - 8 * MB) + 1)


def test_the_second_version_of_groups_has_other_files(tmp_path, pool):
    folder = tmp_path / 'job'
    folder.mkdir()
    (folder / 'memory.current').write_text(f'{900 * MB}\n')
    (folder / 'memory.stat').write_text(
        f'anon 5\ninactive_file {60 * MB}\nactive_file {40 * MB}\nfile_dirty {30 * MB}\nfile_writeback {10 * MB}\n'
        f'workingset_inactive_file 7\n')
    pool.contain([groups.Group(str(folder), LIMIT, groups._VERSION_2)])
    left_bytes = (1024 - 900 + 60 + 40 - 30 - 10) * MB
    assert leaves(left_bytes) and not leaves(left_bytes + 1)


def test_all_groups_are_asked_and_none_is_when_there_is_none(container, pool, tmp_path):
    other = Container(tmp_path / 'above')
    container.holds(0)
    other.holds(LIMIT - MB)
    pool.contain([*container.found, *other.found])
    assert leaves(MB) and not leaves(2 * MB)
    pool.contain(())
    assert leaves(2 * LIMIT)


def test_a_file_that_is_gone_refuses_nothing(container, pool, tmp_path):
    container.holds(LIMIT)
    assert not leaves(1)
    (tmp_path / 'memory' / 'job' / 'memory.usage_in_bytes').unlink()
    assert leaves(MB)


def test_no_python_runs_while_an_array_asks(pool):
    """A signal came in the code that asked, and its handler's exception was lost."""
    called = []
    sys.setprofile(lambda frame, event, what: called.append(frame.f_code.co_name) if event == 'call' else None)
    try:
        held = np.empty(8 * MB, np.uint8)
    finally:
        sys.setprofile(None)
    assert held.nbytes and not called


def test_what_an_array_is_granted_counts_at_once(pool):
    """Arrays of zeros were granted one after the other, and ended the process when they were filled."""
    if tuple(map(int, os.uname().release.split('.')[:2])) < (5, 14):
        pytest.skip('an older kernel makes pages when they are written to')
    before = resident_bytes()
    held = np.zeros(64 * MB, np.uint8)
    assert resident_bytes() >= before + 60 * MB
    assert not held.any()


def resident_bytes():
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


def test_an_array_that_grows_asks_for_what_it_grows_by(container, pool):
    small = np.empty(1000, np.uint8)
    container.holds(LIMIT - 10 * MB)
    small.resize(8 * MB, refcheck=False)
    with pytest.raises(MemoryError):
        small.resize(30 * MB, refcheck=False)
    assert small.nbytes == 8 * MB


def test_kept_pages_give_way_to_large_objects_of_python(container, pool):
    """The bytes that a snapshot is written from had no room beside them, and the kernel ended the process."""
    def keep():
        held = np.empty(16 * MB, np.uint8)
        del held
        assert pool.nbytes() >= 16 * MB

    container.holds(0)
    keep()
    assert bytes(4 * MB) and pool.nbytes() >= 16 * MB
    container.holds(LIMIT - MB)
    assert bytes(1000) and pool.nbytes() >= 16 * MB
    assert bytes(4 * MB) and pool.nbytes() == 0
    container.holds(0)
    keep()
    container.holds(LIMIT - MB)
    grows = bytearray(MB // 2)
    grows.extend(bytes(200_000) * 20)
    assert pool.nbytes() == 0


def test_before_an_array_is_refused_the_disk_is_waited_for(container, pool):
    """A snapshot that was just written, and is not on the disk yet, had the next large array refused."""
    waits = arena.library().container_waits
    waits.argtypes = [arena.ctypes.c_size_t]
    container.holds(LIMIT // 2, dirty_bytes=LIMIT // 2)
    with pytest.raises(MemoryError):  # in this group nothing is ever written
        np.empty(8 * MB, np.uint8)
    assert waits(8 * MB)
    container.holds(LIMIT // 2, clean_bytes=LIMIT // 2)
    assert not waits(8 * MB) and np.empty(8 * MB, np.uint8).nbytes
    container.holds(LIMIT)
    assert not waits(8 * MB)
