"""Which of the plans that ranks have made for the same graph all of them follow, without any of them waiting.

Each rank plans by itself at first, and offers its plan to rank 0, which keeps the one that is made for the least room:
it is likeliest to fit everywhere. Of equals it is that of the lowest rank. All ranks that have offered one for the same
key are told, now and whenever it is replaced::

    rank 1                      rank 0                        rank 2
    offer(key, 500, a) ------>  the plan is a of rank 1
                                offer(key, 500, b)
                                the plan is b of rank 0
    told b of rank 0   <------
                                the plan is c of rank 2  <--  offer(key, 300, c)
    told c of rank 2   <------  told c of rank 2       ---->  told that c holds

The rank whose plan it is plans anew when its times say so, and offers that. A rank that cannot use what it is told
follows its own. Nothing here knows what a plan is. Left out: a rank whose plan it is and that trains the graph no more;
its last plan stays.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chainer_ooc.ranks.messages import Messages, communicator

#: So many keys are known at most, the least recently used is forgotten first. A session has 64 graphs.
KEYS = 256


class Offer(NamedTuple):
    """A plan and whose it is.

    Attributes:
        room_bytes: what it is made for.
        rank: that has made it.
        plan: what pickles, and can be compared.
    """

    room_bytes: int
    rank: int
    plan: Any


class Agreement:
    """What one rank has offered and was told.

    Args:
        post: carries messages; where all of them are lost each rank goes on with its own plan.
    """

    def __init__(self, post: Messages):
        self._post = post
        self._told: OrderedDict[str, Offer] = OrderedDict()
        self._directory = _Directory() if post.rank == 0 else None

    @property
    def rank(self) -> int:
        """Of this process."""
        return self._post.rank

    def look(self) -> None:
        """Takes what has arrived, and goes on with what is to be sent."""
        for key, offer in self._post.take():
            self._take(key, Offer(*offer))

    def offer(self, key: str, room_bytes: int, plan: Any) -> None:
        """Offers a plan of this rank's own for a key, in place of the one before."""
        offer = Offer(room_bytes, self.rank, plan)
        if self._directory is None:
            self._post.post(0, (key, tuple(offer)))
        else:
            self._take(key, offer)

    def told(self, key: str) -> Offer | None:
        """The plan that holds for all ranks, as far as this one knows; None if it was told of none."""
        return self._told.get(key)

    def forget(self) -> None:
        """Forgets what this rank was told; it is told again when it offers something."""
        self._told.clear()

    def _take(self, key: str, offer: Offer) -> None:
        """A message: to rank 0 it is an offer, to others what holds."""
        if self._directory is None:
            self._note(key, offer)
            return
        holds, ranks = self._directory.file(key, offer)
        for rank in ranks:
            if rank == self.rank:
                self._note(key, holds)
            else:
                self._post.post(rank, (key, tuple(holds)))

    def _note(self, key: str, offer: Offer) -> None:
        if self._told.get(key) != offer:
            self._told[key] = offer
        _keep_latest(self._told, key)


@dataclass
class _Entry:
    """Of one key.

    Attributes:
        holds: the plan for all.
        ranks: those that are told.
    """

    holds: Offer
    ranks: set[int] = field(default_factory=set)


class _Directory:
    """What rank 0 knows of all."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def file(self, key: str, offer: Offer) -> tuple[Offer, list[int]]:
        """Adds an offer; gives the one that holds now, and which ranks have to be told."""
        entry = self._entries.setdefault(key, _Entry(offer))
        _keep_latest(self._entries, key)
        entry.ranks.add(offer.rank)
        if offer.rank != entry.holds.rank and offer[:2] > entry.holds[:2]:
            return entry.holds, [offer.rank]
        entry.holds = offer
        return offer, sorted(entry.ranks)


def _keep_latest(known: OrderedDict[str, Any], key: str) -> None:
    known.move_to_end(key)
    if len(known) > KEYS:
        known.popitem(last=False)


_agreement: Agreement | None = None


def agreement() -> Agreement | None:
    """That of this process; None while it has no other ranks to speak to."""
    global _agreement
    comm = communicator()
    if comm is None:
        return None
    if _agreement is None:
        _agreement = Agreement(Messages(comm))
    return _agreement


def forget() -> None:
    """See `Agreement.forget`; nothing where there is none."""
    if _agreement is not None:
        _agreement.forget()
