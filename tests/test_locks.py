"""Locks are free again, whenever an interrupt has come."""
import contextlib
import signal
import threading

from chainer_ooc.backends.spill import swap_thread
from chainer_ooc.execute.other_threads import other_threads
from chainer_ooc.locks import make_lock

INTERRUPTS = 4000


def left_taken(lock, is_taken, within=lambda: None):
    """How many interrupts of so many, at moments that differ, leave a lock taken."""
    def interrupt(number, frame):
        raise KeyboardInterrupt

    def take_again_and_again():
        while True:
            with lock:
                within()

    count, before = 0, signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(INTERRUPTS):
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-5 + number % 50 * 1e-6)
                take_again_and_again()
            except KeyboardInterrupt:
                pass
            if is_taken():
                count += 1
                while is_taken():
                    lock.release()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return count


def is_owned(lock):
    return lock._is_owned


def test_a_lock_is_free_after_an_interrupt():
    lock = make_lock()
    assert left_taken(lock, is_owned(lock)) == 0


def test_one_that_was_taken_within_itself_is_free_too():
    lock = make_lock()

    def again():
        with lock:
            pass

    assert left_taken(lock, is_owned(lock), again) == 0


def test_around_a_condition_it_would_stay_taken():
    """Seen to fail, in each release of Python: why `with` goes around the lock that a condition is made of."""
    lock = make_lock()
    assert left_taken(threading.Condition(lock), is_owned(lock)) > 0


def test_a_lock_can_be_taken_again_by_its_thread_alone():
    lock, found = make_lock(), []
    with lock, lock:
        other = threading.Thread(target=lambda: found.append(lock.acquire(blocking=False)))
        other.start()
        other.join()
    assert found == [False]
    assert not lock._is_owned()


def test_who_waits_for_a_condition_made_of_it_is_told():
    lock, found = make_lock(), []
    condition = threading.Condition(lock)

    def wait():
        with lock:
            found.append(condition.wait_for(lambda: bool(found), 10))

    waiter = threading.Thread(target=wait)
    waiter.start()
    with lock:
        found.append('told')
        condition.notify_all()
    waiter.join(10)
    assert found == ['told', True]


def test_a_child_has_it_free():
    lock = make_lock()
    with lock:
        lock._at_fork_reinit()
        assert not lock._is_owned()
        lock.acquire()


@contextlib.contextmanager
def the_lock_of_all_threads_taken():
    """By another thread, as an interrupt can leave it taken on Python 3.14; nothing within may wait for it."""
    taken, is_over = threading.Event(), threading.Event()
    waited_for = []

    def hold():
        with threading._active_limbo_lock:
            taken.set()
            if not is_over.wait(20):
                waited_for.append('the lock that each thread of Python begins and ends with')

    holder = threading.Thread(target=hold)
    holder.start()
    assert taken.wait(20)
    try:
        yield
    finally:
        is_over.set()
        holder.join()
    assert waited_for == []


def test_other_threads_are_found_without_the_lock_that_an_interrupt_may_leave_taken():
    with the_lock_of_all_threads_taken():
        assert threading.main_thread() not in other_threads()
        assert len(other_threads()) == 1


def test_a_thread_that_copies_is_stopped_where_python_does_not_let_it_end(monkeypatch):
    monkeypatch.setattr(swap_thread, 'LONGEST_END_SECONDS', 0.1)
    thread, done = swap_thread.SwapThread('chainer_ooc-test', swap_thread.STACK_BYTES), []
    thread.submit(lambda: done.append(1))
    with the_lock_of_all_threads_taken():
        thread.stop()
        assert done == [1]
