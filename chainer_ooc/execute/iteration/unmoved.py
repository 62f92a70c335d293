"""Calls and steps that touch only what never moves: compared, counted, and else as in plain Chainer.

A block that is smaller than ``ooc_min_bytes`` never leaves, by no plan and however short memory is. It needs no
storage: nobody has to know which slots hold it. It is counted, and a call that touches only such ones, beside
parameters, is only compared with its recording::

    position          0     1     2     3     4     5     6     7          F ...
    touches           big   big   small small small big   small small
    goes through      all   all   here  here  here  all   here  here

All that is at work around a call is looked at first; where anything is, the call goes through all of it
(`iteration`), as does one that differs, and one at which another known graph parts from this one. What comes to such a
call from one that was only counted gets its storage then, as the map that it was counted as.

An iteration that moves nothing at all, and where all fits, does not even count (`quiet`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

from chainer_ooc.execute.functions.prototype import may_write_inputs
from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.graphs.graph import Graph
from chainer_ooc.execute.iteration.beside import BesideMaps
from chainer_ooc.execute.iteration.comparison import Calls, Comparison, given_to, gives, made_by
from chainer_ooc.execute.iteration.liveness import Liveness
from chainer_ooc.execute.iteration.room import Room
from chainer_ooc.execute.iteration.writes import Writes
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.other_threads import OtherThreads
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.recording.recorder import Span
from chainer_ooc.execute.recording.registration import Register
from chainer_ooc.execute.storage.storage import Storage
from chainer_ooc.trace import Call, Step


class Unmoved:
    """The calls and steps of an iteration that touch only what never moves.

    `look_around` books what ended since the last computation; its argument is the position.
    """

    def __init__(self, graph: Graph, parameters: Parameters, calls: Calls, following: Following, register: Register,
                 memory: Residency, beside: BesideMaps, room: Room, writes: Writes, liveness: Liveness,
                 look_around: Callable[[int], None]):
        self._comparison = Comparison(parameters, calls)
        self._sessions_made = OtherThreads.made
        self._calls, self._trace, self._orders = calls, graph.trace, following.orders
        self._following, self._register, self._recorder = following, register, register.recorder
        self._memory, self._beside, self._room, self._writes = memory, beside, room, writes
        self._liveness, self._look_around = liveness, look_around
        self._call: Call | None = None
        self._step: Step | None = None
        self._counted: set[int] = set()  # the calls that were such ones
        self._is_over = False

    def begins_call(self, function: Any, inputs: Sequence[Any]) -> bool:
        """Whether a call that is about to run is such a one; makes room for it then."""
        position, self._call = self._recorder.next_position, None  # the last one may have failed
        if not self._goes_on() or position not in self._orders.unmoved or position >= len(self._trace.calls):
            return False
        call = self._trace.calls[position]
        if (self._following.parting(position) or may_write_inputs(function)
                or not self._comparison.is_call(function, inputs, self._trace, position)):
            return False
        if self._begins(call.other_bytes, call.peak_bytes):
            self._call = call
        return self._call is not None

    def ends_call(self, function: Any, inputs: Sequence[Any], outputs: Sequence[Any], span: Span) -> bool:
        """Whether the call that has just run was such a one, and has given what it should; adds it then."""
        call, self._call = self._call, None
        if call is None or not gives(outputs, call) or not self._register.count(call, inputs, outputs):
            return False
        self._calls.add(function)
        self._counted.add(call.index)
        self._recorder.known_call(call, span)
        return True

    def begins_step(self, function: Any) -> bool:
        """Whether a step that is about to run is such a one; makes room for it then."""
        position, number = self._recorder.next_position, self._calls.number(function)
        if not self._goes_on() or number not in self._counted:
            return False
        if position in self._orders.unmoved and position >= len(self._trace.calls):
            step = self._trace.steps[position - len(self._trace.calls)]
            if (step.call == number and not (self._writes.is_looking() or self._beside.has_sums(function))
                    and self._following.due(position) is None
                    and self._begins(self._beside.scratch_of(step, 0), step.peak_bytes)):
                self._step = step
        if self._step is None:
            self._register_call(number, function)
        return self._step is not None

    def ends_step(self, span: Span) -> bool:
        """Whether the step that has just run was such a one; adds it then."""
        step, self._step = self._step, None
        if step is None:
            return False
        self._recorder.known_step(step, span)
        return True

    def _goes_on(self) -> bool:
        """Whether a plan is still followed, and no other session was made that may be given what has no storage.

        Else all that was only counted, and is alive, gets storages.
        """
        if self._is_over:
            return False
        graph = self._following.graph
        if OtherThreads.made != self._sessions_made or graph is None or not graph.may_be_quiet():
            self._is_over = True
            self._register_calls(self._counted)
        return not self._is_over

    def take_orders(self) -> None:
        """Goes on under another plan: what that may move gets storages."""
        if not self._is_over and (graph := self._following.graph) is not None:
            self._trace, self._orders = graph.trace, self._following.orders
            self._register_calls(self._counted - self._orders.unmoved)

    def _register_calls(self, numbers: Set[int]) -> None:
        """Gives storages to what these calls have made, as far as it is alive; what has stepped waits for no step."""
        stepped = {each.call for each in self._recorder.steps}
        for number, function in self._calls.alive() if numbers else ():
            if number in numbers:
                kept = self._register_call(number, function)
                for storage in kept if number in stepped else ():
                    storage.note_backward()

    def _register_call(self, number: int, function: Any) -> list[Storage]:
        self._counted.discard(number)
        _, kept = self._register.call(function, given_to(function), made_by(function), number)
        self._liveness.read(self._trace.calls[number].inputs)
        return kept

    def _begins(self, other_bytes: int, need_bytes: int) -> bool:
        """Makes room for a computation."""
        self._look_around(self._recorder.next_position)
        if self._room.is_lifted:
            self._room.limit()
        self._beside.stand(other_bytes)
        if not self._memory.make_room(need_bytes):
            return False
        self._recorder.near_bytes.append(self._memory.note_peak(need_bytes))
        return True
