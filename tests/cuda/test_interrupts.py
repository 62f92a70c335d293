"""A KeyboardInterrupt before any line of the backend: later calls work, no byte is lost, close leaves nothing (P9)."""
import pathlib
import sys

import pytest
from fake_driver import FakeDriver

from chainer_ooc.backends import cuda
from chainer_ooc.backends.cuda import CudaBackend, disk

ROOM = str(pathlib.Path(cuda.__file__).parent)
SIZES_BYTES = (4000, 9000)


def moves(backend, kept):
    """What a training asks of a backend; fills `kept` with the copies that it has and their values."""
    for value, nbytes in enumerate(SIZES_BYTES * 2):
        source = backend.allocate(nbytes)
        source[:] = value
        copy, transfer = backend.swap_out(source)
        kept.append((copy, value))
        transfer.wait()
        del source
    for copy, value in kept[1:3]:
        into = backend.allocate(copy.nbytes)
        transfer = backend.swap_in(copy, into)
        transfer.wait()
        assert (into == value).all()
    backend.release(kept.pop()[0])
    source = backend.allocate(SIZES_BYTES[1])
    source[:] = 7
    copy, transfer = backend.swap_out(source)
    kept.append((copy, 7))
    while not transfer.done:
        pass
    backend.reserve(0)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Copies by way of the file take several pieces."""
    monkeypatch.setattr(disk, 'PIECE_BYTES', 2000)


class Interrupted:
    """Raises KeyboardInterrupt before the n-th line of the backend that runs in this thread."""

    def __init__(self, number):
        self.left = number
        self.came = False

    def __call__(self, frame, event, argument):
        return self.line if frame.f_code.co_filename.startswith(ROOM) and frame.f_code.co_name != '__del__' else None

    def line(self, frame, event, argument):
        if event == 'line':
            self.left -= 1
            if self.left == 0:
                self.came = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.line

    def run(self, function, *arguments):
        before = sys.gettrace()
        sys.settrace(self)
        try:
            function(*arguments)
        except KeyboardInterrupt:
            assert self.came
        finally:
            sys.settrace(before)


def go_on(backend, kept):
    """All copies that the caller has come back, and new ones are made."""
    for copy, value in kept:
        if not copy.place.unwanted:  # it may have been released, and the caller not know
            into = backend.allocate(copy.nbytes)
            into[:] = 99
            backend.swap_in(copy, into).wait()
            assert (into == value).all()
    for nbytes in SIZES_BYTES:
        source = backend.allocate(nbytes)
        source[:] = 5
        copy, transfer = backend.swap_out(source)
        transfer.wait()
        into = backend.allocate(nbytes)
        backend.swap_in(copy, into).wait()
        assert (into == 5).all()


@pytest.mark.skipif(sys.gettrace() is not None, reason='a debugger or a coverage tool has the trace function')
@pytest.mark.parametrize('host_limit_bytes', [1 << 20, 15_000, 0], ids=['pinned', 'both', 'disk'])
def test_an_interrupt_at_any_line_loses_nothing(host_limit_bytes):
    number, came = 1, True
    while came:
        driver = FakeDriver(number)
        backend, kept = CudaBackend(host_limit_bytes=host_limit_bytes, driver=driver), []
        interrupted = Interrupted(number)
        interrupted.run(moves, backend, kept)
        came = interrupted.came
        go_on(backend, kept)
        backend.close()
        assert driver.misuses == [], number
        assert driver.left_behind() == [], number
        number += 1 + number // 30
    assert number > 100, 'the moves have fewer lines than they should'


@pytest.mark.skipif(sys.gettrace() is not None, reason='a debugger or a coverage tool has the trace function')
@pytest.mark.parametrize('host_limit_bytes', [1 << 20, 0], ids=['pinned', 'disk'])
def test_an_interrupt_at_any_line_of_close_can_be_made_good(host_limit_bytes):
    number, came = 1, True
    while came:
        driver = FakeDriver(number)
        backend = CudaBackend(host_limit_bytes=host_limit_bytes, driver=driver)
        source = backend.allocate(4000)
        swaps = [backend.swap_out(source) for _ in range(2)]
        reads = [backend.swap_in(swaps[0][0], backend.allocate(4000))]
        interrupted = Interrupted(number)
        interrupted.run(backend.close)
        came = interrupted.came
        backend.close()
        assert all(each.done for each in [*reads, *(transfer for _, transfer in swaps)])
        assert driver.misuses == [], number
        assert driver.left_behind() == [], number
        number += 1
    assert number > 20
