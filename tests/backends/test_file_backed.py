"""Live arrays on the spill file: bytes and addresses stay, the memory goes, and a place is one array's alone."""
import errno
import os
import random

import numpy as np
import pytest

from chainer_ooc.backends.host import HostBackend, arena
from chainer_ooc.backends.host.arena import Arena
from chainer_ooc.errors import SpillError
from support.forked import forked
from support.interrupting import interrupted_at
from support.resident import mapped_bytes, private_bytes, rss_bytes

MB = 1 << 20
PAGE = os.sysconf('SC_PAGE_SIZE')

pytestmark = pytest.mark.skipif(arena.available() is not None, reason=str(arena.available()))


@pytest.fixture
def blocks(backend):
    return backend.file_backed


def filled(nbytes, value):
    array = np.empty(nbytes, np.uint8)
    array[:] = value
    return array


def in_file(backend):
    """Bytes of the file that are somebody's."""
    extents = backend._store._extents
    return extents.end_bytes - extents.free_bytes


def take_back(backend):
    """Has the places of released copies be free again, which the thread does when it places the next."""
    backend.swap_out(np.zeros(1, np.uint8))[1].wait()


def test_an_array_keeps_its_bytes_and_its_address_and_needs_no_memory(blocks):
    array = np.arange(16 * MB // 8)
    address, expected = array.ctypes.data, array.copy()
    private, resident = private_bytes(), rss_bytes()
    assert not blocks.is_backed(array)
    assert blocks.back(array)
    assert blocks.is_backed(array)
    assert private_bytes() < private - 15 * MB
    assert rss_bytes() < resident - 13 * MB
    assert array.ctypes.data == address
    assert np.array_equal(array, expected)
    assert rss_bytes() > resident - 3 * MB
    blocks.drop(array)
    assert rss_bytes() < resident - 13 * MB
    array[::1000] += 1
    blocks.drop(array)
    expected[::1000] += 1
    assert np.array_equal(array, expected)


def test_views_are_on_the_file_as_well_and_other_arrays_are_not(blocks):
    array, other = filled(MB, 1), filled(MB, 2)
    view = array[10:20]
    blocks.back(array)
    blocks.drop(other)  # would lose what is in memory alone
    view[:] = 9
    blocks.drop(array)
    assert array[9:21].tolist() == [1, *[9] * 10, 1]
    assert (other == 2).all()


def test_what_has_no_whole_page_or_is_not_numpys_stays(blocks):
    assert not blocks.back(np.zeros(100, np.uint8))
    assert not blocks.back(np.frombuffer(bytearray(MB), np.uint8))
    assert not blocks.back(np.zeros((1000, 1000), np.uint8)[::2].T[::2])


def test_bytes_are_copied_past_memory_with_those_before_and_behind_whole_pages(blocks):
    generator = np.random.default_rng(0)
    array = generator.integers(0, 255, 5 * PAGE + 77, np.uint8)
    blocks.back(array)
    for _ in range(200):
        first, last = sorted(generator.integers(0, array.size + 1, 2))
        expected, given = array.copy(), generator.integers(0, 255, last - first, np.uint8)
        expected[first:last] = given
        blocks.write(array[first:last], given)
        assert np.array_equal(array, expected)
        found = np.empty_like(given)
        blocks.read(array[first:last], found)
        assert np.array_equal(found, given)


def test_an_array_that_is_in_memory_is_copied_too(blocks):
    array, found = filled(MB, 3), np.empty(MB, np.uint8)
    blocks.read(array, found)
    assert (found == 3).all()
    blocks.write(array, filled(MB, 4))
    assert (array == 4).all()


def test_a_place_is_free_when_its_array_has_died_and_not_before(backend, blocks):
    before = in_file(backend)
    array = filled(4 * MB, 7)
    blocks.back(array)
    assert in_file(backend) >= before + 3 * MB
    backend.swap_out(filled(4 * MB, 8))[1].wait()
    assert (array == 7).all()
    del array
    assert not blocks.back(np.zeros(1, np.uint8))  # looks what has died
    take_back(backend)
    assert in_file(backend) <= before + PAGE


def test_memory_of_an_array_that_died_is_private_again(backend, blocks):
    pool = Arena()
    pool.begin()
    try:
        for value in range(20):
            array = filled(3 * MB, value)
            blocks.back(array)
            del array
            fresh = filled(3 * MB, 99)
            blocks.drop(fresh)
            assert (fresh == 99).all()
            del fresh
    finally:
        pool.close()
    with open('/proc/self/maps') as file:
        assert not [line for line in file if ' rw-s ' in line and '(deleted)' in line]


def test_random_arrays_keep_their_bytes_beside_the_pool_and_the_file(backend, blocks):
    """Allocated, freed, backed, dropped, written and swapped at random, beside copies that are in memory alone."""
    chooser, generator = random.Random(3), np.random.default_rng(3)
    pool = Arena()
    pool.begin()
    alive, copies = [], []
    try:
        for _ in range(3000):
            act = chooser.random()
            if act < 0.3 or not alive:
                array = generator.integers(0, 255, chooser.choice([300, 700, 1500, 3000]) * 1000, np.uint8)
                alive.append((array, bytearray(array.tobytes())))
            elif act < 0.55:
                alive.pop(chooser.randrange(len(alive)))
            else:
                array, shadow = chooser.choice(alive)
                at = chooser.randrange(array.size - 1000)
                if act < 0.7:
                    blocks.back(array)
                elif act < 0.8:
                    blocks.drop(array)
                elif act < 0.87:
                    given = generator.integers(0, 255, 1000, np.uint8)
                    shadow[at:at + 1000] = given.tobytes()
                    if chooser.random() < 0.5:
                        array[at:at + 1000] = given
                    else:
                        blocks.write(array[at:at + 1000], given)
                elif act < 0.94:
                    copy, transfer = backend.swap_out(array)
                    transfer.wait()
                    copies = [*copies[-5:], (copy, bytes(shadow))]
                else:
                    assert array.tobytes() == shadow
            if len(alive) > 12:
                del alive[:4]
        for array, shadow in alive:
            assert array.tobytes() == shadow
        for copy, expected in copies:
            assert backend.peek(copy).tobytes() == expected
    finally:
        alive.clear()
        pool.close()


def test_a_forked_child_has_what_was_there_and_shares_nothing(blocks):
    array = filled(2 * MB, 1)
    blocks.back(array)

    def look():
        seen = bytes([int(array.min()), int(array.max())])
        array[:] = 3
        return seen

    with forked(look) as ask:
        array[:] = 2
        assert not blocks.is_backed(array)
        assert ask() == bytes([1, 1])
    assert (array == 2).all()
    assert blocks.back(array)
    assert (array == 2).all()


def test_closing_makes_private_what_is_there(tmp_path):
    made = HostBackend(str(tmp_path))
    array = filled(2 * MB, 5)
    assert made.file_backed.back(array)
    made.close()
    assert not made.file_backed.is_backed(array)
    made.file_backed.drop(array)
    array[3] += 1
    assert array[:5].tolist() == [5, 5, 5, 6, 5]


def test_where_there_is_no_memory_it_stays_open_and_says_so(backend, blocks, monkeypatch):
    array = filled(2 * MB, 5)
    blocks.back(array)
    with monkeypatch.context() as context:
        context.setattr(blocks._library, 'file_backed_unback', lambda owner: errno.ENOMEM)
        with pytest.raises(MemoryError, match=r'no memory for a parameter of 2\.1 MB that lies on the spill file'):
            backend.close()
    assert blocks.is_backed(array)
    assert (array == 5).all()
    backend.swap_out(filled(MB, 1))[1].wait()  # still open


def test_what_a_container_has_no_room_for_stays_on_the_file(backend, blocks, monkeypatch):
    array = filled(2 * MB, 5)
    blocks.back(array)
    with monkeypatch.context() as context:
        context.setattr(blocks, '_gives', lambda nbytes: nbytes < MB)
        with pytest.raises(MemoryError, match='lies on the spill file'):
            backend.close()
    assert blocks.is_backed(array)


def test_an_array_that_cannot_be_written_to_the_file_is_as_it_was(backend, blocks, gate):
    gate.error_number = errno.ENOSPC
    gate.set()
    array = filled(2 * MB, 5)
    with pytest.raises(SpillError, match='writing to the spill file'):
        blocks.back(array)
    assert not blocks.is_backed(array)
    assert (array == 5).all()


def test_where_the_system_has_no_mapping_it_stays_in_memory(backend, blocks, monkeypatch):
    array = filled(2 * MB, 5)
    with monkeypatch.context() as context:
        context.setattr(blocks._library, 'file_backed_back', lambda *given: errno.ENOMEM)
        assert not blocks.back(array)
    assert not blocks.is_backed(array)
    assert (array == 5).all()
    assert not blocks.back(array)  # nor is it asked again, which writes all bytes
    assert blocks.refusal == 'Cannot allocate memory (2.1 MB)'


def test_an_array_is_on_one_file(blocks, tmp_path):
    other = HostBackend(str(tmp_path))
    array = filled(2 * MB, 5)
    write = other.file_backed._write

    def write_and_come_second(source):
        blocks.back(array)
        return write(source)

    other.file_backed._write = write_and_come_second
    assert not other.file_backed.back(array)
    array[3] = 7
    other.close()
    assert blocks.is_backed(array)
    blocks.drop(array)
    assert array[:5].tolist() == [5, 5, 5, 7, 5]


def test_pages_that_are_none_are_not_kept(blocks):
    pool = Arena()
    pool.begin()
    try:
        pool.keep_at_most(0)
        array = filled(8 * MB, 1)
        blocks.back(array)
        del array
        assert pool.nbytes() < MB
        array = filled(8 * MB, 1)
        del array
        assert pool.nbytes() >= 8 * MB
    finally:
        pool.close()


def test_an_array_cannot_be_resized(blocks):
    """Its tail would be free, and on the file."""
    array = filled(MB, 1)
    assert blocks.back(array)
    with pytest.raises(ValueError, match='cannot resize'):
        array.resize(MB // 2, refcheck=False)


def test_a_refusal_because_too_many_lie_there_says_so(blocks, monkeypatch):
    monkeypatch.setattr(blocks._library, 'file_backed_back', lambda *_: errno.ENOSPC)
    assert not blocks.back(filled(MB, 1))
    assert blocks.refusal == 'as many as can be lie there already (1.0 MB)'


@pytest.mark.parametrize('in_pool', [False, True])
def test_an_array_that_has_died_leaves_no_mapping(blocks, in_pool):
    """Its memory goes back to the system; NumPy 2.5 frees it before the weak reference tells."""
    pool = Arena()
    if in_pool:
        pool.begin()
    try:
        before_bytes = mapped_bytes()
        for _ in range(8):
            array = filled(40 * MB, 1)
            assert blocks.back(array)
            del array
        assert mapped_bytes() - before_bytes < 80 * MB
    finally:
        if in_pool:
            pool.close()


def test_what_is_written_is_cleaned_where_a_limit_counts_dirty_pages(backend, blocks, monkeypatch):
    cleaned = []
    monkeypatch.setattr(backend._file, 'clean', lambda: cleaned.append(blocks._written_bytes))
    array = filled(2 * MB, 5)
    blocks.back(array)
    blocks.write(array, filled(2 * MB, 1))
    assert not cleaned
    monkeypatch.setattr(backend._headroom, 'dirty_bytes', lambda: 5 * MB)
    for _ in range(6):
        blocks.write(array, filled(2 * MB, 1))
    assert cleaned == [6 * MB, 6 * MB]


@pytest.mark.parametrize('writes', [True, False])
def test_a_failing_disk_is_told_of(blocks, monkeypatch, writes):
    array = filled(2 * MB, 5)
    blocks.back(array)
    monkeypatch.setattr(blocks._library, 'file_backed_copy', lambda *given: errno.EIO)
    with pytest.raises(SpillError, match=r'(writing|reading) 2\.1 MB of a parameter.* failed: Input/output error'):
        (blocks.write if writes else blocks.read)(array, filled(2 * MB, 1))


def test_an_interrupt_before_any_step_loses_nothing_and_gives_no_place_twice(backend, blocks):
    """Where it comes while a block is laid on the file, its place is its own until it dies, and free then."""
    number, was_interrupted = 0, True
    while was_interrupted:
        number += 1
        array, others = filled(8 * PAGE, 5), []
        was_interrupted = interrupted_at(number, lambda: blocks.back(array), 'line', lambda code: (  # noqa: B023
            code.co_filename.endswith(('file_backed.py', 'store.py', 'host/backend.py'))))
        for value in (6, 7):
            others.append((backend.swap_out(filled(8 * PAGE, value)), value))
            others[-1][0][1].wait()
        array[::7] = 9
        assert (array[1:7] == 5).all() and (array[::7] == 9).all()
        for (copy, _), value in others:
            assert (backend.peek(copy) == value).all(), number
        assert blocks.back(array)
        del array
    blocks.back(filled(PAGE, 1))
    others.clear()
    del copy
    take_back(backend)
    assert number > 20
    assert in_file(backend) <= 10 * PAGE
