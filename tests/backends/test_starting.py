"""Threads that are started by another thread: no interrupt, and no lack of memory, leaves one behind or hangs."""
import _thread
import threading
import time

import pytest

from chainer_ooc.backends.spill import starting, transfer
from chainer_ooc.backends.spill.starting import start_beside
from support.interrupting import interrupted_at

STACK_BYTES = 256 << 10


@pytest.fixture(autouse=True)
def stacks_as_before():
    """An interrupt before the very last step leaves them small."""
    before = threading.stack_size()
    yield
    threading.stack_size(before)


def test_an_interrupt_before_any_step_leaves_no_thread_behind():
    """Within ``threading.Event`` one leaves its lock taken, for which the other thread would wait for ever."""
    files = {module.__file__ for module in (starting, transfer, threading)}
    before, number = _thread._count(), 0
    while interrupted_at(number := number + 1, lambda: start_beside(lambda: time.sleep(0.002), STACK_BYTES, 5.0),
                         is_traced=lambda code: code.co_filename in files):
        until = time.monotonic() + 5
        while _thread._count() > before:
            assert time.monotonic() < until, f'the other thread has not ended after an interrupt at step {number}'
            time.sleep(0.0002)
    assert number > 50


def test_what_keeps_it_from_starting_is_raised():
    def refuse():
        raise RuntimeError("can't start new thread")

    before = threading.stack_size()
    with pytest.raises(RuntimeError, match='start new'):
        start_beside(refuse, STACK_BYTES, 5.0)
    assert threading.stack_size() == before


def test_it_is_waited_for_a_while_and_no_longer():
    gate, sizes = threading.Event(), []

    def start():
        sizes.append(threading.stack_size())
        gate.wait()

    before = threading.stack_size()
    assert not start_beside(start, STACK_BYTES, 0.05)
    assert (sizes, threading.stack_size()) == ([STACK_BYTES], before)
    gate.set()
