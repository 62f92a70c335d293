"""A KeyboardInterrupt before any line of the backend: later calls work, no byte is lost, close leaves nothing (P9)."""
import functools
import pathlib
import sys

import pytest

from chainer_ooc.backends import cuda, owned
from chainer_ooc.backends.cuda import CudaBackend, disk
from chainer_ooc.backends.spill import store
from support.fake_driver import FakeDriver
from support.interrupting import interrupted_at

#: Not the spill file itself, which the garbage collector may close at any line, as it does those of earlier backends.
OURS = (str(pathlib.Path(cuda.__file__).parent), owned.__file__, store.__file__)
SIZES_BYTES = (4000, 9000)


def moves(backend, kept):
    """What a training asks of a backend; fills `kept` with the copies that it has and their values."""
    backend.prepare([*SIZES_BYTES, SIZES_BYTES[0]])
    backend.is_prepared(SIZES_BYTES[1])
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


def interrupted(number, call):
    """Whether a line of the backend in this thread had that number, before which `call` was interrupted."""
    return interrupted_at(
        number, call, 'line', lambda code: code.co_filename.startswith(OURS) and code.co_name != '__del__')


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


def lent(pinned):
    """The sizes of blocks that somebody has."""
    unused = {id(block) for blocks in pinned._unused.values() for block in blocks if block.settled}
    return [block.nbytes for region in pinned._regions for block in region.blocks if id(block) not in unused]


@pytest.mark.skipif(sys.gettrace() is not None, reason='a debugger or a coverage tool has the trace function')
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # it may hit a __del__, as always
@pytest.mark.parametrize('host_limit_bytes', [1 << 20, 15_000, 0], ids=['pinned', 'both', 'disk'])
def test_an_interrupt_at_any_line_loses_nothing(host_limit_bytes):
    number, came = 1, True
    while came:
        driver = FakeDriver(number)
        backend, kept = CudaBackend(host_limit_bytes=host_limit_bytes, driver=driver), []
        came = interrupted(number, functools.partial(moves, backend, kept))
        go_on(backend, kept)
        while kept:
            backend.release(kept.pop()[0])
        backend.reserve(0)
        assert lent(backend._far.pinned) == [], number
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
        backend.prepare([5000])
        came = interrupted(number, backend.close)
        backend.close()
        assert all(each.done for each in [*reads, *(transfer for _, transfer in swaps)])
        assert driver.misuses == [], number
        assert driver.left_behind() == [], number
        number += 1
    assert number > 20
