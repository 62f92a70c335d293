"""What a program is told when the system refuses memory: what holds it, and the next step.

In the midst of a computation that is an error of our own. Outside of functions, where nothing can leave for an array,
NumPy's error stays what it is; if nothing catches it, the program's last line says what it means.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from chainer_ooc.config import Settings
from chainer_ooc.errors import DeviceMemoryError, InfeasibleBudgetError, OocError
from chainer_ooc.execute.graphs.graphs import UNDER_WAY
from chainer_ooc.execute.iteration.iteration import Iteration
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.recording.registration import name_of
from chainer_ooc.execute.storage.reentry import LOCK
from chainer_ooc.execute.storage.states import State
from chainer_ooc.quantities import format_bytes

_LIMITS = "ulimit -d, ulimit -v, the container's"

_advises = False


def explain(error: BaseException, function: Any, in_backward: bool, iteration: Iteration, memory: Residency,
            parameters: Parameters) -> OocError | None:
    """Returns the error to raise from one that left a computation; None if that one says enough.

    It may take seconds, as the refusal of a budget counts all that is known to come.

    Args:
        error: what was raised.
        function: what ran.
        in_backward: whether it was its step.
        iteration: that it was of.
        memory: as it was then.
        parameters: those that are known; in a first iteration the memory has not counted them yet.
    """
    settings, following, budget_bytes = iteration.settings, iteration.following, memory.budget_bytes
    where = '' if iteration.quiet is not None else following.name_of(iteration.recorder.next_position)
    where = where or f'{"backward" if in_backward else "forward"} of {name_of(function)}'
    if isinstance(error, DeviceMemoryError):
        if budget_bytes is None or error.floor_bytes <= budget_bytes:
            return None
        with LOCK:
            return following.refusal(InfeasibleBudgetError(
                settings.policy, budget_bytes, error.floor_bytes, where, doubt=UNDER_WAY))
    wanted_bytes = getattr(error, '_total_size', None)  # of NumPy's error for an array
    if wanted_bytes is None:
        return None
    held, small_bytes = what_holds(memory, parameters, settings)
    steps = ['lower the batch size']
    if small_bytes:
        steps.append(f'lower ooc_min_bytes (is {format_bytes(settings.min_bytes)})')
    if settings.workspace_bytes is None:
        steps.append("set chainer.config.ooc_workspace (such as '32MB')")
    return DeviceMemoryError(
        f'the system refuses {format_bytes(wanted_bytes)} for an array in {where}, and nothing more can be evicted '
        f"({held}); {', '.join(steps)} or raise the limit ({_LIMITS})",
        memory.near_bytes() + wanted_bytes)


def explain_outside(error: MemoryError, held: str = 'no function has run yet') -> str | None:
    """Returns the line for an error outside of functions, with what holds memory; None if it is no refused array's."""
    wanted_bytes = getattr(error, '_total_size', None)
    if wanted_bytes is None and error.args:
        return None
    wanted = 'memory' if wanted_bytes is None else f'{format_bytes(wanted_bytes)} for an array'
    return (f'chainer_ooc: the system refuses {wanted}, and no feature map can leave for it here ({held}); raise the '
            f'limit ({_LIMITS}), or take a smaller model, an optimizer with less state, or data in parts')


def advise_on_errors(explain_error: Callable[[MemoryError], str | None]) -> None:
    """Has uncaught errors for want of memory end with a line of advice from now on; idempotent.

    Args:
        explain_error: gives the line, or None where there is nothing to say.
    """
    global _advises
    if _advises:
        return
    before, _advises = sys.excepthook, True

    def advise(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            before(kind, error, trace)
        finally:
            line = explain_error(error) if isinstance(error, MemoryError) and not isinstance(error, OocError) else None
            if line is not None:
                print(line, file=sys.stderr, flush=True)
    sys.excepthook = advise


def what_holds(memory: Residency, parameters: Parameters, settings: Settings) -> tuple[str, int]:
    """Returns what holds memory, in words, and the bytes of maps that are too small to leave."""
    resident = [each.nbytes for each in memory.storages() if each.state is State.RESIDENT]
    large_bytes = sum(nbytes for nbytes in resident if nbytes >= settings.min_bytes)
    small_bytes = sum(resident) - large_bytes + memory.bytes_alone()
    beside_bytes = max(memory.beside_bytes, parameters.beside().total_bytes)
    held = [f'{format_bytes(beside_bytes)} parameters, gradients, optimizer state and scratch',
            f'{format_bytes(large_bytes)} feature maps']
    if small_bytes:
        held.append(f'{format_bytes(small_bytes)} maps smaller than chainer.config.ooc_min_bytes, which stay')
    return f"in memory: {', '.join(held)}", small_bytes
