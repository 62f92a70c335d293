"""What the CUDA backend does beside the contract (`tests/backends/test_contract.py`): tiers, limits, faults, order."""
import gc
import json
import os
import threading
import weakref

import numpy as np
import pytest

from chainer_ooc.backends.base import Bandwidth
from chainer_ooc.backends.cuda.backend import SAMPLES_BYTES, CudaBackend
from chainer_ooc.backends.cuda.regions import KEPT
from chainer_ooc.backends.host.headroom import Headroom
from chainer_ooc.backends.spill import filesystem, spill_file
from chainer_ooc.backends.spill.spill_file import PIECE_BYTES
from chainer_ooc.backends.spill.write_back import WriteBack
from chainer_ooc.errors import SpillError
from support.fake_driver import FakeDriver

MB = 1 << 20
SEEDS = range(4)


def filled(backend, nbytes, value):
    array = backend.allocate(nbytes)
    array[:] = value
    return array


def out(backend, array):
    copy, transfer = backend.swap_out(array)
    transfer.wait()
    return copy


def back(backend, copy):
    into = backend.allocate(copy.nbytes)
    backend.swap_in(copy, into).wait()
    return into


# The two tiers


def test_what_pinned_memory_has_no_room_for_goes_to_the_file(fake, tmp_path):
    backend = fake(spill_dir=str(tmp_path), host_limit_bytes=10_000)
    copies = [out(backend, filled(backend, 4000, value)) for value in range(4)]
    facts = backend.describe()
    assert (facts['pinned_bytes'], facts['spill_file_bytes']) == (8000, 8192)
    assert [int(back(backend, copy)[-1]) for copy in copies] == [0, 1, 2, 3]


def test_room_that_is_released_is_pinned_memory_again(fake):
    backend = fake(host_limit_bytes=10_000)
    copies = [out(backend, filled(backend, 4000, value)) for value in range(2)]
    backend.release(copies[0])
    out(backend, filled(backend, 4000, 9))
    assert backend.describe()['spill_file_bytes'] == 0
    assert fake.driver_of(backend).pins == 2


def test_no_file_is_made_before_it_is_needed(fake):
    def descriptors():
        return len(os.listdir('/proc/self/fd'))

    before = descriptors()
    backend = fake(host_limit_bytes=1000)
    copies = [out(backend, filled(backend, 1000, 1))]
    assert descriptors() == before
    copies.append(out(backend, filled(backend, 1000, 2)))
    assert descriptors() == before + 1
    assert [int(back(backend, copy)[0]) for copy in copies] == [1, 2]


def test_a_folder_that_is_missing_is_told_at_once(tmp_path):
    driver = FakeDriver()
    with pytest.raises(SpillError, match='cannot make a spill file'):
        CudaBackend(str(tmp_path / 'missing'), driver=driver)
    assert driver.left_behind() == []


@pytest.mark.parametrize('seed', SEEDS)
@pytest.mark.parametrize('nbytes', [1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES - 1])
def test_pieces_come_together_again(fake, tmp_path, nbytes, seed):
    backend = fake(seed, str(tmp_path), host_limit_bytes=0)
    array = backend.allocate(nbytes)
    array[:] = np.arange(nbytes) // 1000 % 251
    copies = [out(backend, array) for _ in range(2)]
    assert all(np.array_equal(back(backend, copy), array) for copy in copies)


def test_a_copy_to_the_file_takes_four_staging_blocks_and_no_more(fake):
    backend = fake(host_limit_bytes=0)
    for value in range(3):
        back(backend, out(backend, filled(backend, 3 * PIECE_BYTES, value)))
    assert fake.driver_of(backend).pins == 4


