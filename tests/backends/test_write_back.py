"""The spill file's dirty pages are few where that is asked for."""
import errno
import os

import numpy as np
import pytest

from chainer_ooc.backends.spill import write_back
from chainer_ooc.backends.spill.spill_file import PIECE_BYTES, SpillFile
from chainer_ooc.backends.spill.write_back import WriteBack
from chainer_ooc.errors import SpillError

MB = 1 << 20
START, WAIT = 2, 7


@pytest.fixture
def calls(monkeypatch):
    """What goes to the system: start and flags."""
    made = []
    monkeypatch.setattr(write_back, 'sync', lambda descriptor, start, nbytes, flags: made.append((start, flags)))
    return made


def test_the_oldest_pieces_are_started_at_half_and_waited_for_at_the_whole(calls):
    pieces = WriteBack(3)
    for number in range(6):
        pieces.wrote(number * 10, 10, 40)
    #   written  0    1    2         3         4                  5
    assert calls == [(0, START), (10, START), (20, START), (0, WAIT), (30, START), (10, WAIT)]


def test_no_more_than_what_is_allowed_is_ever_dirty(calls):
    pieces, dirty = WriteBack(3), set()
    for number in range(50):
        dirty.add(number)
        pieces.wrote(number, 1, 7)
        dirty -= {start for start, flags in calls if flags == WAIT}
        assert len(dirty) <= 7


def test_a_piece_larger_than_what_is_allowed_is_waited_for_at_once(calls):
    WriteBack(3).wrote(0, 100, 10)
    assert calls == [(0, START), (0, WAIT)]


def test_without_a_limit_the_system_decides(calls):
    pieces = WriteBack(3)
    for number in range(50):
        pieces.wrote(number, 1, None)
    assert not calls


def test_a_spill_file_notes_each_piece(tmp_path, calls):
    spill = SpillFile(str(tmp_path), lambda: PIECE_BYTES)
    spill.write(np.ones(3 * PIECE_BYTES, np.uint8).data, 4096)
    spill.close()
    assert [start for start, flags in calls if flags == WAIT] == [4096, 4096 + PIECE_BYTES]


def test_a_disk_that_fails_fails_the_copy(tmp_path, monkeypatch):
    def fail(descriptor, start, nbytes, flags):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(write_back, 'sync', fail)
    spill = SpillFile(str(tmp_path), lambda: MB)
    with pytest.raises(SpillError, match=r'writing to the spill file in .* Input/output error'):
        spill.write(np.ones(2 * MB, np.uint8).data, 0)
    spill.clean()
    spill.close()


def test_the_call_itself_works_and_names_what_fails(tmp_path):
    with open(tmp_path / 'file', 'wb') as file:
        file.write(bytes(MB))
        file.flush()
        write_back.sync(file.fileno(), 0, MB, START)
        write_back.clean(file.fileno())
    with pytest.raises(OSError, match='Bad file descriptor'):
        write_back.clean(-1)
