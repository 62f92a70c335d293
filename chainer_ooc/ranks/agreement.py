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
its last plan stays. Programs without a communicator of ChainerMN's of all ranks, and MPIs that were begun for fewer
threads than use them, have no messages.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: So many keys are known at most, the least recently used is forgotten first. A session has 64 graphs.
KEYS = 256

#: Whatever pickles, under a key; and `Messages.rank` of its sender.
Message = tuple[str, Any]


class Messages:
    """Messages between the managers of several ranks, for which no rank ever waits: those of one process.

    A message is on its way as soon as it is posted, and is taken when its receiver looks next: at an iteration's edge.
    A rank that looks never again, as it has ended, evaluates or trains without out-of-core, keeps nobody waiting. To
    each rank at most one message is on its way; of those behind it the newest of each key is kept, so that they do not
    pile up.

        post   isend, or put behind the one that is on its way
        take   test what is on its way; improbe, irecv; give what has arrived, in the order in which it came

    Args:
        comm: of mpi4py, of all ranks, on which nothing else is sent.

    Attributes:
        rank: of this one.
    """

    def __init__(self, comm: Any):
        self.rank: int = comm.rank
        self._comm = comm
        self._waiting: dict[int, dict[str, Message]] = {}  # by receiver and key
        self._on_their_way: dict[int, Any] = {}
        self._arriving: deque[Any] = deque()

    def post(self, receiver: int, message: Message) -> None:
        """Sends a message as soon as the one before it is over, in place of an older one of the same key."""
        self._waiting.setdefault(receiver, {})[message[0]] = message
        self._go_on(receiver)

    def take(self) -> list[Message]:
        """Goes on with what is to be sent; gives what has arrived."""
        for receiver in list(self._waiting):
            self._go_on(receiver)
        while (found := self._comm.improbe()) is not None:
            self._arriving.append(found.irecv())
        taken = []
        while self._arriving:
            is_there, message = self._arriving[0].test()
            if not is_there:
                break
            taken.append(message)
            self._arriving.popleft()
        return taken

    def _go_on(self, receiver: int) -> None:
        """Sends what waits for a receiver, one after the other."""
        waiting = self._waiting[receiver]
        while waiting and (receiver not in self._on_their_way or self._on_their_way[receiver].test()[0]):
            self._on_their_way[receiver] = self._comm.isend(waiting.pop(next(iter(waiting))), receiver)
        if not waiting:
            del self._waiting[receiver]


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


def communicator() -> Any:
    """What this process may send on now, or None: there is none, it is a parent's, or MPI has ended.

    It is a duplicate that ChainerMN's first communicator of all ranks has made (patch 0053).
    """
    seam, mpi = sys.modules.get('chainer._ooc'), sys.modules.get('mpi4py.MPI')
    if seam is None or seam.messages is None or mpi is None:
        return None
    comm, process = seam.messages
    if process != os.getpid() or mpi.Is_finalized():
        return None
    threads = mpi.Query_thread()
    return comm if threads == mpi.THREAD_MULTIPLE or (
        threads < mpi.THREAD_SERIALIZED and mpi.Is_thread_main()) else None


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
