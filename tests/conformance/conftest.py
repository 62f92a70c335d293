"""Puts the tables within reach, chainer_ooc before chainer, and says how much the conformance tests try.

    pytest tests/conformance --conformance-seeds 20 --conformance-heavy
"""
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).parent

for folder in (HERE, HERE.parent / 'execute'):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
import chainer_ooc  # noqa: E402  before the helpers, which import chainer
from chainer_ooc.backends.base import Bandwidth  # noqa: E402
from chainer_ooc.backends.host.backend import HostBackend  # noqa: E402
from chainer_ooc.classify.policies import POLICIES  # noqa: E402
from chainer_ooc.classify.verdict import Verdict  # noqa: E402

SEEDS, HEAVY = '--conformance-seeds', '--conformance-heavy'


def pytest_addoption(parser):
    parser.addoption(SEEDS, type=int, default=1, help='number of random mixes of verdicts')
    parser.addoption(HEAVY, action='store_true', help='also the cases that need much memory and time')


def pytest_generate_tests(metafunc):
    """Options default here too: while the whole suite runs, pytest reads this file too late for its command line."""
    if 'mix' not in metafunc.fixturenames:
        return
    from conformance_mixes import RANDOM_MIX, RECOMPUTE_ALL, SWAP_ALL
    mixes = [SWAP_ALL]
    if hasattr(Verdict, 'RECOMPUTE'):
        seeds = metafunc.config.getoption(SEEDS, 1)
        mixes += [RECOMPUTE_ALL, *[f'{RANDOM_MIX}{seed}' for seed in range(seeds)]]
    metafunc.parametrize('mix', mixes, indirect=True)


@pytest.fixture
def heavy(request):
    """Whether heavy cases run."""
    return request.config.getoption(HEAVY, False)


@pytest.fixture
def mix(request, monkeypatch):
    """The name of a mix of verdicts, which is a policy meanwhile."""
    from conformance_mixes import row
    policy = row(request.param)
    if policy is not None:
        monkeypatch.setitem(POLICIES, policy.name, policy)
    return request.param


@pytest.fixture(params=['host'], autouse=True)
def device(request, monkeypatch):
    """The device under test."""
    monkeypatch.setattr(HostBackend, 'bandwidth', lambda self: Bandwidth(1e9, 1e9, 1e-4))
    chainer_ooc.reset()
    return request.param
