"""Arrays that the system refuses, behind a limit of it: who makes room, what serves them, and what stays for others."""
import os

import pytest

from chainer_ooc.backends.host import arena
from support.pool_programs import check

pytestmark = [
    pytest.mark.usefixtures('no_gap'), pytest.mark.skipif(arena.available() is not None, reason=str(arena.available()))]


@pytest.mark.parametrize('make', ['np.full(8 * MB, 5, np.uint8)', 'np.zeros(8 * MB, np.uint8) + np.uint8(5)',
                                  'grown(np.full(6 * MB, 5, np.uint8))'])
def test_who_is_asked_makes_room_until_it_is_enough(make):
    check(f'''
    def grown(array):
        array.resize(8 * MB, refcheck=False)  # Python 3.10: the caller has it too
        array[6 * MB:] = 5
        return array

    limit(40 * MB)
    held = [np.ones(MB, np.uint8) for _ in range(38)]
    asked = []
    def make_room(nbytes):
        asked.append(nbytes)
        del held[0]
        return True
    pool.ask(make_room)
    array = {make}
    assert array.min() == 5 == array.max() and array.size == 8 * MB
    assert 1 < len(asked) <= 20 and set(asked) <= {{6 * MB, 8 * MB}}, asked
    assert held and all(each.min() == 1 == each.max() for each in held)
    ''')


def test_it_is_not_asked_again_when_it_has_made_none_and_nobody_is_asked_after_it():
    check('''
    limit(20 * MB)
    asked = []
    def make_room(nbytes):
        asked.append(nbytes)
        return len(asked) < 3
    def fails(nbytes):
        try:
            np.empty(nbytes, np.uint8)
        except MemoryError:
            return True
    pool.ask(make_room)
    assert fails(64 * MB) and asked == [64 * MB] * 3
    pool.ask(None)
    assert fails(64 * MB) and len(asked) == 3
    pool.ask(make_room)
    pool.close()
    pool.begin()
    assert fails(64 * MB) and len(asked) == 3
    ''')


def test_who_asked_before_is_asked_again_when_the_last_has_closed():
    check('''
    from chainer_ooc.backends.host import HostBackend, limits
    training, profile, asked, limited = HostBackend(), HostBackend(), [], []
    Arena.set_limited = lambda self, yes, offers: limited.append(yes and not offers)
    limit(40 * MB)
    assert limits.is_limited()
    for each, name in (training, 'training'), (profile, 'profile'):
        each.limit(20 * MB, lambda nbytes, name=name: bool(asked.append(name)))
    for each in profile, training, pool:
        try:
            np.empty(64 * MB, np.uint8)
        except MemoryError:
            each.limit(None, bool) if each is not pool else each.close()
    assert (asked, limited) == (['profile', 'training'], [True, True, True, False]), (asked, limited)
    training.close()
    profile.close()
    ''')


def test_what_it_allocates_itself_and_what_training_asks_for_fail_at_once():
    check('''
    limit(20 * MB)
    asked, failed = [], []
    def make_room(nbytes):
        asked.append(nbytes)
        for make in (lambda: np.empty(50 * MB, np.uint8), lambda: pool.allocate(50 * MB)):
            try:
                make()
            except MemoryError:
                failed.append(nbytes)
        return False
    pool.ask(make_room)
    for make in (lambda: pool.allocate(64 * MB), lambda: np.empty(64 * MB, np.uint8)):
        try:
            make()
        except MemoryError:
            failed.append(0)
    assert asked == [64 * MB] and failed == [0, 64 * MB, 64 * MB, 0], (asked, failed)
    ''')


def test_what_it_raises_in_another_thread_is_raised_when_the_computation_ends():
    """No exception can pass through NumPy, whose array fails; it must not be lost."""
    check('''
    import os
    import threading
    import time
    limit(20 * MB)
    def make_room(nbytes):
        raise KeyError('now')
    guard, ended = Guard(Headroom(list)), []
    def compute():
        other = Arena()
        other.begin()
        other.ask(make_room)
        for _ in range(2):
            try:
                with guard:
                    try:
                        np.empty(64 * MB, np.uint8)
                    except MemoryError:
                        caught = True  # as a function may
            except KeyError as error:
                ended.append((error.args, caught))
            with guard:
                pass  # and it is raised once
        try:
            np.empty(64 * MB, np.uint8)  # no computation comes after it
        except MemoryError:
            other.close()
    def compute_only():
        with guard:
            ended.append(None)
    def number_of_one_that(computes):
        thread = threading.Thread(target=computes)
        thread.start()
        thread.join()
        while os.path.exists(f'/proc/self/task/{thread.native_id}'):
            time.sleep(.001)
        return thread.ident
    number = number_of_one_that(compute)
    assert any(number == number_of_one_that(compute_only) for _ in range(100))  # with the same number, and no error
    assert ended[:3] == [(('now',), True)] * 2 + [None] and not any(ended[2:]), ended
    ''')


