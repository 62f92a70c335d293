"""The soak is a script: its folder is on the path of whoever runs it, so it is here."""
import contextlib
import pathlib
import sys

import pytest

HERE = str(pathlib.Path(__file__).parent)

if HERE not in sys.path:
    sys.path.insert(0, HERE)
import soak_trainings  # noqa: E402, F401  puts folders on the path, and chainer_ooc before chainer

from chainer_ooc.backends.host import HostBackend  # noqa: E402


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
