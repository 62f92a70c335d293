"""Who pins memory, and when: noted, made to wait, or done at once, so that a training on a fake repeats itself."""
import contextlib
import threading
import time
from unittest import mock

from chainer_ooc.backends.cuda.regions import Pinning
from chainer_ooc.execute.iteration import departures
from support.fake_driver import FakeDriver

#: Has the thread go on, as outside of `at_once`.
BY_THREAD = Pinning._wake


@contextlib.contextmanager
def at_once():
    """What a thread would pin, the caller pins meanwhile; and without a plan all leaves, however empty memory is."""
    with mock.patch.object(Pinning, '_wake', lambda self: self._pin_next()), \
            mock.patch.object(departures, 'SHARE_THAT_STAYS', 0.0):
        yield


class Pinner(FakeDriver):
    """Notes what was pinned, and by whom; what the thread pins takes a while, and may have to wait for `gate`."""

    thread_seconds = 0.0

    def __init__(self, **device):
        super().__init__(**device)
        self.by_caller, self.by_thread = [], []
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()

    def pin(self, nbytes):
        if threading.current_thread() is threading.main_thread():
            self.by_caller.append(nbytes)
        else:
            self.by_thread.append(nbytes)
            self.begun.set()
            assert self.gate.wait(20)
            time.sleep(self.thread_seconds)
        return super().pin(nbytes)
