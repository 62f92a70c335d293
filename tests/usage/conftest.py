"""Puts chainer_ooc before chainer, and spares each run of a program a measurement.

    pytest tests/usage --usage-every-policy     # every program under every policy; without, each under a part of them
"""
import itertools
import multiprocessing.heap

import pytest

import chainer_ooc  # noqa: F401  before the programs, which import chainer
from chainer_ooc.backends.base import Bandwidth
from chainer_ooc.backends.host.backend import HostBackend

EVERY_POLICY = '--usage-every-policy'


def pytest_addoption(parser):
    parser.getgroup('chainer_ooc').addoption(
        EVERY_POLICY, action='store_true', help='tests/usage: every program under every policy (nightly)')


@pytest.fixture(autouse=True)
def known_bandwidth(monkeypatch):
    """Measuring takes ten times as long as a program here, and makes plans that differ from run to run."""
    monkeypatch.setattr(HostBackend, 'bandwidth', lambda self: Bandwidth(1e9, 1e9, 1e-5))


@pytest.fixture(autouse=True)
def shared_memory_of_its_own(monkeypatch):
    """`MultiprocessIterator` shares memory with its workers; multiprocessing keeps what was shared once."""
    monkeypatch.setattr(multiprocessing.heap.BufferWrapper, '_heap', multiprocessing.heap.Heap())


@pytest.fixture
def copies_end_at_once(monkeypatch):
    """Has each map really be away when its swap-out has been asked for: a small one is often back before that."""
    wait_for_swap_outs(monkeypatch, itertools.repeat(True))


@pytest.fixture
def every_other_copy_ends_at_once(monkeypatch):
    """The others are left to the threads."""
    wait_for_swap_outs(monkeypatch, itertools.cycle((True, False)))


def wait_for_swap_outs(monkeypatch, waits):
    honest = HostBackend.swap_out

    def swap_out(backend, source):
        copy, transfer = honest(backend, source)
        if next(waits):
            transfer.wait()
        return copy, transfer
    monkeypatch.setattr(HostBackend, 'swap_out', swap_out)
