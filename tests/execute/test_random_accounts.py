"""P3 on graphs that nobody thought of: accounts are what a count of the living blocks gives, floors and budgets hold.

8 graphs in every run; 300 under every policy, which takes an hour, with

    pytest tests/execute/test_random_accounts.py --hypothesis-profile many

A floor that a refusal names holds if 1.02 times as much is enough for all graphs that were known when it was named,
each with the backward pass that was recorded: the same calls with other steps are a graph that nobody has seen. Where a
program goes backward from the loss of the iteration before, the first iteration has none yet, and the second is the
first that holds another's graph: floors count from the third on.
"""
import contextlib
from unittest import mock

import chainer
import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError, LostMapError
from chainer_ooc.execute import manager, sessions
from chainer_ooc.execute.graphs.graphs import Graphs
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.recorder import forms
from chainer_ooc.execute.recording.registration import name_of
from chainer_ooc.execute.storage.account import Account
from chainer_ooc.execute.storage.slots import array_of
from support.trainings.accounts import checked_accounts
from support.trainings.ooc_training import assert_same_bits, ooc
from support.trainings.random_graphs import GraphTraining, Operation, Program, Stage, programs

#: What Python's own objects make of floors: the meter counts them too, and these graphs have small maps.
NOISE_BYTES = 8_192
#: The first iteration that holds what all later ones do, where each goes backward from a loss of the one before.
FIRST_LIKE_ALL = 2


class Floors:
    """A budget of 1.02 times the floor that was named, or nothing at first; see `random_graphs.Budget`.

    Attributes:
        training: whose floors they are.
        broken: floors that were not enough for a graph that was known when they were named.
    """

    def __init__(self, training):
        self.training = training
        self.nbytes = 1
        self.broken = []
        self.known = set()

    @staticmethod
    def identity(graph):
        return graph.trace.fingerprint, tuple((each.call, each.label) for each in graph.trace.steps)

    def apply(self, function, inputs):
        while True:
            state = np.random.get_state()[2]
            try:
                return self.original(function, inputs)
            except InfeasibleBudgetError as error:
                if error.budget_bytes != self.nbytes or np.random.get_state()[2] != state:
                    raise AssertionError('another budget was refused, or a number was drawn before') from error
                graphs = sessions.current()._graphs
                refused = graphs.beginning_with(name_of(function), forms([array_of(each) for each in inputs]))
                if refused and self.identity(refused[0]) in self.known:
                    self.broken.append((self.nbytes, error.floor_bytes, error.where))
                if self.training.number >= FIRST_LIKE_ALL * self.training.program.is_ever_late:
                    self.known = set(map(self.identity, graphs._graphs.values()))
                self.nbytes = int(error.floor_bytes * 1.02) + NOISE_BYTES
                chainer.config.ooc_budget = self.nbytes

    @contextlib.contextmanager
    def hold(self):
        self.original = manager.apply
        with chainer.using_config('ooc_budget', self.nbytes), mock.patch.object(manager, 'apply', self.apply):
            yield


def plain(program):
    with chainer.using_config('ooc', None):
        try:
            return GraphTraining(program).train().bits
        except Exception as error:  # some functions of Chainer's cannot be differentiated twice in every way
            hypothesis.event(f'plain Chainer cannot: {type(error).__name__}')
            return hypothesis.reject()


def train(program, policy, min_bytes):
    """Trains at the floor; returns the bits, what is wrong with accounts, floors that broke, and budgets passed."""
    with checked_accounts() as wrong, ooc(policy, min_bytes=min_bytes):
        training = GraphTraining(program)
        floors = Floors(training)
        with floors.hold():
            outcome = training.train()
        passed = [(each.peak_bytes, each.budget_bytes) for each in outcome.stats
                  if each is not None and each.phase == 'run' and each.peak_bytes > each.budget_bytes]
    return outcome.bits, wrong, floors.broken, passed


def check(program, policy, min_bytes):
    expected = plain(program)
    try:
        bits, wrong, broken, passed = train(program, policy, min_bytes)
    except LostMapError:
        hypothesis.event('a kept map was lost')
        return
    except InfeasibleBudgetError as error:
        hypothesis.event(f'a step of backward was refused: {error.where.split(",")[0]}')
        return
    finally:
        chainer_ooc.reset()
    assert wrong == []
    assert broken == []
    assert passed == []
    assert_same_bits(bits, expected)


@hypothesis.settings(max_examples=8)
@given(programs, st.integers(0, 1 << 16), st.sampled_from([0, 100, 700]))
def test_accounts_floors_and_budgets_hold_on_random_graphs(program, number, min_bytes):
    names = list(chainer_ooc.policies())
    check(program, names[number % len(names)], min_bytes)


def test_steps_of_functions_outside_of_two_graphs_that_begin_alike_are_told_apart():
    """Both run the same calls; in backward of backward one convolves where the other multiplies matrices."""
    convolved = Operation('pooling with indexes', 55, 0, ''), Operation('multiply', 30, 23, '')
    program = Program(0, (
        Stage(convolved, 52, 43, 'double', 3, False),
        Stage((Operation('activation', 0, 44, ''), Operation('view', 42, 0, '')), 0, 0, 'backward', 1, False),
        Stage((Operation('activation', 0, 0, ''), Operation('forget', 0, 0, ''), Operation('activation', 0, 0, '')),
              0, 6, 'double', 1, False)), 5, frozenset(), (2, 0, 2, 0))
    check(program, 'pooch', 0)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize('policy', list(chainer_ooc.policies()))
def test_many_random_graphs_under_each_policy(policy):
    if hypothesis.settings().max_examples < 300:
        pytest.skip('takes an hour for all policies: --hypothesis-profile many')

    @given(programs, st.sampled_from([0, 100, 700]))
    def search(program, min_bytes):
        check(program, policy, min_bytes)
    search()


@pytest.mark.parametrize('fault', [
    'a death that is booked twice', 'a block that is never booked', 'a budget that is passed',
    'a floor that is too small'])
def test_planted_faults_are_found(fault, monkeypatch):
    """Seen to fail: what the check says of an account, or a budget, that does not hold."""
    if fault == 'a budget that is passed':
        monkeypatch.setattr(Residency, 'drop', lambda self, storage, may_lose: None)
        monkeypatch.setattr(Residency, 'free_something', lambda self: False)
        monkeypatch.setattr(Residency, 'fits', lambda self, nbytes: True)
        monkeypatch.setitem(globals(), 'NOISE_BYTES', NOISE_BYTES // 4)  # more hides nearly all of it
    elif fault == 'a floor that is too small':
        largest = Graphs.largest_refusal

        def smaller(graphs, error, conditions, *others):
            found = largest(graphs, error, conditions, *others)
            if found.budget_bytes > 1:
                return found
            return InfeasibleBudgetError(
                conditions.settings.policy, found.budget_bytes, found.floor_bytes // 3, found.where)
        monkeypatch.setattr(Graphs, 'largest_refusal', smaller)
    else:
        book, sign = Account.book, 1 if fault.startswith('a death') else -1

        def wrong(account, storage, kind):
            book(account, storage, kind)
            account._bytes[kind] += sign * storage.nbytes
        monkeypatch.setattr(Account, 'book', wrong)

    @hypothesis.settings(max_examples=16, phases=[hypothesis.Phase.generate], database=None)
    @given(programs, st.sampled_from(['keep', 'swap-all', 'tensor-cache']))
    def search(program, policy):
        check(program, policy, 0)
    with pytest.raises(AssertionError):
        search()
