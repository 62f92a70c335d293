"""What a program is told when a computation got no memory, in the midst of it: what holds memory, and the next step."""

from __future__ import annotations

from chainer_ooc.config import Settings
from chainer_ooc.errors import DeviceMemoryError, InfeasibleBudgetError, OocError
from chainer_ooc.execute.iteration.room import UNDER_WAY
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.storage.states import State
from chainer_ooc.quantities import format_bytes


def explain(error: BaseException, where: str, memory: Residency, parameters: Parameters, settings: Settings
            ) -> OocError | None:
    """Returns the error to raise from one that left a computation; None if that one says enough.

    Args:
        error: what was raised.
        where: what ran.
        memory: as it was then.
        parameters: those that are known; in a first iteration the memory has not counted them yet.
        settings: of the iteration.
    """
    budget_bytes = memory.context.budget_bytes
    if isinstance(error, DeviceMemoryError):
        if budget_bytes is None or error.floor_bytes <= budget_bytes:
            return None
        return InfeasibleBudgetError(settings.policy, budget_bytes, error.floor_bytes, where, doubt=UNDER_WAY)
    wanted_bytes = getattr(error, '_total_size', None)  # of NumPy's error for an array
    if wanted_bytes is None:
        return None
    resident = [each.nbytes for each in memory.storages() if each.state is State.RESIDENT]
    small_bytes = sum(nbytes for nbytes in resident if nbytes < settings.min_bytes)
    beside_bytes = max(memory.beside_bytes, parameters.beside().total_bytes)
    held = [f'{format_bytes(beside_bytes)} parameters, gradients, optimizer state and scratch',
            f'{format_bytes(sum(resident) - small_bytes)} feature maps']
    steps = ['lower the batch size']
    if small_bytes:
        held.append(f'{format_bytes(small_bytes)} maps smaller than chainer.config.ooc_min_bytes, which stay')
        steps.append(f'lower ooc_min_bytes (is {format_bytes(settings.min_bytes)})')
    if settings.workspace_bytes is None:
        steps.append("set chainer.config.ooc_workspace (such as '32MB')")
    return DeviceMemoryError(
        f'the system refuses {format_bytes(wanted_bytes)} for an array in {where}, and nothing more can be evicted (in '
        f"memory: {', '.join(held)}); {', '.join(steps)} or raise the limit (ulimit -d, ulimit -v, the container's)",
        memory.near_bytes() + wanted_bytes)
