"""A ledger that tells of each malloc and free as it books them: the order of events, as budgets see them."""
import collections

from chainer_ooc.backends.cuda.allocators.ledger import Ledger


class ToldLedger(Ledger):
    """Tells a listener 'malloc' or 'free' and the bytes, on the thread that books.

    A free is told before the next malloc, or when somebody asks for the sum.
    """

    def __init__(self, listener):
        super().__init__()
        self._listener = listener
        self._lowered = _Lowered(listener)

    def add(self, nbytes, limit_bytes=None):
        with self._lock:
            added = super().add(nbytes, limit_bytes)
            if added:
                self._listener('malloc', nbytes)
            return added


class _Lowered(collections.deque):
    def __init__(self, listener):
        super().__init__()
        self._listener = listener

    def popleft(self):
        nbytes = super().popleft()
        self._listener('free', nbytes)
        return nbytes


def listen(budget, listener):
    """Has `listener` told of what a budget gives from now on; returns the ledger that tells it."""
    ledger = ToldLedger(listener)
    budget.ledgers.count_in(ledger)
    return ledger
