"""With no budget set, the budget follows what is free, in steps."""
import pytest

from chainer_ooc.backends.host import HostBackend, headroom
from support.trainings.ooc_training import Training, assert_same_bits, ooc, plain

KB = 1 << 10
pytestmark = pytest.mark.host


def test_the_budget_follows_what_the_program_allocates_and_frees(monkeypatch):
    free, training = [4096 * KB], Training('residual')
    monkeypatch.setattr(HostBackend, 'free_bytes', lambda self: free[0])
    monkeypatch.setattr(headroom.groups, 'groups', list)
    budgets = []
    with ooc('swap-all'):
        training.iterate()  # nobody knows yet what of the memory in use are parameters
        for free[0] in (4096 * KB, 4080 * KB, 4150 * KB, 2048 * KB, 2040 * KB, 8192 * KB):
            budgets.append(training.iterate().stats[-1].budget_bytes)
    assert budgets[0] == budgets[1] == budgets[2] > budgets[3] == budgets[4]
    assert budgets[5] > 1.5 * budgets[0]
    assert_same_bits(training.finish(), plain('residual', 7))


def test_an_explicit_budget_stays_what_it_is(monkeypatch):
    free, training = [4096 * KB], Training('residual')
    monkeypatch.setattr(HostBackend, 'free_bytes', lambda self: free[0])
    with ooc('swap-all', budget='3 MB'):
        for free[0] in (4096 * KB, 2048 * KB, 8192 * KB):
            training.iterate()
    assert {each.budget_bytes for each in training.outcome.stats} == {3000000}
    training.finish()
