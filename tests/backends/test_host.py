"""What the host backend alone promises: space is used again, and a fault loses nothing."""
import errno
import os
import threading
import time
import warnings
import weakref

import numpy as np
import pytest

from chainer_ooc.backends.base import Bandwidth
from chainer_ooc.backends.host import HostBackend, measure
from chainer_ooc.backends.host import backend as host
from chainer_ooc.backends.spill.transfer import HostTransfer
from chainer_ooc.errors import SpillError

MB = 1 << 20


def numbers(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def out(backend, array):
    copy, transfer = backend.swap_out(array)
    transfer.wait()
    return copy


def back(backend, copy):
    into = np.zeros(copy.nbytes, np.uint8)
    backend.swap_in(copy, into).wait()
    return into


def failing(error_number, calls=1):
    """Stands in for pwritev or preadv and fails at the given call."""
    real, count = {'write': os.pwritev, 'read': os.preadv}, [0]

    def call(kind):
        def move(descriptor, views, offset):
            count[0] += 1
            if count[0] >= calls:
                raise OSError(error_number, os.strerror(error_number))
            return real[kind](descriptor, views, offset)
        return move
    return call


def test_a_copy_of_another_host_backend_is_refused(backend, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # the folder for temporary files may be a RAM disk
        other = HostBackend(str(tmp_path))
    copy = out(other, numbers(8))
    for call in (lambda: back(backend, copy), lambda: backend.map(copy)):
        with pytest.raises(ValueError, match='another backend'):
            call()
    other.close()


def test_a_copy_has_ended_when_its_last_moment_has_passed():
    transfer = HostTransfer(8)
    assert transfer.moments is None
    before = time.perf_counter()
    transfer.end(0.5, None)
    start, end = transfer.moments
    assert before <= end <= time.perf_counter()
    assert start == pytest.approx(end - 0.5)


# Space


def test_the_file_is_as_large_as_what_is_alive_together(backend):
    for seed in range(6):
        for copy in [out(backend, numbers(4 * MB, seed)) for _ in range(3)]:
            back(backend, copy)
            backend.release(copy)
    assert backend.describe()['spill_file_bytes'] == 12 * MB


def test_a_copy_that_nobody_holds_gives_its_space_back(backend):
    for seed in range(6):
        out(backend, numbers(4 * MB, seed))
    assert backend.describe()['spill_file_bytes'] <= 8 * MB


def test_released_space_counts_as_free_before_it_is_taken_back(backend, monkeypatch):
    monkeypatch.setattr(backend._file, 'free_bytes', lambda end_bytes: 0)
    copy = out(backend, numbers(4 * MB))
    with pytest.raises(SpillError, match=r'needed 4.2 MB, free 0 bytes'):
        backend.reserve(4 * MB)
    backend.release(copy)
    backend.reserve(4 * MB)
    with pytest.raises(SpillError, match=r'needed 5.2 MB, free 4.2 MB'):
        backend.reserve(5 * MB)


def test_what_is_queued_does_not_count_as_free(backend, gate, monkeypatch):
    monkeypatch.setattr(backend._file, 'free_bytes', lambda end_bytes: 10 * MB)
    copies = [backend.swap_out(numbers(4 * MB)) for _ in range(2)]
    with pytest.raises(SpillError, match=r'needed 3.1 MB, free 2.1 MB'):
        backend.reserve(3 * MB)
    del copies


def test_a_released_copy_that_waits_is_never_written(backend, gate):
    kept, first = backend.swap_out(numbers(MB))
    copy, second = backend.swap_out(numbers(40 * MB))
    backend.release(copy)
    gate.set()
    second.wait()
    assert first.done
    assert backend.describe()['spill_file_bytes'] == kept.nbytes


# Faults


def test_a_full_disk_leaves_the_source_and_the_space(backend, monkeypatch):
    kept = out(backend, numbers(MB, 1))
    array = numbers(20 * MB)
    before, reference = array.copy(), weakref.ref(array)
    monkeypatch.setattr(os, 'pwritev', failing(errno.ENOSPC, calls=2)('write'))
    copy, transfer = backend.swap_out(array)
    for _ in range(2):
        with pytest.raises(SpillError, match=r'writing to the spill file in .* No space left on device '
                                             r'\(needed 21.0 MB, free .*ooc_spill_dir') as caught:
            transfer.wait()
        assert caught.value.errno == errno.ENOSPC
    assert transfer.done
    assert np.array_equal(array, before)
    monkeypatch.undo()
    with pytest.raises(SpillError, match='No space left'):
        back(backend, copy)
    backend.release(copy)

    again = out(backend, array)  # the disk has room again
    assert backend.describe()['spill_file_bytes'] == 21 * MB
    assert np.array_equal(back(backend, again), before)
    assert np.array_equal(back(backend, kept), numbers(MB, 1))
    del array, caught
    assert reference() is None


@pytest.mark.parametrize('fails', ['nothing', 'write', 'read'])
def test_the_array_is_gone_at_the_very_moment_of_done(backend, monkeypatch, gate, fails):
    # The caller drops its references while the write is held back, so the threads' own are the last.
    gate.set()
    back(backend, out(backend, numbers(8)))  # the threads run before `end` is watched
    gate.clear()
    if fails == 'read':
        monkeypatch.setattr(os, 'preadv', failing(errno.EIO)('read'))
    arrays = [numbers(MB), np.zeros(MB, np.uint8)]
    references = [weakref.ref(array) for array in arrays]
    alive = []
    end = HostTransfer.end

    def note(transfer, seconds, failure):
        alive.append((references[len(alive)]() is not None, failure is not None))
        end(transfer, seconds, failure)

    monkeypatch.setattr(HostTransfer, 'end', note)
    copy, _ = backend.swap_out(arrays[0])
    read = backend.swap_in(copy, arrays[1])
    arrays.clear()
    gate.error_number = errno.EIO if fails == 'write' else None
    gate.set()
    while not read.done:
        time.sleep(0.001)
    assert alive == [(False, fails == 'write'), (False, fails != 'nothing')]


def test_a_disk_that_is_full_while_the_file_grows(backend, monkeypatch):
    def refuse(descriptor, start, nbytes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, 'posix_fallocate', refuse)
    copy, transfer = backend.swap_out(numbers(MB))
    with pytest.raises(SpillError, match=r'growing the spill file in .* failed: No space left'):
        transfer.wait()
    assert backend.describe()['spill_file_bytes'] == 0
    backend.release(copy)


def test_a_failed_swap_in_may_be_tried_again(backend, monkeypatch):
    array = numbers(20 * MB)
    copy = out(backend, array)
    monkeypatch.setattr(os, 'preadv', failing(errno.EIO, calls=2)('read'))
    transfer = backend.swap_in(copy, np.zeros(20 * MB, np.uint8))
    with pytest.raises(SpillError, match=r'reading from the spill file .*Input/output error.*whole in the other tier'):
        transfer.wait()
    monkeypatch.undo()
    assert np.array_equal(back(backend, copy), array)


def test_a_file_cut_short_fails_the_swap_in(backend):
    copy = out(backend, numbers(2 * MB))
    os.ftruncate(backend._file._descriptor, MB)
    with pytest.raises(SpillError, match='ends after 1048576 of 2097152 bytes'):
        back(backend, copy)


def test_a_fault_of_ours_reaches_the_caller(backend, monkeypatch):
    monkeypatch.setattr(backend._store._extents, 'place', lambda nbytes: 1 / 0)
    copy, transfer = backend.swap_out(numbers(MB))
    with pytest.raises(SpillError, match=r'(?s)a fault in the thread.*ZeroDivisionError'):
        transfer.wait()
    backend.release(copy)


def test_a_thread_that_cannot_start_is_an_error_and_no_copy(backend, monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    array = numbers(MB)
    before = threading.stack_size()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, 'start', refuse)
        with pytest.raises(SpillError, match="cannot start the thread 'chainer_ooc-swap-out': can't start new thread"):
            backend.swap_out(array)
    assert threading.stack_size() == before
    copy = out(backend, array)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, 'start', refuse)
        with pytest.raises(SpillError, match="'chainer_ooc-swap-in'"):
            backend.swap_in(copy, np.zeros(MB, np.uint8))
    assert np.array_equal(back(backend, copy), array)
    backend.release(copy)
    out(backend, array)
    assert backend.describe()['spill_file_bytes'] == MB  # the swap-in that never was holds no space


def test_the_measurement_is_in_no_recording_of_another_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(host, '_bandwidths', {})
    backend = HostBackend(str(tmp_path))
    meter = backend.meter()
    assert meter.start()
    try:
        meter.mark()
        backend.bandwidth()
        assert meter.above_mark_bytes() < MB // 4
    finally:
        meter.stop()
        backend.close()


def test_no_kept_page_serves_what_is_copied_to_measure_the_bandwidth(tmp_path, monkeypatch):
    """A container's kernel ended the process: there was room by the pages that were kept."""
    measured = []
    monkeypatch.setattr(host, '_bandwidths', {})
    monkeypatch.setattr(measure, 'bandwidth', lambda backend, nbytes: measured.append(nbytes))
    backend = HostBackend(str(tmp_path))
    monkeypatch.setattr(backend, 'has_room', lambda nbytes: True)
    for gives_bytes in (0, 1 << 30):
        monkeypatch.setattr(backend, '_gives', lambda nbytes, most_bytes=gives_bytes: nbytes <= most_bytes)
        backend.bandwidth()
    backend.close()
    assert measured == [measure.SMALL_SAMPLE_BYTES, measure.SAMPLE_BYTES]


def test_a_bandwidth_is_measured_once_for_each_disk_of_a_process(tmp_path, monkeypatch):
    """Each thread that trained measured it anew, for as long as a hundred iterations of a small network."""
    measured = []

    def measure_once(backend, nbytes):
        measured.append(nbytes)
        return Bandwidth(1e9, 1e9, 1e-5)
    monkeypatch.setattr(host, '_bandwidths', {})
    monkeypatch.setattr(measure, 'bandwidth', measure_once)

    def asked():
        backend = HostBackend(str(tmp_path))
        try:
            return backend.bandwidth()
        finally:
            backend.close()
    monkeypatch.setattr(HostBackend, 'leaves_outside', lambda self, nbytes: False)  # what small samples say is not kept
    asked()
    monkeypatch.undo()
    monkeypatch.setattr(host, '_bandwidths', {})
    monkeypatch.setattr(measure, 'bandwidth', measure_once)
    assert asked() is asked()
    assert measured == [measure.SMALL_SAMPLE_BYTES, measure.SAMPLE_BYTES]
    host._bandwidths = {number + 1: each for number, each in host._bandwidths.items()}  # as if on another disk
    asked()
    assert len(measured) == 3
