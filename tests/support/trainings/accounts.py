"""Accounts of near memory, recomputed from scratch after every event."""
import collections
import contextlib
import functools
from unittest import mock

import chainer
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.iteration.iteration import Iteration
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.storage.account import Account

EVENTS = ((Iteration, 'before_call'), (Iteration, 'after_call'), (Iteration, 'begin_backward'),
          (Iteration, 'before_step'), (Iteration, 'after_step'), (Iteration, 'end_backward'), (Residency, 'make_room'),
          (Residency, 'fetch'), (Residency, 'drop'), (Residency, 'swap_out'))


def counted(memory):
    """Bytes of the blocks that live, one by one; each belongs to one storage."""
    total, owners = 0, collections.Counter()
    for storage in memory.known():
        root = storage.root()
        if root is not None:
            owners[id(root)] += 1
            total += 0 if storage.mapped else storage.counted_bytes
    total += sum(each.nbytes for each in Account._blocks.values()  # spare once; the program alone holds it
                 if each.account is memory and each.storage() is None and each.root() is not None)
    assert not [count for count in owners.values() if count > 1], 'a block has two storages'
    return total


def differences():
    """Where the account of the session at hand is not what its living blocks are."""
    session = sessions.current()
    if session is None:
        return None
    memory = session.memory
    while True:
        account = sum(map(memory.bytes_of, ('maps', 'spare', 'program')))
        blocks = sum(each.nbytes for each in Account._blocks.values() if each.account is memory)
        count = counted(memory)
        if not Account._deaths:  # else the garbage collector has come between
            return None if account == blocks == count else (account, blocks, count)


def over_budget():
    """What the account of an iteration that follows a measured graph holds, with spare maps, and its budget if less."""
    session = sessions.current()
    iteration = session and session._iteration
    if not iteration or iteration.finished or not iteration.following.is_certain:
        return None
    held_bytes = session.memory.held_bytes()
    return (held_bytes, iteration.budget_bytes) if held_bytes > iteration.budget_bytes else None


@contextlib.contextmanager
def checked_accounts():
    """Compares the account with a count after each event, and with the budget.

    While room is made the account may be above the budget: what the program has allocated since the call before counts
    from then on. It must not be when room was made.
    """
    found, making = [], []

    def watched(method, name):
        @functools.wraps(method)
        def run(*args, **kwargs):
            if name == 'make_room':
                making.append(name)
            try:
                result = method(*args, **kwargs)
            finally:
                if name == 'make_room':
                    making.pop()
                if (different := differences()) is not None:
                    found.append((name, *different))
            if not making and (passed := over_budget()) is not None:
                found.append((name, 'over the budget', *passed))
            return result
        return run
    with contextlib.ExitStack() as stack:
        for owner, name in EVENTS:
            stack.enter_context(mock.patch.object(owner, name, watched(getattr(owner, name), name)))
        yield found


def learn_at_the_floor(learn, sizes, largest):
    """Runs iterations of these sizes, of known graphs, within 1.02 times the floor that one of the largest is refused
    with; gives what they give. None leaves its plan or passes the budget, and no account differs.
    """
    found = []
    with chainer.using_config('ooc_budget', 1), pytest.raises(InfeasibleBudgetError) as refused:
        learn(largest)
    with chainer.using_config('ooc_budget', int(1.02 * refused.value.floor_bytes) + 4_096), checked_accounts() as wrong:
        for number, size in enumerate(sizes):
            found.append(learn(size, number))
            stats = chainer_ooc.stats()
            assert stats.phase == 'run'
            assert stats.peak_bytes <= stats.budget_bytes
    assert wrong == []
    return found
