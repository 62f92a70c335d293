"""Where the blocks of an iteration were, so that those of the next one like it go there too.

Iterations under one plan ask for the same sizes in the same order, and what lives at a request lived there in the one
before. If all blocks until then are where they were, the chunks that are idle now were idle then: a block that goes to
where it was finds its own behind it, unless another block has had its addresses since, with other chunks. That one goes
to addresses that no block had yet, with whatever is idle, and finds the same chunks idle there the next time. So after
a few iterations no chunk is moved any more::

    addresses     0         8         16        24
    iteration 1   [a: 1 2  ][b: 3 4  ]                     a is freed, c comes, whose fourth chunk b has
                  [c: 1 2 . . ]                            chunks 5 6 come behind its end; b is freed, d needs 3 4
    iteration 2   [a: 1 2  ][b lacks 3 and 4]              b goes to 16, with 3 and 4
    iteration 3   [a: 1 2  ]          [b: 3 4  ]           nothing is mapped

Requests of one size are told apart by their order alone: a copy that ends earlier or later puts requests of different
sizes in another order. What is remembered is only a hint: where a block cannot be where it was, it goes elsewhere.

Left out: which blocks a plan will ask for; what has run once says it.
"""

from __future__ import annotations

from collections.abc import Hashable

from chainer_ooc.backends.cuda.allocators.space import Space

#: In so many iterations blocks go to new addresses. Where chunks still move then, requests come in another order each
#: time, and new addresses would have more of them moved.
MOST_TRIES = 8

#: So many kinds of iterations are remembered, and so many requests of one: an evaluation may make any number.
MOST_KINDS = 16
MOST_REQUESTS = 1 << 14

_Key = tuple[int, int]  # a stream's address, and a size


class _Iteration:
    """Where blocks were, in the order of requests of each size."""

    def __init__(self, tries: int = 0) -> None:
        self.places: dict[_Key, list[tuple[Space, int]]] = {}
        self.requests = 0
        self.tries, self.is_try = tries, False


class Repeats:
    """See the module."""

    def __init__(self) -> None:
        self._kind: Hashable = None
        self._others: dict[Hashable, _Iteration] = {}
        self._before, self._now = _Iteration(), _Iteration()

    def begin(self, kind: Hashable) -> None:
        """An iteration begins, which is like the last one of the same kind."""
        if self._kind is not None:
            self._others[self._kind] = self._now
        self._before = self._others.pop(kind, _Iteration())
        while len(self._others) >= MOST_KINDS:
            del self._others[next(iter(self._others))]
        self._kind, self._now = kind, _Iteration(self._before.tries + self._before.is_try)

    def last_place(self, key: _Key) -> tuple[Space, int] | None:
        """Where the block of this request was, if there was one."""
        known, now = self._before.places.get(key), self._now.places.get(key)
        at = len(now) if now else 0
        return known[at] if known is not None and at < len(known) else None

    def may_try(self) -> bool:
        """Whether a block may go to new addresses; notes that one does."""
        self._now.is_try = self._now.tries < MOST_TRIES
        return self._now.is_try

    def note(self, key: _Key, place: tuple[Space, int]) -> None:
        """The next request has its block there."""
        now = self._now
        if self._kind is None or now.requests >= MOST_REQUESTS:
            return
        now.requests += 1
        places = now.places.get(key)
        if places is None:
            places = now.places[key] = []
        places.append(place)

    def forget(self) -> None:
        """Addresses may be given back."""
        self._others.clear()
        self._before, self._now = _Iteration(), _Iteration(self._now.tries)