def test_pinning_that_is_refused_sends_copies_to_the_file(fake):
    backend = fake()
    driver = fake.driver_of(backend)
    driver.fail_next('pin', 1000)  # the staging blocks' too: ordinary memory stands in
    copies = [out(backend, filled(backend, 3 * MB, value)) for value in range(3)]
    assert [int(back(backend, copy)[-1]) for copy in copies] == [0, 1, 2]
    assert any('refused to pin' in warning for warning in backend.describe()['warnings'])
    driver._doomed['pin'] = 0


def test_transfers_end_in_order_whichever_way_they_take(fake):
    # swap-out 0 and 2 in pinned memory, 1 by way of the file
    for seed in SEEDS:
        backend = fake(seed, host_limit_bytes=11_000)
        arrays = [filled(backend, nbytes, 1) for nbytes in (6000, 9000, 5000)]
        swaps = [backend.swap_out(array) for array in arrays]
        while not swaps[2][1].done:
            pass
        assert [transfer.done for _, transfer in swaps] == [True] * 3
        reads = [backend.swap_in(copy, array) for (copy, _), array in zip(swaps, arrays, strict=True)]
        reads[2].wait()
        assert [transfer.done for transfer in reads] == [True] * 3


# Near memory


def test_near_memory_is_the_budgets(fake):
    backend = fake(near_bytes=1000)
    driver = fake.driver_of(backend)
    assert driver.budgets[0].installed
    assert driver.budgets[0].name == 'virtual'
    first = backend.allocate(600)
    assert (backend.free_bytes(), backend.has_room(400), backend.has_room(401)) == (400, True, False)
    with pytest.raises(MemoryError):
        backend.allocate(500)
    del first
    gc.collect()
    assert backend.free_bytes() == 1000
    backend.close()
    assert not driver.budgets[0].installed


def test_allocate_asks_nobody_for_relief(fake):
    backend = fake()
    asked = []
    backend.limit(1000, asked.append)
    assert not backend.has_room(1001)
    with pytest.raises(MemoryError):
        backend.allocate(1001)
    assert asked == []


def test_others_who_allocate_are_given_relief(fake):
    backend = fake()
    kept, asked = [backend.allocate(800)], []

    def on_out_of_memory(missing_bytes):
        asked.append(missing_bytes)
        kept.clear()
        return len(asked) == 1

    backend.limit(1000, on_out_of_memory)
    assert fake.driver_of(backend).empty(700).nbytes == 700
    assert asked == [500]


def test_a_limit_that_is_lifted_leaves_what_the_device_has(fake):
    backend = fake(near_bytes=5000)
    backend.limit(1000, bool)
    assert backend.free_bytes() == 1000
    backend.limit(None, bool)
    assert backend.free_bytes() == 5000


def test_two_that_are_open_at_once_share_the_device_and_one_that_closes_takes_its_own_share_alone(fake, monkeypatch):
    first = fake(near_bytes=5000)
    driver = fake.driver_of(first)
    budget = driver.budgets[0]
    monkeypatch.setattr(driver, 'budget', lambda allocator: budget)  # as in a process, where each allocator has one
    other = fake(driver=driver)
    first.limit(1000, bool)
    assert budget.limit_bytes == 1000
    other.limit(600, bool)
    assert budget.limit_bytes == 1600
    first.limit(800, bool)
    assert budget.limit_bytes == 1400
    other.close()
    assert (budget.limit_bytes, budget.installed) == (800, True)
    other.close()
    assert (budget.limit_bytes, budget.installed) == (800, True)
    first.close()
    assert not budget.installed


def test_one_that_closes_in_another_thread_takes_its_own_relief_alone(fake, monkeypatch):
    first = fake(near_bytes=5000)
    driver = fake.driver_of(first)
    budget = driver.budgets[0]
    monkeypatch.setattr(driver, 'budget', lambda allocator: budget)
    other, asked = fake(driver=driver), []
    first.limit(1000, lambda missing_bytes: bool(asked.append('first')))
    other.limit(600, lambda missing_bytes: bool(asked.append('other')))

    def close():
        driver.use()
        other.close()

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    with pytest.raises(MemoryError):
        driver.empty(1001)
    assert asked == ['first']
    first.limit(None, asked.append)
    with pytest.raises(MemoryError):
        driver.empty(5001)
    assert asked == ['first']


