"""Messages between the managers of several ranks, for which no rank ever waits.

A message is on its way as soon as it is posted, and is taken when its receiver looks next: at an iteration's edge. A
rank that looks never again, as it has ended, evaluates or trains without out-of-core, keeps nobody waiting. To each
rank at most one message is on its way; of those behind it the newest of each key is kept, so that they do not pile up.

    post   isend, or put behind the one that is on its way
    take   test what is on its way; improbe, irecv; give what has arrived, in the order in which it came

The communicator is a duplicate that ChainerMN's first communicator of all ranks has made (patch 0053), on which nothing
else is sent. Left out: programs without such a communicator, and MPIs that were begun for fewer threads than use them.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import Any

#: Whatever pickles, under a key; and `Messages.rank` of its sender.
Message = tuple[str, Any]


class Messages:
    """Those of one process.

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


def communicator() -> Any:
    """The duplicate on which this process may send now, or None: there is none, it is a parent's, or MPI has ended."""
    seam, mpi = sys.modules.get('chainer._ooc'), sys.modules.get('mpi4py.MPI')
    if seam is None or seam.messages is None or mpi is None:
        return None
    comm, process = seam.messages
    if process != os.getpid() or mpi.Is_finalized():
        return None
    threads = mpi.Query_thread()
    return comm if threads == mpi.THREAD_MULTIPLE or (
        threads < mpi.THREAD_SERIALIZED and mpi.Is_thread_main()) else None
