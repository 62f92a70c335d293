"""How many ranks share this machine's memory, disk and cores.

Two places tell it, and neither asks another rank: the environment that a launcher sets, from the start on, and the
communicators of ChainerMN, each of which begins with an exchange of host names (patch 0051). The larger number holds,
as a communicator may be of some ranks only.

Left out: launchers that set no variable, until there is a communicator; programs that have nothing to do with this one;
two ranks in containers with host names of their own, which take each other's memory for free.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

#: What launchers call the number of ranks on this machine, and the number of this one: MPICH and Intel MPI, Open MPI,
#: MVAPICH.
VARIABLES = (('MPI_LOCALNRANKS', 'MPI_LOCALRANKID'), ('OMPI_COMM_WORLD_LOCAL_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK'),
             ('MV2_COMM_WORLD_LOCAL_SIZE', 'MV2_COMM_WORLD_LOCAL_RANK'))


@dataclass(frozen=True)
class Node:
    """The ranks on this machine.

    Attributes:
        ranks: how many, at least 1.
        rank: the number of this one among them, from 0 on.
    """

    ranks: int = 1
    rank: int = 0


def node() -> Node:
    """Returns what is known now; it may grow when a communicator is made."""
    at_start, told = _at_start(), _told()
    return told if told.ranks > at_start.ranks else at_start


def share(nbytes: int) -> int:
    """Returns a rank's part of so many bytes of this machine."""
    return nbytes // node().ranks


@functools.cache
def _at_start() -> Node:
    """What the launcher of this process has said, which in a container each computation asks for."""
    return launched(os.environ)


def launched(environment: Mapping[str, str]) -> Node:
    """What a launcher says in the environment; one rank where none does, or where it cannot be read."""
    for size, rank in VARIABLES:
        ranks, number = environment.get(size, ''), environment.get(rank, '0')
        if ranks.isdecimal() and number.isdecimal() and int(number) < int(ranks):
            return Node(int(ranks), int(number))
    return Node()


def _told() -> Node:
    """What communicators of ChainerMN have said, where Chainer was imported."""
    seam = sys.modules.get('chainer._ooc')
    return Node() if seam is None else Node(*seam.node)
