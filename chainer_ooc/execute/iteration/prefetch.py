"""The swap-ins of an iteration: those of its plan; without one, what backward probably reads next."""

from __future__ import annotations

from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.iteration.beside import BesideMaps
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.registration import Register
from chainer_ooc.execute.storage.states import State

#: While a graph is unknown, the maps of so many calls before the current one come early in backward, if near memory has
#: room for so many times their size: what the calls themselves allocate is not known yet.
LOOK_AHEAD_CALLS = 3
LOOK_AHEAD_ROOM = 8


def start_swap_ins(memory: Residency, following: Following, register: Register, beside: BesideMaps) -> None:
    """Starts the swap-ins of backward that are due."""
    if following.graph is None:
        _start_probable(memory, register)
    else:
        _start_due(memory, following, register, beside)


def _start_due(memory: Residency, following: Following, register: Register, beside: BesideMaps) -> None:
    recorder = register.recorder
    position = recorder.next_position
    if following.due(position) is None:
        return
    step = following.step_at(len(recorder.steps))
    ahead_bytes = beside.ahead_bytes(step) if step is not None else 0
    while (swap_in := following.due(position)) is not None:
        storage = register.storage(swap_in.map)
        if storage is not None and swap_in.use >= position and not (
                memory.can_come(storage, ahead_bytes) and storage.memory.prefetch(storage)):
            return
        following.started()


def _start_probable(memory: Residency, register: Register) -> None:
    """Those of the calls before the latest one, which may be a function of none of these (-1)."""
    recorder = register.recorder
    latest = recorder.steps[-1].call if recorder.steps else len(recorder.calls)
    for call in range(latest - 1, max(latest - 1 - LOOK_AHEAD_CALLS, -1), -1):
        for map_id in register.retained[call]:
            storage = register.storage(map_id)
            if (storage is not None and storage.state is State.AWAY and storage.pending_uses > 0
                    and memory.has_room(LOOK_AHEAD_ROOM * storage.nbytes)):
                storage.memory.prefetch(storage)