def test_what_others_have_taken_meanwhile_is_lacking(fake):
    backend = fake()
    driver = fake.driver_of(backend)
    backend.limit(1 << 20, bool)
    assert backend.lacking_bytes(1 << 20) == 0
    driver.near_bytes = 1 << 18
    assert backend.has_room(1 << 19), 'the device is not asked for each computation'
    backend.trim()
    assert not backend.has_room(1 << 19)
    assert backend.lacking_bytes(1 << 19) == 1 << 18


def test_what_is_kept_is_given_back_only_where_no_limit_counts_it(fake):
    backend = fake()
    budget = fake.driver_of(backend).budgets[0]
    backend.limit(1000, bool)
    backend.trim()
    assert budget.trims == []
    backend.limit(None, bool)
    backend.trim()
    assert budget.trims == [0]


# Several streams

#: What the fake says of arrays that are none of the stream's that it calls compute.
OF_ONE_STREAM = ('a copy was not ordered after what compute did with its array',)


@pytest.mark.parametrize('seed', range(8))
@pytest.mark.parametrize('host_limit_bytes', [MB, 0], ids=['pinned', 'file'])
def test_copies_come_after_what_was_computed_on_another_stream_and_before_what_will_be(fake, host_limit_bytes, seed):
    backend = fake(seed, host_limit_bytes=host_limit_bytes, forgiven=OF_ONE_STREAM)
    driver = fake.driver_of(backend)
    array, seen = filled(backend, 4000, 1), []
    first, second = driver.new_stream(), driver.new_stream()

    def compute(stream, kernel):
        driver.current = stream
        with backend.computing():
            driver.launch(stream, kernel)

    compute(first, lambda: array.fill(7))
    compute(second, lambda: None)
    copy = out(backend, array)  # while the other stream is the current one
    into = backend.allocate(4000)
    backend.swap_in(copy, into).wait()
    compute(first, lambda: seen.append(int(into[-1])))
    driver.finish(first)
    driver.finish(second)
    assert seen == [7]
    driver.current = None


def test_a_program_that_stays_on_its_stream_waits_for_none(fake, monkeypatch):
    backend = fake()
    driver = fake.driver_of(backend)
    driver.current = driver.new_stream()
    backend.timestamp()
    monkeypatch.setattr(driver, 'wait_event', None)
    for _ in range(3):
        with backend.computing():
            backend.timestamp()
    monkeypatch.undo()
    driver.finish(driver.current)
    driver.current = None


# Times and descriptions


def test_a_moment_is_an_event_with_its_time(fake):
    backend = fake()
    start, end = backend.timestamp(), backend.timestamp()
    assert 0 <= backend.seconds_between(start, end) < 60


def test_seconds_are_those_of_the_copy_once_it_is_over(fake):
    backend = fake()
    array = filled(backend, MB, 1)
    copy, transfer = backend.swap_out(array)
    assert transfer.seconds == 0.0
    transfer.wait()
    assert 1e-3 < transfer.seconds < 1
    read = backend.swap_in(copy, array)
    read.wait()
    assert 1e-3 < read.seconds < 1


def test_a_wait_for_a_swap_in_does_not_block_the_host(fake):
    """Compute waits; nothing is asked of the host but to put that on its stream."""
    backend = fake()
    driver = fake.driver_of(backend)
    copy = out(backend, filled(backend, 400, 1))
    into = backend.allocate(400)
    transfer = backend.swap_in(copy, into)
    blocked = []
    for name in ('synchronize', 'finish', 'passed'):
        setattr(driver, name, lambda *_, name=name: blocked.append(name))
    transfer.wait()
    assert transfer.done
    for name in ('synchronize', 'finish', 'passed'):
        delattr(driver, name)
    assert blocked == []


