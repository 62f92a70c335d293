"""What each rank has, for `doctor` under mpiexec: all ranks run the command, and rank 0 says what they found."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from chainer_ooc.errors import OocError
from chainer_ooc.quantities import counted, format_bytes
from chainer_ooc.ranks import threads
from chainer_ooc.ranks.node import node
from chainer_ooc.report.table import Column, Table


def gather(device: Mapping[str, Any], problems: Sequence[str]) -> dict[str, Any]:
    """Exchanges what each rank has found of its device, if anything, and its problems; collective.

    Returns:
        On rank 0 the findings by rank under ``each``, and warnings; on the others None under ``each``.

    Raises:
        ImportError, RuntimeError: mpi4py, or an MPI for it, is missing.
        OocError: mpi4py has loaded another MPI than that of the launcher.
    """
    from mpi4py import MPI

    names = ('budget_bytes', 'budget_limit', 'spill_folder', 'spill_free_bytes')
    each: list[dict[str, Any]] | None = MPI.COMM_WORLD.gather({
        'machine': platform.node(), 'rank_of_machine': node().rank, 'ranks_of_machine': node().ranks,
        'cores': threads.own_cores(), **{name: device.get(name) for name in names}, 'problems': list(problems)})
    if each is not None and len(each) < node().ranks:
        launcher = os.path.join(os.path.dirname(sys.executable), 'mpiexec')
        raise OocError(
            f'the launcher has started {counted(node().ranks, "rank")} on this machine, and mpi4py sees {len(each)} of '
            f'them, as it has loaded another MPI: start with the mpiexec of that, such as {launcher}, or name the '
            'other with MPI4PY_MPIABI or MPI4PY_LIBMPI')
    warning = threads.here()
    return {'each': each, 'warnings': [warning] if each and warning else []}


def problems_of_others(each: Sequence[Mapping[str, Any]]) -> list[str]:
    """The problems of all ranks but the first, whose own are known."""
    return [f'rank {rank}: {problem}' for rank, facts in enumerate(each) if rank for problem in facts['problems']]


def table(each: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each rank."""
    rows = [{**facts, 'rank': rank, 'here': f'{facts["rank_of_machine"] + 1} of {facts["ranks_of_machine"]}',
             'budget': _amount(facts['budget_bytes']), 'spill': _amount(facts['spill_free_bytes'])}
            for rank, facts in enumerate(each)]
    return Table([Column('rank', 'rank'), Column('machine', 'machine'), Column('here', 'of the machine'),
                  Column('cores', 'cores'), Column('budget', 'budget by default'), Column('budget_limit', 'set by'),
                  Column('spill', 'spill space')], rows, 'ranks')


def _amount(nbytes: int | None) -> str:
    return 'unknown' if nbytes is None else format_bytes(nbytes)
