"""How busy a processing unit is whose data comes from far memory, if all of its work is of one kind.

The paper's symbols and ours. A *buffer* is any unit of data; far and near memory and the connection between them each
move so many of them a second::

    ProcTh, ProcL, Procutil    work_per_second, work_latency_seconds, utilisation
    Num_avail, SwapinTh        available_buffers, swap_in_per_second

Time goes in steps. What the unit may work on in one is what lay in near memory at its beginning::

    Num_avail  4 -> 3.5 -> 3 -> 2.5 -> 2 -> 1.5 -> 1 -> 0.5 -> 0.5       ProcTh 1 and SwapinTh 0.5 a step
    Procutil      1     1    1      1    1      1    1     0.5

Source: OOC-Paleo 3.3 (equations 1 to 6). What differs is said where it does. Layers that are not alike, and whole
iterations: `paleo_formulas`.
"""

from __future__ import annotations


def concurrency(latency_seconds: float, buffers_per_second: float) -> float:
    """Little's law: the buffers that are on their way through a unit at once.

    Args:
        latency_seconds: what one buffer takes.
        buffers_per_second: the throughput.
    """
    return latency_seconds * buffers_per_second


def utilisation(available_buffers: float, work_per_second: float, work_latency_seconds: float) -> float:
    """Procutil, the share of its throughput that the processing unit reaches, 0 to 1 (equations 1 and 2).

    Args:
        available_buffers: Num_avail(Tj), the buffers in near memory. What the unit has no place for waits, which
            equation 2 leaves unsaid: the concurrency is never above the full one.
        work_per_second: ProcTh in buffers a second.
        work_latency_seconds: ProcL.
    """
    return min(1.0, available_buffers / concurrency(work_latency_seconds, work_per_second))


def swap_in_per_second(far_per_second: float, near_per_second: float, connection_per_second: float) -> float:
    """SwapinTh, the throughput of swap-ins: that of the slowest on their way (equation 5); all in one unit."""
    return min(far_per_second, near_per_second, connection_per_second)


def balance(available_buffers: float, work_per_second: float, swap_in_per_second: float, seconds: float) -> float:
    """Num_avail after a time step if it never lacks anything and memory has no end (equation 3).

    Args:
        available_buffers: Num_avail before it.
        work_per_second: ProcTh in buffers a second.
        swap_in_per_second: SwapinTh, likewise.
        seconds: T, how long the step lasts.
    """
    return available_buffers + (swap_in_per_second - work_per_second) * seconds


def available_after(available_buffers: float, work_per_second: float, swap_in_per_second: float, seconds: float,
                    capacity_buffers: float = float('inf')) -> float:
    """Num_avail after a time step (equation 6; equation 4 if the capacity has no end).

    The memory that the step's own work frees is taken from the next step on: equation 6 subtracts what was there before
    it. A swap-in of execution begins at the edge of a computation too.

    Args:
        available_buffers: Num_avail before it.
        work_per_second: ProcTh in buffers a second.
        swap_in_per_second: SwapinTh, likewise.
        seconds: T, how long the step lasts.
        capacity_buffers: how many near memory holds.
    """
    left = max(available_buffers - work_per_second * seconds, 0.0)
    return left + min(swap_in_per_second * seconds, capacity_buffers - available_buffers)
