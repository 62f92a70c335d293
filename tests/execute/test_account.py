"""What near memory holds, counted; also when an interrupt comes between two steps of the count."""
import weakref

import numpy as np
import pytest

from chainer_ooc.execute.storage.account import Account, _Block, find
from chainer_ooc.execute.storage.storage import Storage
from support.interrupting import interrupted_at
from support.states.states_world import interrupted


class Interrupting(dict):
    def __setitem__(self, key, value):
        raise KeyboardInterrupt


@pytest.fixture
def account():
    made = Account()
    yield made
    made.close()


def storage_of(account, root, number=0):
    storage = Storage(account, root)
    storage.assign(object(), number, from_outside=False)
    return storage


def test_a_block_counts_until_it_dies(account):
    root = np.zeros(1000, np.uint8)
    account.count(root, storage_of(account, root), metered=False)
    assert account.near_bytes() == 1000
    del root
    assert account.near_bytes() == 0


def test_a_block_is_found_by_all_accounts_and_counted_by_one(account):
    other, root = Account(), np.zeros(1000, np.uint8)
    storage = storage_of(account, root)
    account.count(root, storage, metered=False)
    assert find(root[10:]) is storage
    assert (account.near_bytes(), other.near_bytes()) == (1000, 0)
    account.close()
    assert find(root) is None


def test_what_stands_beside_the_maps_counts(account):
    account.stands(4321)
    assert account.near_bytes() == account.beside_bytes == 4321


def test_what_is_handed_over_is_the_programs_until_it_is_a_feature_map_again(account):
    root = np.zeros(1000, np.uint8)
    storage = storage_of(account, root)
    account.count(root, storage, metered=False)
    account.book(storage, 'program')
    account.book(storage, 'program')
    assert (account.near_bytes(), account.bytes_of('program'), account.storages()) == (0, 1000, [])
    storage.count_as(300)
    account.count_again(storage)
    assert (account.near_bytes(), account.bytes_of('program'), account.storages()) == (300, 0, [storage])
    account.book(storage, 'program')
    del root
    assert (account.near_bytes(), account.bytes_of('program')) == (0, 0)


def test_listeners_hear_of_blocks_that_go(account):
    heard, root, other = [], np.zeros(1000, np.uint8), np.zeros(10, np.uint8)
    account.count(other, storage_of(account, other), metered=False)
    account.meter(lambda token, map_id: heard.append(map_id))
    account.count(root, storage_of(account, root, 1), metered=True)
    assert account.bytes_of('metered') == 1000
    del root, other
    assert (account.bytes_of('metered'), heard) == (0, [1, 0])
    account.meter(None)


@pytest.mark.parametrize('late', [False, True])
def test_a_block_whose_counting_was_interrupted_is_put_right(account, late, monkeypatch):
    root = np.zeros(1000, np.uint8)
    storage = storage_of(account, root)
    with monkeypatch.context() as patched:
        if late:  # known and counted, and not yet kept alive
            move = _Block.move
            patched.setattr(_Block, 'move', lambda *given: (move(*given), (_ for _ in ()).throw(KeyboardInterrupt)))
        else:
            patched.setattr(Account, '_blocks', Interrupting())
        with pytest.raises(KeyboardInterrupt):
            account.count(root, storage, metered=False)
    account.recount()
    assert account.near_bytes() == (1000 if late else 0)
    del root, storage
    account.recount()
    assert account.near_bytes() == 0


class _Destroyed:
    def __del__(self):
        pass


def test_an_interrupt_in_a_destructor_leaves_nothing_alive():
    number, arrays = 1, []

    def make_and_destroy():
        array = np.zeros(1000, np.uint8)
        arrays.append(weakref.ref(array))
        _Destroyed()

    while interrupted_at(number, make_and_destroy):
        assert not arrays or arrays[-1]() is None
        number += 1
    assert number > 5


def test_an_interrupt_at_no_step_of_counting_leaves_a_death_that_cannot_be_booked(account):
    number = 1

    def count_and_let_go():
        roots = [np.zeros(1000, np.uint8)]
        storage = storage_of(account, roots[0])
        try:
            account.count(roots[0], storage, metered=False)
        except KeyboardInterrupt:  # what the interrupted call has is alive until this is over
            roots.clear()
            account.recount()
            raise

    while interrupted_at(number, count_and_let_go):
        account.recount()
        assert account.near_bytes() == 0
        number += 1
    assert number > 100


@pytest.mark.parametrize('moments', range(8))
def test_a_death_whose_booking_was_interrupted_is_put_right_whosever_the_block_was(account, moments):
    other, root = Account(), np.zeros(1000, np.uint8)
    other.count(root, storage_of(other, root), metered=False)
    del root
    interrupted(account.near_bytes, moments)
    account.recount()
    assert other.near_bytes() == 0
