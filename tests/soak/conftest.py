"""What the tests of the soak share."""
import contextlib

import pytest

import soak_trainings  # noqa: F401  puts folders on the path, and chainer_ooc before chainer
from chainer_ooc.backends.host import HostBackend


@pytest.fixture
def copies_end_at_once(monkeypatch):
    """Has each swap-out be over, or have failed, when it has been asked for: a small map is often back before that."""
    honest = HostBackend.swap_out

    def swap_out(backend, source):
        copy, transfer = honest(backend, source)
        with contextlib.suppress(OSError):  # whoever waits for it next hears of it
            transfer.wait()
        return copy, transfer
    monkeypatch.setattr(HostBackend, 'swap_out', swap_out)
