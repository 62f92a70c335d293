"""The swap-ins of an iteration: those that its plan says; without one, those that backward probably wants next."""

from __future__ import annotations

from collections.abc import Sequence

from chainer_ooc.execute.following import Following
from chainer_ooc.execute.residency import Residency
from chainer_ooc.execute.room import Room
from chainer_ooc.execute.seen import Register
from chainer_ooc.execute.states import State

#: While a graph is unknown, the maps of so many calls before the current one are on their way in backward, if near
#: memory has room for so many times their size: what the calls themselves allocate is not known yet.
LOOK_AHEAD_CALLS = 3
LOOK_AHEAD_ROOM = 8


class LookAhead:
    """Starts swap-ins in backward.

    Args:
        memory: where they go.
        following: the graph, and its plan.
        register: finds a map's storage; its recorder says where the iteration stands.
        retained: for each call, the maps that it retained; it grows.
        room: knows what stands beside the maps.
    """

    def __init__(self, memory: Residency, following: Following, register: Register, retained: Sequence[Sequence[int]],
                 room: Room):
        self._memory = memory
        self._following = following
        self._register = register
        self._recorder = register.recorder
        self._retained = retained
        self._room = room

    def start(self) -> None:
        """Starts those whose time has come."""
        if self._following.graph is None:
            self._start_probable()
        else:
            self._start_due()

    def _start_due(self) -> None:
        position = self._recorder.next_position
        if self._following.due(position) is None:
            return
        step = self._following.step_at(len(self._recorder.steps))
        ahead_bytes = self._room.ahead_bytes(step) if step is not None else 0
        while (swap_in := self._following.due(position)) is not None:
            storage = self._register.storage(swap_in.map)
            if storage is not None and swap_in.use >= position and not (
                    self._memory.can_come(storage, ahead_bytes) and storage.memory.prefetch(storage)):
                return
            self._following.started()

    def _start_probable(self) -> None:
        """Those of the calls before the latest one, which may be a function of none of these (-1)."""
        latest = self._recorder.steps[-1].call if self._recorder.steps else len(self._recorder.calls)
        for call in range(latest - 1, max(latest - 1 - LOOK_AHEAD_CALLS, -1), -1):
            for map_id in self._retained[call]:
                storage = self._register.storage(map_id)
                if storage is None or storage.state is not State.AWAY or storage.pending_uses <= 0:
                    continue
                if self._memory.has_room(LOOK_AHEAD_ROOM * storage.nbytes):
                    storage.memory.prefetch(storage)
