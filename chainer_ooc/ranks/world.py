"""One value of each rank, for commands that all ranks run: the only exchange that this package begins itself."""

from __future__ import annotations

from typing import Any


def gather(value: Any) -> list[Any] | None:
    """Returns the value of each rank on rank 0, in the order of the ranks, and None on the others; collective.

    Raises:
        ImportError, RuntimeError: there is no mpi4py, or no MPI that it can load.
    """
    from mpi4py import MPI

    values: list[Any] | None = MPI.COMM_WORLD.gather(value)
    return values
