"""P9: faults injected. Nothing is lost or left, the error helps, and the next iteration works without a reset."""
import errno
import itertools
import os
import resource
import signal
import threading
import time
import traceback
import tracemalloc

import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.host import HostBackend, limits
from chainer_ooc.backends.spill.swap_thread import SwapThread
from chainer_ooc.errors import ConfigError, OocError, SpillError
from support.trainings.faults import (
    Patched,
    Saved,
    interrupt,
    interrupted_after,
    nothing_left,
    train_with_a_fault,
)
from support.trainings.ooc_training import POLICIES, SWAPPING, Training, assert_same_bits, ooc, plain


def no_space(original, *args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def input_output_error(original, *args):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def end_of_file(original, *args):
    return 0


@pytest.mark.host
@pytest.mark.parametrize('at', [0, 1, 2])
@pytest.mark.parametrize('policy', SWAPPING)
@pytest.mark.parametrize('network', ['residual', 'hidden'])
def test_disk_full_in_a_swap_out(network, policy, at):
    error = train_with_a_fault(network, policy, at, Patched(os, 'pwritev', no_space, after=2), SpillError)
    assert isinstance(error, OSError) and isinstance(error, OocError)
    assert error.errno == errno.ENOSPC
    for part in ('writing to the spill file', 'needed', 'free', 'ooc_spill_dir'):
        assert part in str(error)


@pytest.mark.host
@pytest.mark.parametrize('policy', SWAPPING)
def test_disk_full_where_the_file_grows(policy):
    error = train_with_a_fault('residual', policy, 0, Patched(os, 'posix_fallocate', no_space), SpillError)
    assert error.errno == errno.ENOSPC and 'growing the spill file' in str(error)


class FileSizeLimit:
    """A disk that is really too small: RLIMIT_FSIZE."""

    def __init__(self, nbytes):
        self.nbytes = nbytes

    def __enter__(self):
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.nbytes, self.before[1]))

    def __exit__(self, *error):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.mark.host
@pytest.mark.parametrize('policy', SWAPPING)
def test_a_file_that_may_not_grow(policy):
    error = train_with_a_fault('residual', policy, 0, FileSizeLimit(20_000), SpillError)
    assert 'files of this process may have 20000 bytes: raise that limit (ulimit -f)' in str(error)


@pytest.mark.host
@pytest.mark.parametrize('policy', ['pooch', 'auto', 'sublinear'])
def test_a_training_that_needs_no_disk_goes_on_where_that_is_full(policy, caplog):
    """A recorded iteration swaps out by itself; what it cannot stays, since there is memory."""
    training = Training('residual')
    with Patched(os, 'posix_fallocate', no_space), ooc(policy, log='INFO'):
        training.iterate(4)
        assert chainer_ooc.stats().phase == 'run' and chainer_ooc.stats().swapped_out_bytes == 0
    assert_same_bits(training.finish(), plain('residual'))
    assert 'stays in memory: [Errno 28] growing the spill file' in caplog.text


@pytest.mark.host
@pytest.mark.parametrize('failure', [end_of_file, input_output_error])
@pytest.mark.parametrize('at', [0, 1, 2])
@pytest.mark.parametrize('policy', SWAPPING)
@pytest.mark.usefixtures('prompt_swap_outs')
def test_short_or_failed_read_in_a_swap_in(policy, at, failure):
    error = train_with_a_fault('residual', policy, at, Patched(os, 'preadv', failure, after=1), SpillError)
    assert error.errno == errno.EIO
    for part in ('reading from the spill file', 'needed', 'still whole', 'ooc_spill_dir'):
        assert part in str(error)


