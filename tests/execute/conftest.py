"""Puts chainer_ooc before chainer, and trainings on the device that is asked for."""

import pytest

import chainer_ooc
from chainer_ooc.backends.base import Bandwidth
from chainer_ooc.backends.host.backend import HostBackend
from chainer_ooc.backends.spill.transfer import HostTransfer
from chainer_ooc.classify import policies
from chainer_ooc.execute.graphs.following import Following
from support.chaos import ChaosBackend
from support.chaos.streams import ChaosTransfer
from support.devices import chosen


@pytest.fixture(autouse=True)
def known_bandwidth(monkeypatch):
    """Measuring it moves 16 MiB for each session, more than all of a test's maps."""
    monkeypatch.setattr(HostBackend, 'bandwidth', lambda self: Bandwidth(1e9, 1e9, 1e-4))


@pytest.fixture
def nothing_quiet(monkeypatch):
    """Takes note of every iteration, also where nothing has to leave: for tests of what is done with the notes."""
    monkeypatch.setattr(Following, 'stays', lambda following, graph: False)


@pytest.fixture
def verdict_mixes(monkeypatch):
    """The policies that only tests have; see `verdict_mixes.py`."""
    from support.trainings import verdict_mixes
    for name, policy in verdict_mixes.POLICIES.items():
        monkeypatch.setitem(policies.POLICIES, name, policy)


@pytest.fixture
def backend_class(request):
    """The class of the backends that the test's trainings use."""
    return {'host': HostBackend, 'chaos': ChaosBackend}[request.config.getoption('--backend')]


@pytest.fixture
def transfer_class(request):
    """The class of those backends' transfers."""
    return {'host': HostTransfer, 'chaos': ChaosTransfer}[request.config.getoption('--backend')]


@pytest.fixture
def prompt_swap_outs(backend_class, monkeypatch):
    """Ends each swap-out before the call returns: a map that is still leaving comes back without a swap-in."""
    swap_out = backend_class.swap_out

    def prompt(self, source):
        copy, transfer = swap_out(self, source)
        transfer.wait()
        return copy, transfer
    monkeypatch.setattr(backend_class, 'swap_out', prompt)


@pytest.fixture(autouse=True)
def device(request):
    """Puts trainings on the device of `--backend`; on chaos, whatever a GPU would not forgive fails the test."""
    if request.config.getoption('--backend') == 'host':
        yield
        return
    seed = request.config.getoption('--chaos-seed')
    with chosen(lambda spill_dir: ChaosBackend(seed)) as made:
        yield
        chainer_ooc.reset()
    misuses = [misuse for backend in made for misuse in backend.misuses]
    if misuses:
        pytest.fail('copies in flight lost their memory\n' + '\n'.join(misuses), pytrace=False)