def test_bandwidth_is_that_of_the_streams(fake):
    backend = fake()
    found = backend.bandwidth()
    assert isinstance(found, Bandwidth)
    assert found.write_bytes_per_second == pytest.approx(1e9, rel=0.01)
    assert found.read_bytes_per_second == pytest.approx(1e9, rel=0.01)
    assert found.slowdown == 0.0


def test_bytes_are_counted_by_the_tier_that_they_went_to(fake, tmp_path, caplog):
    backend = fake(spill_dir=str(tmp_path), host_limit_bytes=10_000)
    with caplog.at_level('INFO', 'chainer_ooc'):
        copies = [out(backend, filled(backend, 4000, value)) for value in range(4)]
        assert backend.tier_bytes() == {'pinned': 8000, 'file': 8000}
        backend.close()
        backend.close()
    assert len(copies) == 4
    news = [record.message for record in caplog.records if 'spill file' in record.message]
    assert len(news) == 2, 'the first copy that goes there, and the sum at the end'
    assert str(tmp_path) in news[0]
    assert '8000 bytes to pinned memory, 8000 bytes to the spill file' in news[1]


def test_plans_count_on_the_speed_of_the_tiers_that_are_used(fake, tmp_path, monkeypatch):
    """Half of the bytes go by way of the file, which is a hundred times slower."""
    from chainer_ooc.backends.spill.transfer import HostTransfer
    backend = fake(spill_dir=str(tmp_path), host_limit_bytes=1 << 30)
    pinned = backend.bandwidth()
    assert backend.bandwidth() is pinned, 'samples are none of the copies'
    monkeypatch.setattr(HostTransfer, 'seconds', property(lambda self: self.nbytes / 1e7))
    kept = [out(backend, filled(backend, MB, 1))]
    backend._far.pinned._given_bytes = backend._far.pinned.limit_bytes = 0
    backend._far.pinned.trim()
    kept.append(out(backend, filled(backend, MB, 2)))
    into = back(backend, kept[1])
    assert int(into[0]) == 2
    found = backend.bandwidth()
    for speed in (found.write_bytes_per_second, found.read_bytes_per_second):
        assert speed == pytest.approx(2 / (1 / 1e9 + 1 / 1e7), rel=0.02)
    assert backend.bandwidth() is pinned, 'nothing was copied since'


def test_samples_by_way_of_the_file_are_no_copies(fake, tmp_path, caplog):
    backend = fake(spill_dir=str(tmp_path), host_limit_bytes=1)
    sampled = backend.bandwidth()
    assert caplog.messages == []
    copy = out(backend, filled(backend, 4000, 1))
    assert len(caplog.messages) == 1
    copy.swap_out.by_disk._seconds = 4.0
    assert backend.bandwidth().write_bytes_per_second == pytest.approx(1000), 'of this copy alone'
    assert sampled.write_bytes_per_second > 1000


@pytest.mark.parametrize('fails', ['budget', 'folder'])
def test_a_backend_that_cannot_be_made_leaves_nothing_behind(fake, monkeypatch, fails):
    """It had taken over what is pinned, and nobody unpinned that; its budget stayed CuPy's allocator."""
    before = fake()
    driver = fake.driver_of(before)
    out(before, filled(before, 4000, 1))
    before.close()
    kept = list(KEPT)
    assert kept

    def refuse(allocator):
        raise RuntimeError('no such allocator')
    if fails == 'budget':
        monkeypatch.setattr(driver, 'budget', refuse)
    with pytest.raises((RuntimeError, SpillError)):
        CudaBackend('/no/such/folder' if fails == 'folder' else None, driver=driver)
    assert list(KEPT) == kept
    assert not any(each.installed for each in driver.budgets)