def test_what_it_raises_between_computations_is_raised_at_once():
    check('''
    limit(20 * MB)
    asked = []
    def make_room(nbytes):
        asked.append(nbytes)
        raise TimeoutError('now')
    pool.ask(make_room)
    try:
        try:
            np.empty(64 * MB, np.uint8)
        except MemoryError:
            for _ in range(3):
                pass
        raise AssertionError('it waits')
    except TimeoutError as error:
        assert error.args == ('now',) and error.__traceback__.tb_next
    assert asked == [64 * MB] and not arena.PENDING
    ''')


def test_what_a_handler_of_signals_raises_as_it_is_asked_is_not_lost():
    """Python handles a signal that came within a function of C when it runs code again: who makes room is such code."""
    check('''
    import signal
    from functools import partial
    limit(20 * MB)
    def alarm(number, frame):
        raise TimeoutError('alarm')
    signal.signal(signal.SIGALRM, alarm)
    pool.ask(lambda nbytes: False)
    in_one = [partial(ctypes.CDLL(None)['raise'], signal.SIGALRM), partial(np.empty, 64 * MB, np.uint8)]
    for guard in contextlib.nullcontext(), Guard(Headroom(list)):
        try:
            with guard:
                try:
                    list(map(partial.__call__, in_one))
                except MemoryError:
                    for _ in range(3):
                        pass
            raise AssertionError('it is lost')
        except TimeoutError as error:
            assert error.args == ('alarm',)
    assert not arena.PENDING
    ''')


def test_other_threads_ask_nobody():
    check('''
    import threading
    limit(20 * MB)
    asked, failed = [], []
    pool.ask(lambda nbytes: asked.append(nbytes))
    def compute():
        other = Arena()
        other.begin()
        try:
            np.empty(64 * MB, np.uint8)
        except MemoryError:
            failed.append(True)
        other.close()
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert not asked and failed == [True]
    ''')


def test_behind_a_limit_what_the_heap_holds_free_serves_arrays():
    """Such as the gradients that a model was built with: the limit counts them, in use or not."""
    check('''
    from chainer_ooc.backends.host.arena import _handlers
    if heap.free_bytes() == 0:
        raise SystemExit  # a C library that does not tell
    heap.return_freed_memory()
    _handlers().set_default(None)
    before = [np.ones(3 * MB, np.uint8) for _ in range(20)]
    pool.begin()
    fresh = _library().arena_fresh_bytes()
    del before[::2]
    pool.set_limited(True, offers=False)
    limit(12 * MB)
    arrays = [np.full(3 * MB, 7, np.uint8) for _ in range(10)]
    assert _library().arena_fresh_bytes() == fresh
    assert all(each.min() == 1 == each.max() for each in before)
    more = [np.full(3 * MB, 8, np.uint8) for _ in range(2)]
    assert _library().arena_fresh_bytes() > fresh
    assert all(each.min() == 7 == each.max() for each in arrays)
    del arrays, before
    pool.set_limited(False, offers=False)
    more += [np.full(MB, 8, np.uint8)]
    assert all(each.min() == 8 == each.max() for each in more)
    ''')


def test_behind_a_limit_arrays_leave_something_for_what_is_no_array():
    """OpenBLAS ends the process where it gets none."""
    check('''
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    pool.set_limited(True, offers=False)
    limit(40 * MB)
    arrays = []
    for nbytes in (8 * MB, MB, MB // 2, MB // 3):
        try:
            while True:
                arrays.append(np.ones(nbytes, np.uint8))
        except MemoryError:
            pass
    assert len(arrays) > 4
    assert libc.malloc(2 * MB) and libc.malloc(MB)
    ''')


@pytest.mark.parametrize('make', [
    'bytes(16 * MB)', 'b"12345678" * (2 * MB)', 'grown()', '[bytes(3000) for _ in range(5000)]',
    'zlib.compress(random.randbytes(12 * MB), 0)', 'io.BytesIO().write(bytes(8 * MB))'])
def test_behind_a_limit_kept_pages_give_way_to_objects_of_python(make):
    """Such as the bytes that a snapshot is written from; plain Chainer, which keeps nothing, has room for them."""
    check(f'''
    import io
    import random
    import zlib
    def grown():
        text = bytearray()
        for _ in range(16):
            text.extend(bytes(MB))
        return text
    pool.set_limited(True, offers=False)
    large = np.ones(40 * MB, np.uint8)
    limit(4 * MB)
    del large
    assert pool.nbytes() >= 40 * MB
    assert {make}
    assert pool.nbytes() == 0
    assert np.ones(12 * MB, np.uint8).min() == 1
    ''')


