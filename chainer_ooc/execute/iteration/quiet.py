"""An iteration in which nothing has to leave: its calls and steps run as in plain Chainer.

It needs no storages, accounts or slots, and keeps a weak reference to each function. Of a known graph, whose plan moves
nothing and all of whose maps together fit, what the next call is given and gives is compared with the recording
(`Compared`). At the first difference it may be another known graph that begins like that and moves nothing either.
Where many graphs are known, as of batches of sentences, and an unknown one surely has room, the bytes that calls give
are counted (`Counted`). At another difference, or when the device has no room after all, all calls and steps that are
still alive are registered in order, and the iteration goes on like one of an unknown graph.

    call  -> expects_call  -> run -> note_call
    step  -> expects_step  -> run -> note_step
    a difference           -> register_all      after_call, begin_backward, after_step of the iteration, as they come

What has had its last use is not freed, as spare maps are not while nothing needs their room (P6). Left out: arrays that
a call hides, for which such a plan has no orders.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any

from chainer_ooc.config import Settings
from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.graphs.graph import Graph
from chainer_ooc.execute.graphs.graphs import ROOM_FOR_UNKNOWN
from chainer_ooc.execute.iteration.beside import BesideMaps
from chainer_ooc.execute.iteration.compared import MOST_DIFFERENCES, Compared, Counted
from chainer_ooc.execute.iteration.comparison import Calls, given_to, made_by
from chainer_ooc.execute.iteration.left import hand_over_batches
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.other_threads import OtherThreads
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.recording.recorder import Recorder, Span
from chainer_ooc.execute.recording.registration import retained
from chainer_ooc.execute.storage.storage import Storage


class Quietly(abc.ABC):
    """An iteration that may run quietly.

    Attributes:
        quiet: compares what runs, while nothing of it is registered, else None.
        was_quiet: it began so, and went on otherwise.
        settings: in force for it.
        recorder: what is noted of it.
        beside: what stands beside its maps.
        following: the graph that it seems to be of.
        counted: gives what counts it, if it may be of an unknown graph.
        has_failing_calls: the program has caught errors of calls, which are none.
        resembled: the graph that it was compared with until such an error.
    """

    quiet: Compared | Counted | None = None
    was_quiet = False
    settings: Settings
    recorder: Recorder
    beside: BesideMaps
    following: Following
    _calls: Calls
    counted: Callable[[], Counted | None]
    has_failing_calls = False
    resembled: Graph | None = None
    _compared: Compared | None = None  # what is counted was compared before

    @abc.abstractmethod
    def after_call(self, function: Any, inputs: Sequence[Any], outputs: Sequence[Any], span: Span) -> None: ...

    @abc.abstractmethod
    def begin_backward(self) -> None: ...

    @abc.abstractmethod
    def after_step(self, function: Any, needed: list[Storage], span: Span) -> None: ...

    @abc.abstractmethod
    def leave(self) -> Span: ...

    @abc.abstractmethod
    def compare_unmoved(self) -> None: ...

    def calls(self) -> Calls:
        """Those that have run."""
        return self._calls if self.quiet is None else self.quiet.calls

    def is_forward_over(self) -> bool:
        """Whether the call that has just run is the last one, or may be."""
        graph, quiet = self.following.graph, self.quiet
        if graph is None:
            return quiet is None
        return len((self._calls if quiet is None else quiet.calls).functions) == len(graph.trace.calls)

    def goes_on_quietly(self, function: Any, inputs: Sequence[Any] | None = None) -> bool:
        """Whether a call, or a step if there are no inputs, runs as in plain Chainer."""
        while self.quiet is not None and not (
                self.quiet.expects_step(function) if inputs is None else self.quiet.expects_call(function, inputs)):
            self.differ()
        return self.quiet is not None

    def after_quiet_call(self, function: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compares a call that has run."""
        if self.quiet is None:  # the device had no room for it
            self.after_call(function, inputs, outputs, self.leave())
        elif not self.quiet.note_call(function, inputs, outputs):
            self.differ()

    def forget_quiet_call(self) -> None:
        """The call that has begun last has failed: it does not tell this graph from others."""
        quiet, self.has_failing_calls = self.quiet, True
        graphs = self.following.take_back(len((self._calls if quiet is None else quiet.calls).functions))
        if graphs and quiet is None:
            self.resembled = graphs[0]
        elif graphs:
            compared = quiet if isinstance(quiet, Compared) else self._compared
            assert compared is not None, 'what was counted from the beginning is like no graph'
            self.following.turn(graphs)
            self.quiet, compared.graph = compared, graphs[0]

    def after_quiet_step(self, function: Any) -> None:
        """Adds a step that has run."""
        if self.quiet is None:
            self.after_step(function, retained(function), self.leave())
        else:
            self.quiet.note_step(function)

    def differ(self) -> None:
        """Is counted, as it is of another graph than it seemed to be; or else runs quietly no more."""
        before = self.quiet
        if isinstance(before, Compared):
            before.graph.differences += 1
            if (counted := self.counted()) is not None:
                counted.take_over(before)
                self.quiet, self._compared = counted, before
                return
        self.register_all()

    def register_all(self) -> None:
        """Registers all that has run and is alive, and goes on like an unknown iteration."""
        quiet, self.quiet = self.quiet, None
        if quiet is None:
            return
        self.was_quiet, span = True, self.leave()
        stepped, alive = quiet.stepped(), [*quiet.calls.alive()]  # a list: all stay alive meanwhile
        for number, function in alive:
            self.after_call(function, given_to(function), made_by(function), span)
            if number in stepped:
                self.after_step(function, retained(function), span)
        if quiet.in_backward:
            self.begin_backward()


