"""Puts the tables within reach, chainer_ooc before chainer, and says how much the conformance tests try.

    pytest tests/conformance --conformance-seeds 20 --conformance-heavy
"""
import itertools
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
PLAIN, TRANSPOSED = 'plain', 'transposed'


def pytest_addoption(parser):
    parser.addoption(SEEDS, type=int, help='random mixes of verdicts to try, all cases in both layouts')
    parser.addoption(HEAVY, action='store_true', help='also the cases that need much memory and time')


def pytest_generate_tests(metafunc):
    if 'mix' in metafunc.fixturenames:
        metafunc.parametrize(('mix', 'layout'), chosen(metafunc.config), indirect=['mix'])


def chosen(config):
    """Mixes of verdicts and layouts of the features.

    While the whole suite runs, pytest reads this file too late to know its options, so that their values default here.
    """
    from conformance_mixes import RANDOM_MIX, RECOMPUTE_ALL, SWAP_ALL
    seeds = config.getoption(SEEDS, None)
    pairs = [(SWAP_ALL, TRANSPOSED), (RECOMPUTE_ALL, PLAIN), (f'{RANDOM_MIX}0', TRANSPOSED)]
    if seeds is not None:
        names = [SWAP_ALL, RECOMPUTE_ALL, *[f'{RANDOM_MIX}{seed}' for seed in range(seeds)]]
        pairs = [(name, layout) for name in names for layout in (PLAIN, TRANSPOSED)]
    return [each for each in pairs if each[0] == SWAP_ALL or hasattr(Verdict, 'RECOMPUTE')]


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
    """The device under test.

    A map of a few bytes is wanted back before its copy has ended, and then never leaves: such swaps would test nothing.
    So swap-outs are over at once, or in a random mix every other one, which leaves the rest to the threads.
    """
    monkeypatch.setattr(HostBackend, 'bandwidth', lambda self: Bandwidth(1e9, 1e9, 1e-4))
    honest, numbers = HostBackend.swap_out, itertools.count()

    def swap_out(backend, source):
        copy, transfer = honest(backend, source)
        if not _at_random(request) or next(numbers) % 2:
            transfer.wait()
        return copy, transfer
    monkeypatch.setattr(HostBackend, 'swap_out', swap_out)
    chainer_ooc.reset()
    return request.param


def _at_random(request):
    from conformance_mixes import RANDOM_MIX
    return 'mix' in request.fixturenames and request.getfixturevalue('mix').startswith(RANDOM_MIX)
