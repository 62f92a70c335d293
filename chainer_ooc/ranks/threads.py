"""Whether the ranks of this machine compute in more threads than it has cores.

Threads of a computation wait for each other at its end, and spin while they do. With more of them than cores the ones
that are waited for do not run: two ranks of two threads each took twelve times as long on two cores as with one thread.

Left out: two ranks that a launcher has bound to the same cores, and libraries that are told their threads otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from chainer_ooc.quantities import counted
from chainer_ooc.ranks.node import Node, node
from chainer_ooc.warning import warn as warn_the_program

#: What OpenMP and the BLAS libraries read; the first that is set counts.
VARIABLES = ('OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS', 'OMP_NUM_THREADS')


class ThreadsWarning(UserWarning):
    """Ranks compute in more threads than there are cores."""


def advice(on: Node, environment: Mapping[str, str], own_cores: int, cores: int) -> str:
    """What to do about too many threads; '' where there are not too many.

    Args:
        on: the ranks of this machine.
        environment: of this rank.
        own_cores: on how many cores this rank may run.
        cores: of the machine.
    """
    threads = next((int(value) for name in VARIABLES if (value := environment.get(name, '')).isdecimal()), own_cores)
    usable = max(own_cores, min(cores, own_cores * on.ranks))  # a launcher may have bound each rank to cores of its own
    if on.ranks == 1 or threads * on.ranks <= usable:
        return ''
    return (f'{counted(on.ranks, "rank")} on this machine compute in {counted(threads, "thread")} each and have '
            f'{counted(usable, "core")}, so that threads wait for each other, many times as long as they compute; '
            + (f'start at most {counted(usable, "rank")} here' if threads == 1 else
               f'export OMP_NUM_THREADS={max(1, usable // on.ranks)} before mpiexec'))


def here() -> str:
    """`advice` for this rank."""
    return advice(node(), os.environ, own_cores(), os.cpu_count() or 1)


def own_cores() -> int:
    """Returns on how many cores this process may run."""
    return len(os.sched_getaffinity(0))


def warn() -> None:
    """Warns of too many threads, on the first rank of a machine alone."""
    told = here() if node().rank == 0 else ''
    if told:
        warn_the_program(told, ThreadsWarning)