def half_a_read(original, descriptor, buffers, offset):
    return original(descriptor, [buffers[0][:max(1, len(buffers[0]) // 2)]], offset)


def half_a_write(original, descriptor, buffers, offset):
    return original(descriptor, [buffers[0][:max(1, len(buffers[0]) // 2)]], offset)


@pytest.mark.host
@pytest.mark.parametrize('policy', SWAPPING)
def test_reads_and_writes_that_move_a_part_are_gone_on_with(policy):
    training = Training('residual')
    with Patched(os, 'preadv', half_a_read), Patched(os, 'pwritev', half_a_write), ooc(policy):
        training.iterate(4)
    assert_same_bits(training.finish(), plain('residual'))


@pytest.mark.host
@pytest.mark.parametrize('policy', SWAPPING)
def test_maps_can_be_read_again_after_a_failed_read(policy):
    x = chainer.Variable(np.arange(3000, dtype=np.float32))
    with ooc(policy):
        kept = [x * 2]
        for _ in range(6):
            kept.append(kept[-1] * F.sigmoid(kept[-1]))
        time.sleep(0.1)
        F.identity(kept[-1])
        away = [each for each in kept if list.__getitem__(each._data, 0) is None]
        assert away
        expected = kept[0].array + 0
        with Patched(os, 'preadv', input_output_error):
            for each in away[1:]:
                with pytest.raises(SpillError):
                    each.array.sum()
                with pytest.raises(SpillError):
                    each.array.sum()
        for before, after in itertools.pairwise(kept):
            expected = before.array
            assert np.array_equal(after.array, expected * F.sigmoid(expected).array)


class Breaks(chainer.FunctionNode):
    """The identity, until told otherwise."""

    forward_error = backward_error = None

    def forward(self, inputs):
        self.retain_inputs((0,))
        if Breaks.forward_error is not None:
            raise Breaks.forward_error
        return inputs[0] * 1,

    def backward(self, indexes, grads):
        if Breaks.backward_error is not None:
            raise Breaks.backward_error
        return grads[0] * 1,


class Raising:
    """Makes `Breaks` raise; `residual` passes through it by a patched relu."""

    def __init__(self, **errors):
        self.errors = errors

    def __enter__(self):
        for name, error in self.errors.items():
            setattr(Breaks, name, error)

    def __exit__(self, *error):
        Breaks.forward_error = Breaks.backward_error = None


@pytest.fixture
def fragile(monkeypatch):
    """Adds `Breaks` after the second sum of 'residual'; plain Chainer's bits are not changed by an identity."""
    relu, calls = F.relu, [0]

    def fragile_relu(x):
        calls[0] += 1
        return Breaks().apply((relu(x),))[0] if calls[0] % 3 == 2 else relu(x)

    monkeypatch.setattr(F, 'relu', fragile_relu)
    return calls


@pytest.mark.parametrize('error', [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize('where', ['forward_error', 'backward_error'])
@pytest.mark.parametrize('at', [0, 2])
@pytest.mark.parametrize('policy', POLICIES)
def test_exception_in_a_function_passes_and_leaves_nothing(policy, at, where, error, fragile):
    class Breaking(Raising):
        def __enter__(self):
            super().__enter__()

        def __exit__(self, *failure):
            super().__exit__(*failure)
            fragile[0] = 0

    train_with_a_fault('residual', policy, at, Breaking(**{where: error('injected')}), error)


@pytest.mark.parametrize('error', [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize('where', ['forward_error', 'backward_error'])
@pytest.mark.parametrize('policy', POLICIES)
def test_exception_ends_the_recording_at_once(policy, where, error, fragile):
    training = Training('residual')
    fragile[0] = 0
    with ooc(policy):
        with Raising(**{where: error('injected')}), pytest.raises(error):
            training.forward().backward()
        assert not tracemalloc.is_tracing()
        assert chainer_ooc.stats() is None


def fail_with(loss):
    """What a program of the user's does with a loss before backward."""
    raise ZeroDivisionError


@pytest.mark.parametrize('policy', POLICIES)
def test_exception_between_forward_and_backward(policy):
    training = Training('hidden')
    with ooc(policy):
        for _ in range(4):
            saved = Saved(training)
            with pytest.raises(ZeroDivisionError):
                fail_with(training.forward())
            saved.restore(training)
            training.iterate()
    assert_same_bits(training.finish(), plain('hidden'))


@pytest.mark.parametrize('at', [0, 2])
@pytest.mark.parametrize('after', [0, 5])
@pytest.mark.parametrize('policy', SWAPPING)
def test_keyboard_interrupt_in_the_wait_for_a_swap(policy, after, at, transfer_class):
    train_with_a_fault(
        'residual', policy, at, Patched(transfer_class, 'wait', interrupt_main, after=after), KeyboardInterrupt)


def interrupt_main(original, *args):
    if threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt
    return original(*args)


@pytest.mark.parametrize('at', [0, 2])
@pytest.mark.parametrize('name', ['swap_out', 'swap_in'])
@pytest.mark.parametrize('failure', [interrupt, interrupted_after])
@pytest.mark.parametrize('policy', SWAPPING)
@pytest.mark.usefixtures('prompt_swap_outs')
def test_keyboard_interrupt_as_a_swap_starts(policy, failure, name, at, backend_class):
    train_with_a_fault(
        'residual', policy, at, Patched(backend_class, name, failure, after=2), KeyboardInterrupt)


def interrupted(seconds, program):
    """Runs a program with a KeyboardInterrupt from a signal after so many seconds; tells whether it got through."""
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            program()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt as error:
        traceback.clear_frames(error.__traceback__)
        return True
    return False


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # it may hit a __del__, as always
@pytest.mark.parametrize('policy', SWAPPING)
def test_keyboard_interrupts_at_any_moment(policy):
    """Iterations are broken off wherever a signal finds them; those between have the bits of plain Chainer."""
    def raise_it(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raise_it)
    training, random, hits = Training('residual'), np.random.RandomState(1), 0
    try:
        with ooc(policy):
            for _ in range(4):
                saved = Saved(training)
                for _ in range(8):
                    hits += interrupted(random.uniform(0.0003, 0.012), lambda: training.forward().backward())
                    saved.restore(training)
                training.iterate()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert_same_bits(training.finish(), plain('residual'))
    assert hits > 3
    chainer_ooc.reset()
    assert nothing_left() == ([], 0, [])


def out_of_memory(original, *args):
    raise MemoryError('injected: no near memory')


@pytest.mark.parametrize('at', [0, 1, 2])
@pytest.mark.parametrize('policy', SWAPPING)
@pytest.mark.usefixtures('prompt_swap_outs')
def test_no_near_memory_for_a_swap_in(policy, at, backend_class):
    train_with_a_fault('residual', policy, at, Patched(backend_class, 'allocate', out_of_memory, after=1), MemoryError)


@pytest.mark.parametrize('policy', SWAPPING)
def test_near_memory_that_is_refused_once_costs_time_only(policy, backend_class):
    training = Training('residual')
    with ooc(policy):
        training.iterate()
        with Patched(backend_class, 'allocate', out_of_memory, after=1, times=1):
            training.iterate(2)
        training.iterate()
    assert_same_bits(training.finish(), plain('residual'))


@pytest.mark.host
@pytest.mark.parametrize('policy', POLICIES)
def test_folder_in_which_no_file_can_be_made(policy, tmp_path):
    """A folder that was there when the entry was set, and is gone when the first map leaves."""
    folder = tmp_path / 'spill'
    folder.mkdir()
    training = Training('residual')
    with ooc(policy, spill_dir=str(folder)):
        folder.rmdir()
        saved = Saved(training)
        if policy == 'keep':  # needs no file; either is right
            try:
                training.iterate()
            except (SpillError, ConfigError):
                saved.restore(training)
        else:
            with pytest.raises((SpillError, ConfigError)) as failed:
                training.iterate()
            assert str(folder) in str(failed.value) and 'ooc_spill_dir' in str(failed.value)
            saved.restore(training)
        folder.mkdir()
        training = Training('residual')
        training.iterate(4)
        assert os.listdir(folder) == []
    assert_same_bits(training.finish(), plain('residual'))


def test_folder_that_may_not_be_written_to(monkeypatch, tmp_path):
    monkeypatch.setattr(os, 'access', lambda *args, **kwargs: False)  # root may write anywhere
    with pytest.raises(ConfigError, match='cannot be written to'):
        chainer.config.ooc_spill_dir = str(tmp_path)


@pytest.mark.host
def test_folder_that_refuses_files(tmp_path):
    """/proc lets root pass os.access and then makes no file."""
    training = Training('residual')
    refused = pytest.raises(SpillError, match=r"cannot make a spill file in '/proc'.*ooc_spill_dir")
    with ooc('swap-all', spill_dir='/proc'), refused:
        training.iterate()
    with ooc('swap-all', spill_dir=str(tmp_path)):
        training = Training('residual')
        training.iterate(4)
    assert_same_bits(training.finish(), plain('residual'))


@pytest.mark.host
def test_nothing_shows_in_the_spill_folder_and_the_file_is_private(tmp_path):
    training = Training('residual')
    with ooc('swap-all', spill_dir=str(tmp_path)):
        training.iterate(2)
        assert os.listdir(tmp_path) == []
        modes = [os.fstat(number).st_mode & 0o777 for number in descriptors_in(tmp_path)]
    assert modes == [0o600]


def descriptors_in(folder):
    found = []
    for number in os.listdir('/proc/self/fd'):
        try:
            if os.readlink(f'/proc/self/fd/{number}').startswith(str(folder)):
                found.append(int(number))
        except OSError:  # the descriptor of listdir itself
            continue
    return found


@pytest.mark.host
@pytest.mark.parametrize('policy', SWAPPING)
def test_reset_works_when_the_disk_does_not(policy):
    """A failed read in reset is told, and reset can be repeated."""
    x = chainer.Variable(np.arange(5000, dtype=np.float32))
    with ooc(policy):
        kept = [F.exp(x * 1e-4)]
        for _ in range(4):
            kept.append(F.tanh(kept[-1]))
        time.sleep(0.05)
        F.identity(kept[-1])
        with Patched(os, 'preadv', input_output_error), pytest.raises(SpillError):
            chainer_ooc.reset()
        chainer_ooc.reset()
    assert nothing_left() == ([], 0, [])
    for before, after in itertools.pairwise(kept):
        assert np.array_equal(after.array, np.tanh(before.array))


@pytest.mark.host
@pytest.mark.parametrize('after', ['the new settings', 'the old settings'])
def test_a_session_that_cannot_be_closed_for_other_settings_is_closed_when_it_can(after, tmp_path, monkeypatch):
    training, close = Training('hidden'), HostBackend.close
    with ooc('swap-all'):
        training.iterate()

    def fails(backend):
        monkeypatch.setattr(HostBackend, 'close', close)
        backend._store.stop()
        raise SpillError(errno.EIO, 'planted')
    monkeypatch.setattr(HostBackend, 'close', fails)
    saved = Saved(training)
    with ooc('swap-all', spill_dir=str(tmp_path)), pytest.raises(SpillError, match='planted'):
        training.iterate()
    saved.restore(training)
    with ooc('swap-all', spill_dir=str(tmp_path) if after == 'the new settings' else None):
        training.iterate()
    chainer_ooc.reset()
    assert nothing_left() == ([], 0, [])


@pytest.mark.host
@pytest.mark.parametrize('thread', ['chainer_ooc-swap-out', 'chainer_ooc-swap-in'])
def test_an_interrupt_as_threads_start_early_leaves_none(thread, monkeypatch):
    """Behind a limit they start with the session, which is known before."""
    start, interrupts = SwapThread.start, iter([KeyboardInterrupt])

    def interrupted_start(self):
        start(self)
        if self._name == thread:
            for each in interrupts:
                raise each
    monkeypatch.setattr(limits, 'is_limited', lambda: True)
    monkeypatch.setattr(SwapThread, 'start', interrupted_start)
    chainer_ooc.reset()
    with ooc('swap-all'):
        with pytest.raises(KeyboardInterrupt):
            Training('hidden').iterate()
        Training('hidden').iterate(2)
    chainer_ooc.reset()
    assert nothing_left() == ([], 0, [])
