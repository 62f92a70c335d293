"""What near memory holds, counted; also when an interrupt comes between two steps of the count."""
import numpy as np
import pytest

from chainer_ooc.execute.account import Account
from chainer_ooc.execute.storage import Storage


class Interrupting(dict):
    def __setitem__(self, key, value):
        raise KeyboardInterrupt


def storage_of(account, root):
    storage = Storage(account, root)
    storage.token, storage.map = object(), 0
    return storage


def test_a_block_counts_until_it_dies():
    account, root = Account(), np.zeros(1000, np.uint8)
    account.count(root, storage_of(account, root), metered=False)
    assert account.near_bytes() == 1000
    del root
    assert account.near_bytes() == 0


@pytest.mark.parametrize('late', [False, True])
def test_a_block_whose_counting_was_interrupted_is_put_right(late):
    account, root = Account(), np.zeros(1000, np.uint8)
    storage = storage_of(account, root)
    if late:  # known, and its bytes are not added yet
        account.on_event = lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt)
    else:
        account._refs = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        account.count(root, storage, metered=False)
    account._refs, account.on_event = dict(account._refs), lambda *arguments: None
    account.recount()
    assert account.near_bytes() == (1000 if late else 0)
    del root, storage
    account.recount()
    assert account.near_bytes() == 0
