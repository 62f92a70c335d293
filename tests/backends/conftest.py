"""What the tests of the host backend share."""
import os
import threading
import warnings

import pytest

from chainer_ooc.backends.host import HostBackend, arena, block
from chainer_ooc.backends.layout import GAP_BYTES
from chainer_ooc.backends.spill import mapping


@pytest.fixture
def backend(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        made = HostBackend(str(tmp_path))
    yield made
    made.close()


@pytest.fixture
def no_gap(monkeypatch):
    """Blocks of exactly the bytes of their arrays, whatever the version of NumPy: for tests of what goes where."""
    for module in (block, mapping):
        monkeypatch.setattr(module, 'GAP_BYTES', 0)
    if type(found := arena._library()) is str:
        yield
        return
    found.arena_set_gap(0)
    yield
    found.arena_set_gap(GAP_BYTES)


@pytest.fixture
def gate(monkeypatch):
    """Holds every write back until the gate is opened; then lets it fail if an error number is set."""
    opened, write = threading.Event(), os.pwritev
    opened.error_number = None

    def wait_and_write(descriptor, views, offset):
        assert opened.wait(20), 'the test forgot to open the gate'
        if opened.error_number:
            raise OSError(opened.error_number, os.strerror(opened.error_number))
        return write(descriptor, views, offset)

    monkeypatch.setattr(os, 'pwritev', wait_and_write)
    yield opened
    opened.set()