def test_a_file_that_is_not_there_yet_has_its_share_and_its_limit_too(fake, monkeypatch):
    backend = fake(host_limit_bytes=1)
    monkeypatch.setattr(spill_file, 'share', lambda nbytes: nbytes // 4)
    free_bytes = filesystem.free_space(filesystem.default_folder())
    assert backend._far.disk.free_bytes() == pytest.approx(free_bytes // 4, rel=0.01)
    monkeypatch.setattr(spill_file.resource, 'getrlimit', lambda which: (MB, MB))
    assert backend._far.disk.free_bytes() == MB


def test_bandwidth_is_measured_with_what_there_is(fake):
    backend = fake(near_bytes=3 * MB)
    assert backend.bandwidth().write_bytes_per_second > 0
    assert SAMPLES_BYTES[-1] == MB


def test_bandwidth_needs_some_memory(fake):
    with pytest.raises(MemoryError):
        fake(near_bytes=MB).bandwidth()


def test_description_names_the_device_and_its_limits(fake, tmp_path):
    backend = fake(spill_dir=str(tmp_path), near_bytes=1 << 30, host_limit_bytes=MB)
    backend.limit(MB, bool)
    facts = backend.describe()
    assert json.loads(json.dumps(facts)) == facts
    assert (facts['device'], facts['device_name'], facts['device_driver_version']) == ('cuda', 'Fake GPU', '13.0')
    assert facts['near_limits_bytes'] == {'device': 1 << 30, 'budget': MB}
    assert facts['near_free_bytes'] == MB
    assert facts['pinned_limit_bytes'] == MB
    assert facts['spill_folder'] == str(tmp_path)
    assert backend.machine() == 'Fake GPU, 1.07 GB'


def test_reserve_counts_both_tiers(fake, tmp_path, monkeypatch):
    backend = fake(spill_dir=str(tmp_path), host_limit_bytes=MB)
    monkeypatch.setattr(type(backend._far.disk), 'free_bytes', lambda self: 1000)
    backend.reserve(MB + 1000)
    copy = out(backend, filled(backend, 2000, 1))
    with pytest.raises(SpillError, match=r'needed 1\.0 MB, free|needed .*, free .*ooc_host_limit'):
        backend.reserve(MB)
    backend.release(copy)
    backend.reserve(MB + 1000)


# Faults


@pytest.mark.parametrize('seed', SEEDS)
@pytest.mark.parametrize('host_limit_bytes', [MB, 0])
@pytest.mark.parametrize('when', ['', ' late'])
def test_a_swap_out_that_fails_is_told_at_each_wait(fake, host_limit_bytes, when, seed):
    backend = fake(seed, host_limit_bytes=host_limit_bytes)
    source = filled(backend, 4000, 1)
    fake.driver_of(backend).fail_next(f'copy_out{when}')
    copy, transfer = backend.swap_out(source)
    into = backend.allocate(4000)
    read = backend.swap_in(copy, into)
    for _ in range(2):
        with pytest.raises(SpillError, match='copy_out failed'):
            transfer.wait()
        if not (when and host_limit_bytes):  # there the device tells one of them only; a true one tells all
            with pytest.raises(SpillError, match='copy_out failed'):
                read.wait()
    assert transfer.done
    assert (source == 1).all()
    assert (back(backend, out(backend, source)) == 1).all()


@pytest.mark.parametrize('seed', SEEDS)
@pytest.mark.parametrize('host_limit_bytes', [MB, 0])
@pytest.mark.parametrize('when', ['', ' late'])
def test_a_swap_in_that_fails_may_be_tried_again(fake, host_limit_bytes, when, seed):
    backend = fake(seed, host_limit_bytes=host_limit_bytes)
    copy = out(backend, filled(backend, 4000, 1))
    fake.driver_of(backend).fail_next(f'copy_in{when}')
    into = backend.allocate(4000)
    transfer = backend.swap_in(copy, into)
    for _ in range(2):
        with pytest.raises(SpillError, match='copy_in failed'):
            transfer.wait()
    assert (back(backend, copy) == 1).all()


@pytest.mark.parametrize('also', [(), ('finish',)])
@pytest.mark.parametrize('act', ['wait_event', 'passed'])
def test_what_a_copy_may_still_write_to_is_nobody_elses(fake, monkeypatch, act, also):
    """The device does not say whether a swap-in is over: its array goes when the stream has run dry, or never."""
    backend = fake(0)
    driver = fake.driver_of(backend)
    copy = out(backend, filled(backend, 4000, 1))
    into = backend.allocate(4000)
    transfer, held = backend.swap_in(copy, into), weakref.ref(into)
    del into

    def fails(*arguments):
        raise RuntimeError('cudaErrorUnknown')

    with monkeypatch.context() as patched:
        for name in (act, *also):
            patched.setattr(driver, name, fails)
        if act == 'passed':
            assert transfer.done
        with pytest.raises(SpillError, match='cudaErrorUnknown'):
            transfer.wait()
        gc.collect()
        assert (held() is None) == (not also)
    driver.finish(backend._far._in.stream)
    assert not any(stream.queue for stream in driver._streams)


def test_what_a_container_counts_as_dirty_is_kept_small_on_a_gpu_too(fake, monkeypatch):
    """Its kernel ends the process where that is too much."""
    written = []
    monkeypatch.setattr(Headroom, 'dirty_bytes', lambda self: 12345)
    monkeypatch.setattr(WriteBack, 'wrote', lambda self, start, nbytes, allowed: written.append((nbytes, allowed)))
    backend = fake(host_limit_bytes=0)
    out(backend, filled(backend, MB, 1))
    assert written == [(MB, 12345)]


def test_a_disk_that_fails_leaves_the_source_whole(fake, monkeypatch):
    backend = fake(host_limit_bytes=0)
    source = filled(backend, 3 * PIECE_BYTES, 1)

    def fails(descriptor, views, offset):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'pwritev', fails)
    copy, transfer = backend.swap_out(source)
    for _ in range(2):
        with pytest.raises(SpillError, match='No space left'):
            transfer.wait()
    with pytest.raises(SpillError, match='No space left'):
        backend.swap_in(copy, backend.allocate(copy.nbytes)).wait()
    monkeypatch.undo()
    assert (source == 1).all()
    assert (back(backend, out(backend, source)) == 1).all()


def test_a_disk_that_cannot_be_read_leaves_the_copy(fake, monkeypatch):
    backend = fake(host_limit_bytes=0)
    copy = out(backend, filled(backend, 3 * PIECE_BYTES, 1))
    read, calls = os.preadv, []

    def fails_in_the_middle(*args):
        calls.append(args)
        if len(calls) == 2:
            raise OSError(5, 'Input/output error')
        return read(*args)

    monkeypatch.setattr(os, 'preadv', fails_in_the_middle)
    transfer = backend.swap_in(copy, backend.allocate(copy.nbytes))
    with pytest.raises(SpillError, match='Input/output error'):
        transfer.wait()
    assert (back(backend, copy) == 1).all()


class Interrupts(FakeDriver):
    """A KeyboardInterrupt comes with the next call of a name."""

    interrupted = None

    def _interrupt(self, name):
        if self.interrupted == name:
            self.interrupted = None
            raise KeyboardInterrupt

    def copy_out(self, *args):
        super().copy_out(*args)
        self._interrupt('copy_out')

    def copy_in(self, *args):
        super().copy_in(*args)
        self._interrupt('copy_in')

    def synchronize(self, event):
        self._interrupt('synchronize')
        super().synchronize(event)

    def finish(self, stream):
        self._interrupt('finish')
        super().finish(stream)


@pytest.mark.parametrize('seed', SEEDS)
@pytest.mark.parametrize('name', ['copy_out', 'copy_in', 'synchronize', 'finish'])
def test_an_interrupt_loses_nothing(fake, name, seed):
    driver = Interrupts(seed)
    backend = fake(driver=driver)
    copy = out(backend, filled(backend, 4000, 1))
    driver.interrupted = name

    def goes_on():
        out(backend, filled(backend, 4000, 2))  # nobody else holds the array
        back(backend, copy)
        backend.close()

    with pytest.raises(KeyboardInterrupt):
        goes_on()
    if name != 'finish':
        assert (back(backend, copy) == 1).all()
        assert (back(backend, out(backend, filled(backend, 4000, 3))) == 3).all()


def test_close_ends_with_everything_given_back_though_the_device_fails(fake):
    driver = FakeDriver()
    backend = fake(driver=driver)
    source = filled(backend, 4000, 1)
    driver.fail_next('copy_out late')
    _, transfer = backend.swap_out(source)
    with pytest.raises(SpillError, match='GPU failed while its backend was closed'):
        backend.close()
    assert driver.left_behind() == []
    assert transfer.done
    backend.close()


def test_a_copy_that_was_forgotten_while_it_is_made_keeps_its_array(fake):
    for seed in SEEDS:
        backend = fake(seed)
        backend.swap_out(filled(backend, 4000, 1))
        copy = out(backend, filled(backend, 4000, 2))
        backend.swap_in(copy, backend.allocate(4000))
        backend.close()


class LosesEvents(FakeDriver):
    """The event after the next copy is refused: nobody can tell when that copy is over."""

    loses_next = False

    def _copied(self):
        self.refuses, self.loses_next = self.loses_next, False

    refuses = False

    def copy_out(self, *args):
        super().copy_out(*args)
        self._copied()

    def copy_in(self, *args):
        super().copy_in(*args)
        self._copied()

    def record(self, stream, timed=False):
        if timed and self.refuses:
            self.refuses = False
            raise RuntimeError('cudaErrorUnknown: record failed')
        return super().record(stream, timed)


@pytest.mark.parametrize('seed', SEEDS)
def test_a_block_whose_swap_in_may_still_run_is_not_lent(fake, seed):
    driver = LosesEvents(seed)
    backend = fake(driver=driver)
    copy = out(backend, filled(backend, 4000, 1))
    into, other = backend.allocate(4000), filled(backend, 4000, 2)
    driver.loses_next = True
    failing = backend.swap_in(copy, into)
    backend.release(copy)
    backend.swap_out(other)
    assert driver.pins == 2
    with pytest.raises(SpillError, match='record failed'):
        failing.wait()
    third = out(backend, other)
    assert driver.pins == 2  # once its stream has run dry the block is as good as any
    assert (back(backend, third) == 2).all()


@pytest.mark.parametrize('seed', range(30))  # with most of them a poll finds the first one done
def test_a_block_whose_swap_out_may_still_run_is_not_unpinned(fake, seed):
    driver = LosesEvents(seed)
    backend = fake(driver=driver, host_limit_bytes=5000)
    source, other = filled(backend, 4000, 1), filled(backend, 3000, 2)
    first = backend.swap_out(filled(backend, 500, 3))  # before which the failing one does not end
    driver.loses_next = True
    copy, failing = backend.swap_out(source)
    backend.release(copy)
    copy, _ = backend.swap_out(other)  # by way of the file: there is no room beside the block
    with pytest.raises(SpillError, match='record failed'):
        failing.wait()
    assert (back(backend, copy) == 2).all()
    assert (back(backend, first[0]) == 3).all()


def test_a_copy_that_is_released_twice_gives_its_block_back_once(fake):
    """As when an interrupt comes within a release."""
    backend = fake()
    copy = out(backend, filled(backend, 4000, 1))
    copy.unwanted.append(copy.place)
    backend.release(copy)
    copies = [out(backend, filled(backend, 4000, value)) for value in (2, 3)]
    assert [int(back(backend, each)[0]) for each in copies] == [2, 3]