def test_kept_pages_give_way_whoever_traces_pythons_objects_before_and_after():
    """Such as tracemalloc, which sets allocators of its own, and then those that it has found."""
    check('''
    import tracemalloc
    def gives_way():
        pool.set_limited(True, offers=False)
        large = np.ones(40 * MB, np.uint8)
        heap.trim()  # what was made before
        free = data_bytes() + 4 * MB
        resource.setrlimit(resource.RLIMIT_DATA, (free, resource.RLIM_INFINITY))
        del large
        made = pool.nbytes() >= 40 * MB and bytes(16 * MB)
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
        return made and pool.nbytes() == 0
    tracemalloc.start()
    assert gives_way()
    tracemalloc.stop()
    assert gives_way()
    for _ in range(40):
        tracemalloc.start()
        assert gives_way()
        tracemalloc.stop()
    assert gives_way()
    ''')


def test_behind_a_limit_nothing_is_kept_between_iterations():
    """C libraries, child processes and small objects ask nobody, and have there what plain Chainer leaves them."""
    check('''
    from chainer_ooc.backends.host import HostBackend
    training, other = HostBackend(), HostBackend()
    limit(300 * MB)
    for each in training, other:
        each.begin()
    def kept():
        large = np.ones(40 * MB, np.uint8)
        del large
        return pool.nbytes()
    pool.close()
    training.limit(20 * MB, lambda nbytes: False)
    assert kept() >= 40 * MB
    training.rest()
    assert kept() >= 40 * MB  # the other's iteration goes on
    other.limit(20 * MB, lambda nbytes: False)
    other.rest()
    assert pool.nbytes() == 0 == kept()
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    assert libc.malloc(120 * MB)
    other.limit(20 * MB, lambda nbytes: False)
    assert np.ones(20 * MB, np.uint8).any() and pool.nbytes() == 20 * MB
    for each in training, other:
        each.close()
    ''')


@pytest.mark.parametrize('read', ["np.fromstring('1 ' * 3_000_000, sep=' ')", "np.fromfile(name, sep=' ')"])
@pytest.mark.parametrize('room', [8, 80])
def test_what_numpy_reads_from_text_without_pythons_lock_is_made_or_refused(read, room, tmp_path):
    (tmp_path / 'numbers').write_text('1 ' * 3_000_000)
    check(f'''
    name = {str(tmp_path / 'numbers')!r}
    pool.set_limited(True, offers=False)
    asked = []
    def make_room(nbytes):
        asked.append(nbytes)
        return len(asked) < 3
    pool.ask(make_room)
    limit({room} * MB)
    kept = np.ones(2 * MB, np.uint8)
    del kept
    try:
        array = {read}
    except MemoryError:
        assert {room} == 8 and len(asked) == 3
    else:
        assert {room} == 80 and not asked and array.size == 3_000_000 and (array == 1).all()
    ''')


def test_pages_give_way_however_often_the_program_begins_and_ends_to_trace():
    check('''
    import tracemalloc
    pool.ask(lambda nbytes: False)
    limit(120 * MB)
    for _ in range(12):
        tracemalloc.start()
        pool.set_limited(True, offers=False)  # as training begins: above the tracer, and gone with it
        kept = np.empty(90 * MB, np.uint8)
        del kept
        assert len(bytes(100 * MB)) == 100 * MB
        tracemalloc.stop()
    ''')


@pytest.mark.parametrize('malloc', ['pymalloc', 'pymalloc_debug'])
def test_arrays_that_outlive_pythons_modules_are_freed(malloc):
    assert check('''
    import os
    import sys
    class Late:
        def __init__(self):
            self.zeros, self.write = np.zeros, os.write
        def __del__(self):
            array = self.zeros(1 << 20, 'B')
            self.write(1, b'made')
            del array
            self.write(1, b' and freed')
    sys.late = Late()
    ''', env={**os.environ, 'PYTHONMALLOC': malloc}) == 'made and freed'


def test_without_a_limit_pages_stay_between_iterations():
    check('''
    from chainer_ooc.backends.host import HostBackend
    training = HostBackend()
    training.begin()
    training.limit(20 * MB, lambda nbytes: False)
    large = np.ones(40 * MB, np.uint8)
    del large
    training.rest()
    assert pool.nbytes() >= 40 * MB
    training.close()
    ''')


def test_pages_that_are_kept_serve_small_arrays_too():
    check('''
    limit(60 * MB)
    large = np.ones(56 * MB, np.uint8)
    del large
    assert pool.nbytes() == 56 * MB
    small = [np.ones(200 << 10, np.uint8) for _ in range(200)]
    assert all(each.min() == 1 for each in small)
    ''')


class Interrupting(set):
    """Threads that an interrupt comes behind, as Python looks for signals when a function of C is over."""

    def add(self, thread):
        super().add(thread)
        raise KeyboardInterrupt


def test_an_interrupt_as_an_array_is_made_leaves_no_thread_alone(monkeypatch):
    """Nobody made room for the thread's arrays any more, for ever."""
    alone = Interrupting()
    monkeypatch.setattr(arena, '_alone', alone)
    with pytest.raises(KeyboardInterrupt):
        arena.Arena().allocate(1 << 20)
    assert not alone