class QuietIterations:
    """Decides whether an iteration may run quietly, and keeps those that have, as long as their maps may be alive."""

    def __init__(self, memory: Residency, parameters: Parameters, other_threads: OtherThreads):
        self._memory = memory
        self._parameters = parameters
        self._other_threads = other_threads
        self._before: list[Quietly] = []

    def begin(self, iteration: Quietly, function: Any, inputs: Sequence[Any]) -> None:
        """Has an iteration run quietly if it may, or else registers what earlier ones have left.

        Then what its plan leaves where it is may be compared alone (`unmoved`). A graph that another model begins,
        whose parameters are not known yet, is not another graph.
        """
        following, beside = iteration.following, iteration.beside
        graph = following.graph
        is_sure = (graph is not None and not iteration.recorder.measures and graph.may_be_quiet()
                   and not self._other_threads.has_sessions())
        if (graph is not None and is_sure and graph.differences < MOST_DIFFERENCES and not graph.has_failing_calls
                and not self._memory.is_relied_on()):
            quiet = Compared(graph, self._parameters, beside, following, self._memory.has_room)
            alike = graph, *following.begun(1)
            if (all(map(following.stays, alike)) and quiet.is_next(function, inputs, graph)
                    and self._fits(max(each.trace.most_bytes for each in alike) + beside.unaccounted_bytes
                                    + beside.largest_gradient_bytes())):
                iteration.quiet = quiet
        iteration.counted = functools.partial(self._counted, following, beside)
        if iteration.quiet is None and not iteration.recorder.measures:
            iteration.quiet = iteration.counted()
        if iteration.quiet is None:
            self.end()
            if is_sure:
                iteration.compare_unmoved()

    def _counted(self, following: Following, beside: BesideMaps) -> Counted | None:
        like = following.ample
        if (like is None or self._other_threads.has_sessions() or self._memory.is_relied_on()
                or not self._fits(ROOM_FOR_UNKNOWN * like.most_bytes + beside.unaccounted_bytes)):
            return None
        following.follow_none()
        return Counted(like, self._parameters, beside, following, self._fits)

    def _fits(self, nbytes: int) -> bool:
        """Whether so much fits, beside what the program may hold of iterations before."""
        self._before = [each for each in self._before[:-1] if each.calls().is_alive()] + self._before[-1:]
        before_bytes = sum(each.quiet.maps_bytes for each in self._before if each.quiet is not None)
        return self._memory.has_room(nbytes + before_bytes + self._memory.bytes_of('spare'))

    def is_over(self, iteration: Quietly) -> None:
        """Keeps an iteration that has ended quietly."""
        if iteration.quiet is not None:
            self._before.append(iteration)

    def end(self) -> None:
        """Registers what earlier iterations have left: something may have to leave now. Their batches stay."""
        while self._before:
            iteration = self._before[0]
            iteration.register_all()
            del self._before[0]
            hand_over_batches(self._memory, iteration.settings.min_bytes)
