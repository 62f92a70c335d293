"""Memory groups, read from fakes of the kernel's files: what is left in the end, and what is left now."""
import os

import pytest

from chainer_ooc.backends.host import groups, limits

MEMBERSHIP_1 = '5:cpu,cpuacct:/job\n4:memory:/job\n'
MEMBERSHIP_2 = '0::/outer/inner\n'


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace('__', '.')).write_text(text)


@pytest.fixture
def found(tmp_path):
    """A function that gives the groups of a process with this membership, in the fake below `tmp_path`."""
    def find(membership):
        (tmp_path / 'membership').write_text(membership)
        return groups.groups(str(tmp_path), str(tmp_path / 'membership'))
    return find


def version_1(folder, used, **stat):
    write(folder, memory__limit_in_bytes='1000\n', memory__usage_in_bytes=f'{used}\n',
          memory__stat=''.join(f'{name} {value}\n' for name, value in stat.items()))


def version_2(folder, used, **stat):
    write(folder, memory__max='1000\n', memory__current=f'{used}\n',
          memory__stat=''.join(f'{name} {value}\n' for name, value in stat.items()))


def test_a_version_2_group_is_as_tight_as_the_tightest_above_it(tmp_path, found):
    version_2(tmp_path / 'outer', 700, anon=100, file=300, shmem=100)
    write(tmp_path / 'outer' / 'inner', memory__max='max\n', memory__current='400\n', memory__stat='file 0\n')
    assert [each.left_bytes() for each in found(MEMBERSHIP_2)] == [500]  # 1000 - 700 + 300 - 100
    write(tmp_path / 'outer' / 'inner', memory__max='450\n')
    assert sorted(each.left_bytes() for each in found(MEMBERSHIP_2)) == [50, 500]


def test_where_version_2_slows_processes_down_is_a_limit_too(tmp_path, found):
    version_2(tmp_path / 'outer', 500, file=0)
    write(tmp_path / 'outer', memory__high='800\n')
    write(tmp_path / 'outer' / 'inner', memory__high='max\n', memory__current='400\n')
    assert [each.limit_bytes for each in found(MEMBERSHIP_2)] == [800]


def test_a_version_1_group_counts_its_cache_as_free(tmp_path, found):
    version_1(tmp_path / 'memory' / 'job', 600, cache=1, total_cache=250, total_shmem=50)
    write(tmp_path / 'memory', memory__limit_in_bytes='9223372036854771712\n', memory__usage_in_bytes='9\n')
    assert [each.left_bytes() for each in found(MEMBERSHIP_1)] == [600]


def test_what_is_dirty_being_written_or_on_tmpfs_is_not_left_now(tmp_path, found):
    version_1(tmp_path / 'memory' / 'job', 900, total_cache=500, total_shmem=100, total_inactive_file=300,
              total_active_file=100, total_dirty=150, total_writeback=50)
    group, = found(MEMBERSHIP_1)
    assert group.left_bytes() == 500
    assert group.left_now_bytes() == 300  # 1000 - 900 + 300 + 100 - 150 - 50
    version_2(tmp_path / 'outer', 900, file=500, shmem=100, inactive_file=300, active_file=100, file_dirty=150,
              file_writeback=50)
    group, = found(MEMBERSHIP_2)
    assert (group.left_bytes(), group.left_now_bytes()) == (500, 300)


def test_what_is_going_to_be_dirty_is_not_left_either(tmp_path, found):
    version_1(tmp_path / 'memory' / 'job', 900, total_inactive_file=300, total_active_file=0, total_dirty=40,
              total_writeback=10)
    group, = found(MEMBERSHIP_1)
    assert group.left_now_bytes(dirty_bytes=20) == 350
    assert group.left_now_bytes(dirty_bytes=120) == 280


def test_what_the_cache_holds_is_not_asked_for_while_the_rest_suffices(tmp_path, found):
    version_1(tmp_path / 'memory' / 'job', 600, total_inactive_file=50)
    group, = found(MEMBERSHIP_1)
    os.remove(tmp_path / 'memory' / 'job' / 'memory.stat')
    assert group.left_now_bytes(300, dirty_bytes=100) == 300


def test_a_group_that_is_gone_or_says_nothing_sets_no_limit(tmp_path, found):
    assert found(MEMBERSHIP_1) == found(MEMBERSHIP_2) == found('') == []
    version_1(tmp_path / 'memory' / 'job', 600)
    group, = found(MEMBERSHIP_1)
    for name in os.listdir(group.folder):
        os.remove(os.path.join(group.folder, name))
    assert group.left_now_bytes() == group.left_bytes() == 1000


def test_the_limits_have_the_tightest_group_among_them(tmp_path, found, monkeypatch):
    version_2(tmp_path / 'outer', 700, file=0)
    version_2(tmp_path / 'outer' / 'inner', 400, file=0)
    in_force = found(MEMBERSHIP_2)
    monkeypatch.setattr(groups, 'groups', lambda: in_force)
    assert limits.limits_bytes()['cgroup'] == limits.free_bytes() == 300
