"""Puts chainer_ooc before chainer, and says how much the conformance tests try.

    pytest tests/conformance --conformance-seeds 20 --conformance-heavy
"""
import contextlib
import itertools
import zlib

import pytest

import chainer_ooc
from chainer_ooc.backends.base import Bandwidth
from chainer_ooc.backends.host.backend import HostBackend
from chainer_ooc.classify.policies import POLICIES
from support import devices
from support.chaos import ChaosBackend

SEEDS, HEAVY = '--conformance-seeds', '--conformance-heavy'
PLAIN, TRANSPOSED = LAYOUTS = 'plain', 'transposed'
HOST, CHAOS = 'host', 'chaos'


def pytest_addoption(parser):
    parser.addoption(SEEDS, type=int, help='every mix, so many random ones among them, on each device in both layouts')
    parser.addoption(HEAVY, action='store_true', help='also the cases that need much memory and time')


def pytest_generate_tests(metafunc):
    if 'mix' in metafunc.fixturenames:
        metafunc.parametrize(('name', 'device', 'mix', 'layout'), chosen(metafunc.config), indirect=['device', 'mix'])


def chosen(config):
    """Cases, devices, mixes of verdicts, and layouts of the features; of the random mixes those of every second case.

    While the whole suite runs, pytest reads this file too late to know its options, so that their values default here.
    """
    from support.conformance.conformance_mixes import RANDOM_MIX, RECOMPUTE_ALL, SWAP_ALL
    from support.conformance.conformance_tables import FUNCTIONS, LINKS
    seeds = config.getoption(SEEDS, None)
    runs = [(HOST, SWAP_ALL, TRANSPOSED), (HOST, RECOMPUTE_ALL, PLAIN), (CHAOS, f'{RANDOM_MIX}0', TRANSPOSED)]
    if seeds is not None:
        mixes = [SWAP_ALL, RECOMPUTE_ALL, *[f'{RANDOM_MIX}{seed}' for seed in range(seeds)]]
        runs = list(itertools.product((HOST, CHAOS), mixes, LAYOUTS))
    return [pytest.param(name, device, mix, layout, marks=pytest.mark.long if (
                seeds is None and device == CHAOS and number % 2) else ())
            for number, name in enumerate([*FUNCTIONS, *LINKS]) for device, mix, layout in runs]


@pytest.fixture
def heavy(request):
    """Whether heavy cases run."""
    return request.config.getoption(HEAVY, False)


@pytest.fixture
def mix(request, monkeypatch):
    """The name of a mix of verdicts, which is a policy meanwhile."""
    from support.conformance.conformance_mixes import row
    policy = row(request.param)
    if policy is not None:
        monkeypatch.setitem(POLICIES, policy.name, policy)
    return request.param


@pytest.fixture(autouse=True)
def device(request, monkeypatch):
    """The device under test; the host where a test does not choose."""
    name = getattr(request, 'param', HOST)
    chainer_ooc.reset()
    with on_host(request, monkeypatch) if name == HOST else on_chaos(request):
        yield name
        chainer_ooc.reset()


@contextlib.contextmanager
def on_host(request, monkeypatch):
    """Spares each test a measurement, and has maps leave.

    One of a few bytes is wanted back before its copy has ended, and then never leaves: such swaps would test nothing.
    So swap-outs are over at once, or in a random mix every other one, which leaves the rest to the threads.
    """
    monkeypatch.setattr(HostBackend, 'bandwidth', lambda self: Bandwidth(1e9, 1e9, 1e-4))
    honest, numbers, at_random = HostBackend.swap_out, itertools.count(), mix_of(request).startswith('random')

    def swap_out(backend, source):
        copy, transfer = honest(backend, source)
        if not at_random or next(numbers) % 2:
            transfer.wait()
        return copy, transfer
    monkeypatch.setattr(HostBackend, 'swap_out', swap_out)
    yield


@contextlib.contextmanager
def on_chaos(request):
    """Whatever a GPU would not forgive fails the test; the order of copies differs from case to case."""
    seed = zlib.crc32(request.node.name.encode())
    with devices.chosen(lambda spill_dir: ChaosBackend(seed)) as made:
        yield
    misuses = [misuse for backend in made for misuse in backend.misuses]
    assert not misuses, 'copies in flight lost their memory: ' + '; '.join(misuses)


def mix_of(request):
    return request.getfixturevalue('mix') if 'mix' in request.fixturenames else ''
