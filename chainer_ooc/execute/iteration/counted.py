"""A quiet iteration of a graph that is not known and need not be, see `quiet`: what its calls give is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.graphs.once_only import ROOM_FOR_UNKNOWN, OnceOnly
from chainer_ooc.execute.iteration.compared import Compared, Quiet
from chainer_ooc.execute.memory.budget import LOOK_EVERY
from chainer_ooc.execute.other_threads import OtherThreads
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.recording.registration import makes_graphs


class Counted(Quiet):
    """One of an unknown graph, while what it needs, estimated from the bytes that its calls give, surely fits.

    Left out: what does not fit is not seen before a call has run; where the device knows, it asks for room then.

    Args:
        like: what recorded graphs need.
        beside_bytes: what stands beside its maps.
    """

    def __init__(self, like: OnceOnly, beside_bytes: int, parameters: Parameters, following: Following,
                 has_room: Callable[[int], bool]):
        super().__init__(parameters, following, has_room)
        following.follow_none()
        self._like, self._beside_bytes = like, beside_bytes
        self._granted_bytes = ROOM_FOR_UNKNOWN * like.most_bytes
        self._given_bytes = 0
        self._stepped: set[int] = set()

    @property
    def maps_bytes(self) -> int:
        return self._like.need_bytes(self._given_bytes)

    @property
    def peak_bytes(self) -> int:
        return self._beside_bytes + self.maps_bytes

    def take_over(self, before: Compared) -> None:
        """Goes on where one that was compared has turned out to be of an unknown graph."""
        calls, self.calls = before.graph.trace.calls, before.calls
        self._given_bytes = sum(form.nbytes for call in calls[:len(self.calls.functions)] for form in call.results)
        self.in_backward, self._stepped = before.in_backward, {*before.stepped()}
        self.sessions_made = before.sessions_made

    def expects_call(self, function: Any, inputs: Sequence[Any]) -> bool:
        """Whether it is one of forward, and all parameters that it is given are in the account."""
        return (not self.in_backward and not self._stepped and OtherThreads.made == self.sessions_made
                and all(self._parameters.number_of(each) is not None for each in inputs
                        if hasattr(each, 'update_rule')))

    def note_call(self, function: Any, outputs: Sequence[Any]) -> bool:
        """Adds a call; False if what it gave is too much, or the device has little room left."""
        self.calls.add(function)
        self._given_bytes += sum([each._data[0].nbytes for each in outputs])
        need_bytes = self._like.need_bytes(self._given_bytes)
        if need_bytes > self._granted_bytes:
            self._granted_bytes = ROOM_FOR_UNKNOWN * need_bytes
            return self._has_room(self._granted_bytes)
        return len(self.calls.functions) % LOOK_EVERY > 0 or self._has_room(self._like.computing_bytes)

    def expects_step(self, function: Any) -> bool:
        """Whether it is of one of its calls, and makes no graph."""
        return (self.calls.number(function) >= 0 and OtherThreads.made == self.sessions_made
                and (bool(self._stepped) or not makes_graphs()))

    def note_step(self, function: Any) -> None:
        self._stepped.add(self.calls.number(function))

    def stepped(self) -> Set[int]:
        return self._stepped
