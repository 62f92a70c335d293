"""A count that tells of each malloc and free as they are booked: the order of events, as budgets see them."""
from chainer_ooc.backends.cuda.allocators.ledger import Count


class Told(Count):
    """Tells a listener 'malloc' or 'free' and the bytes, on the thread that books: a free before the next malloc."""

    def __init__(self, listener, live=None):
        super().__init__()
        self._listener, self._live = listener, live

    def total(self):
        """The bytes of all that lives, after all that has ended was told."""
        return self._live.total_of(self)

    def add(self, end):
        super().add(end)
        self._listener('malloc', end.size_bytes)

    def drop(self, end):
        if self.has(end):
            self._listener('free', end.size_bytes)
        super().drop(end)


def listen(budget, listener):
    """Has `listener` told of what a budget gives from now on; returns the count that tells it."""
    count = Told(listener, budget.live)
    budget.live.count_in(count)
    return count
