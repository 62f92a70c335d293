"""The speed of the disk behind a spill folder: a range of what was timed, past the page cache."""
import os

import pytest

from chainer_ooc.backends.spill import disk_speed, filesystem

SAMPLE = 1 << 20


@pytest.fixture
def on_a_disk(monkeypatch):
    monkeypatch.setattr(filesystem, 'is_ram_disk', lambda folder: False)


@pytest.fixture
def clock(monkeypatch):
    """Passes take what is drawn: seconds of each write and of each read, in turn; nothing else takes time."""
    now, drawn = [0.0], []
    moves = {'pwritev': os.pwritev, 'preadv': os.preadv}

    def taking(name):
        def move(*arguments):
            now[0] += drawn.pop(0)
            return moves[name](*arguments)
        return move
    for name in moves:
        monkeypatch.setattr(disk_speed.os, name, taking(name))
    monkeypatch.setattr(disk_speed.time, 'perf_counter', lambda: now[0])
    return drawn


def test_the_range_is_of_all_passes_but_the_first(on_a_disk, clock, tmp_path):
    clock += [9.0, 9.0] + [0.01, 0.02] + [0.02, 0.01] + [0.01, 0.04] * 3
    found = disk_speed.disk_speed(str(tmp_path), SAMPLE)
    # The first pass took longer than is given to all: one more is timed.
    assert found['write_range_bytes_per_second'] == pytest.approx((SAMPLE / 0.01,) * 2)
    assert found['read_range_bytes_per_second'] == pytest.approx((SAMPLE / 0.02,) * 2)
    clock[:] = [0.1, 0.1] + [0.01, 0.02] + [0.02, 0.01] + [0.01, 0.04] * 3
    found = disk_speed.disk_speed(str(tmp_path), SAMPLE)
    assert found['write_range_bytes_per_second'] == pytest.approx((SAMPLE / 0.02, SAMPLE / 0.01))
    assert found['read_range_bytes_per_second'] == pytest.approx((SAMPLE / 0.04, SAMPLE / 0.01))


def test_what_is_written_is_waited_for_and_what_is_read_is_not_in_the_page_cache(on_a_disk, monkeypatch, tmp_path):
    order = []
    for name in ('pwritev', 'fdatasync', 'posix_fadvise', 'preadv'):
        honest = getattr(os, name)
        monkeypatch.setattr(disk_speed.os, name, lambda *given, name=name, honest=honest: (
            order.append(name), honest(*given))[1])
    assert disk_speed.disk_speed(str(tmp_path), SAMPLE) is not None
    assert order[:4] == ['pwritev', 'fdatasync', 'posix_fadvise', 'preadv']
    assert list(tmp_path.iterdir()) == []


def test_a_ram_disk_has_no_speed_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(filesystem, 'is_ram_disk', lambda folder: True)
    assert disk_speed.disk_speed(str(tmp_path)) is None


def test_a_disk_that_is_full_is_not_measured(on_a_disk, monkeypatch, tmp_path):
    def full(*arguments):
        raise OSError(28, 'No space left on device')
    monkeypatch.setattr(disk_speed.os, 'pwritev', full)
    assert disk_speed.disk_speed(str(tmp_path), SAMPLE) is None
    assert list(tmp_path.iterdir()) == []
