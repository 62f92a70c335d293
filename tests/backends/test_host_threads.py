"""The host backend's threads under signals, interrupts and forks."""
import contextlib
import os
import random
import signal
import threading
import time

import numpy as np
import pytest

from chainer_ooc.backends.host import limits
from chainer_ooc.backends.host.backend import HostBackend
from chainer_ooc.backends.spill import swap_thread
from chainer_ooc.errors import SpillError

MB = 1 << 20


@pytest.fixture(autouse=True)
def interrupts_raise():
    """Also in a process that was started in the background, which ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


def test_the_threads_are_named_daemons_that_start_with_the_first_transfer(backend):
    def ours():
        return {thread.name: thread.daemon for thread in threading.enumerate() if 'chainer_ooc' in thread.name}

    assert ours() == {}
    copy = out(backend, numbers(MB))
    assert ours() == {'chainer_ooc-swap-out': True}
    back(backend, copy)
    assert ours() == {'chainer_ooc-swap-out': True, 'chainer_ooc-swap-in': True}
    backend.close()
    assert ours() == {}


def test_behind_a_limit_the_threads_start_while_there_is_memory_for_them(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, 'is_limited', lambda: True)
    backend = HostBackend(str(tmp_path))
    try:
        assert not [each for each in threading.enumerate() if 'chainer_ooc' in each.name]
        backend.begin()
        assert [each.is_alive() for each in threading.enumerate() if 'chainer_ooc' in each.name] == [True, True]
    finally:
        backend.close()


def test_a_thread_that_never_begins_is_waited_for_a_while_and_no_longer(backend, monkeypatch):
    """It dies for want of memory before its first line, and ``Thread.start`` waits: the training hung for ever."""
    given_up = threading.Event()

    def start(thread):
        given_up.wait()
        raise RuntimeError('it never began')

    monkeypatch.setattr(swap_thread, 'LONGEST_START_SECONDS', 0.2)
    array = numbers(MB)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, 'start', start)
            for _ in range(2):
                with pytest.raises(SpillError, match="'chainer_ooc-swap-out': it did not begin"):
                    backend.swap_out(array)
            backend.close()  # and is not waited for either
    finally:
        given_up.set()


@pytest.mark.parametrize('where', ['of the thread', 'of the copy'])
def test_no_memory_in_a_thread_is_an_error_and_no_hang(backend, monkeypatch, where):
    def refuse(*_, **__):
        raise MemoryError

    array = numbers(MB)
    with monkeypatch.context() as patch:
        if where == 'of the thread':
            patch.setattr(threading, 'Thread', refuse)
            with pytest.raises(SpillError, match=r"cannot start the thread .+: MemoryError; raise the limit"):
                backend.swap_out(array)
        else:
            patch.setattr(backend._store._extents, 'place', refuse)
            copy, transfer = backend.swap_out(array)
            with pytest.raises(SpillError, match='no memory for a copy in the thread'):
                transfer.wait()
            backend.release(copy)
    assert np.array_equal(back(backend, out(backend, array)), array)


def test_the_threads_have_small_stacks_and_others_keep_theirs(backend, monkeypatch):
    sizes = []
    start = threading.Thread.start

    def note(thread):
        sizes.append(threading.stack_size())
        start(thread)

    monkeypatch.setattr(threading.Thread, 'start', note)
    before = threading.stack_size()
    out(backend, numbers(MB))
    assert sizes == [swap_thread.STACK_BYTES]
    assert threading.stack_size() == before


def test_the_two_directions_run_beside_each_other(backend, gate):
    gate.set()
    copy = out(backend, numbers(MB))
    gate.clear()
    other, held_back = backend.swap_out(numbers(MB))
    assert back(backend, copy).any()
    assert not held_back.done
    gate.set()
    held_back.wait()
    backend.release(other)


def interrupt_soon():
    timer = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    return timer


def test_an_interrupted_wait_may_be_repeated(backend, gate):
    array = numbers(MB)
    copy, transfer = backend.swap_out(array)
    for _ in range(2):
        timer = interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            transfer.wait()
        timer.join()
        assert not transfer.done
    gate.set()
    transfer.wait()
    assert np.array_equal(back(backend, copy), array)


class TakenForEver:
    """A lock that another waiter took and, interrupted between two instructions, never gave back."""

    def acquire(self, timeout=-1):
        assert timeout > 0, 'this would wait for ever'
        time.sleep(timeout)
        return False

    def release(self):
        pass


def test_a_waiter_that_was_interrupted_with_the_gate_in_hand_blocks_nobody(backend, gate):
    copy, transfer = backend.swap_out(numbers(MB))
    transfer._gate = TakenForEver()
    threading.Timer(0.1, gate.set).start()
    transfer.wait()
    backend.release(copy)


def test_an_interrupted_close_may_be_repeated(backend, gate):
    copy, transfer = backend.swap_out(numbers(MB))
    timer = interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        backend.close()
    timer.join()
    with pytest.raises(SpillError, match='closed'):
        backend.swap_out(numbers(8))
    opener = threading.Timer(0.2, gate.set)
    opener.start()
    backend.close()
    assert transfer.done
    opener.join()
    backend.release(copy)


@contextlib.contextmanager
def signals(handler):
    """Sends the main thread a signal every millisecond or less."""
    quiet = threading.Event()
    main, random_numbers = threading.main_thread().ident, random.Random(1)

    def send():
        while not quiet.wait(random_numbers.uniform(1e-5, 1e-3)):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        quiet.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize('moment', ['before', 'after'])
def test_an_interrupt_while_a_thread_starts_leaves_it_in_order(backend, monkeypatch, moment):
    start = threading.Thread.start

    def interrupted_start(thread):
        if moment == 'after':
            start(thread)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.01)
        if moment == 'before':
            start(thread)

    array = numbers(MB)
    for _ in range(2):  # each direction's thread
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, 'start', interrupted_start)
            with pytest.raises(KeyboardInterrupt):
                back(backend, out(backend, array))
    assert np.array_equal(back(backend, out(backend, array)), array)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_signals_do_not_disturb_the_copies(backend):
    caught = []
    with signals(lambda *_: caught.append(1)):
        for seed in range(3):
            array = numbers(30 * MB, seed)
            assert np.array_equal(back(backend, out(backend, array)), array)
    assert caught


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # an interrupt within a __del__
def test_interrupts_at_any_moment_lose_nothing(backend):
    armed, interrupts, held = [False], 0, []
    random_numbers = random.Random(0)

    def interrupt(*_):
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    until = time.monotonic() + 1
    with signals(interrupt):
        while time.monotonic() < until:
            while len(held) > 10:
                backend.release(held.pop(random_numbers.randrange(10))[0])
            try:
                armed[0] = True
                _swap_and_check(backend, held, random_numbers)
                armed[0] = False
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts
    assert all((back(backend, copy) == value).all() for copy, value in held)
    assert backend.describe()['spill_file_bytes'] <= 40 * MB  # 10 copies of up to 1 MB and gaps; a leak: hundreds
    assert backend._store._asked_bytes <= backend._store._answered_bytes


def _swap_and_check(backend, held, random_numbers):
    value = random_numbers.randrange(256)
    array = np.full(random_numbers.randrange(1, MB), value, np.uint8)
    held.append((backend.swap_out(array)[0], value))
    copy, value = random_numbers.choice(held)
    assert (back(backend, copy) == value).all()


def test_a_forked_child_holds_no_descriptor_of_the_file(backend):
    out(backend, numbers(MB))
    descriptor = backend._file._descriptor
    child = os.fork()
    if not child:
        try:
            os.fstat(descriptor)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.fstat(descriptor).st_nlink == 0
