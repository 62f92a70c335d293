"""Puts this folder's helper modules within reach, chainer_ooc before chainer, and spares each test a measurement."""
import pathlib
import sys

import pytest

HERE = str(pathlib.Path(__file__).parent)

if HERE not in sys.path:
    sys.path.insert(0, HERE)
import chainer_ooc  # noqa: E402, F401  before the helpers, which import chainer
from chainer_ooc.backends.base import Bandwidth  # noqa: E402
from chainer_ooc.backends.host.backend import HostBackend  # noqa: E402
from chainer_ooc.classify import policies  # noqa: E402


@pytest.fixture(autouse=True)
def known_bandwidth(monkeypatch):
    """Measuring it moves 16 MiB for each session, more than all of a test's maps."""
    monkeypatch.setattr(HostBackend, 'bandwidth', lambda self: Bandwidth(1e9, 1e9, 1e-4))


@pytest.fixture
def verdict_mixes(monkeypatch):
    """The policies that only tests have; see `verdict_mixes.py`."""
    import verdict_mixes
    for name, policy in verdict_mixes.POLICIES.items():
        monkeypatch.setitem(policies.POLICIES, name, policy)
