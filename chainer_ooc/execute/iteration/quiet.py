"""An iteration in which nothing has to leave: its calls and steps run as in plain Chainer.

It needs no storages, accounts or slots, and keeps a weak reference to each function. Of a known graph, whose plan moves
nothing and all of whose maps together fit, what the next call is given and gives is compared with the recording
(`Compared`). At the first difference it may be another known graph that begins like that and moves nothing either.
Where graphs come once only, such as batches of sentences, and all that were recorded would fit several times over, the
bytes that calls give are counted (`Counted`). At another difference, or when the device has no room after all, all
calls and steps that are still alive are registered in order, and the iteration goes on like one of an unknown graph.

    call  -> expects_call  -> run -> note_call
    step  -> expects_step  -> run -> note_step
    a difference           -> register_all      after_call, begin_backward, after_step of the iteration, as they come

What has had its last use is not freed, as spare maps are not while nothing needs their room (P6). Left out: arrays that
a call hides, for which such a plan has no orders.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence, Set
from typing import Any

from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.graphs.graph import Graph
from chainer_ooc.execute.graphs.once_only import ROOM_FOR_UNKNOWN, OnceOnly
from chainer_ooc.execute.iteration.comparison import LOOK_EVERY, Calls, Comparison, given_to, gives, made_by
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.other_threads import OtherThreads
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.recording.recorder import Span, forms
from chainer_ooc.execute.recording.registration import makes_graphs, name_of, retained
from chainer_ooc.execute.storage.storage import Storage

#: A graph that so often turned out to be another runs quietly no more.
MOST_DIFFERENCES = 3


class Quiet(Comparison):
    """What has run of an iteration.

    Attributes:
        in_backward: a backward pass has begun.
    """

    def __init__(self, parameters: Parameters, following: Following, has_room: Callable[[int], bool]):
        super().__init__(parameters, Calls())
        self._following, self._has_room = following, has_room
        self.in_backward = False

    @property
    @abc.abstractmethod
    def maps_bytes(self) -> int:
        """What its maps take together, or more."""

    @property
    @abc.abstractmethod
    def peak_bytes(self) -> int:
        """The most that near memory held, or more."""

    @abc.abstractmethod
    def expects_call(self, function: Any, inputs: Sequence[Any]) -> bool:
        """Whether this call may run as in plain Chainer."""

    @abc.abstractmethod
    def note_call(self, function: Any, outputs: Sequence[Any]) -> bool:
        """Adds a call that has run; False if the next one may not run like that."""

    def begin_backward(self) -> bool:
        """Begins a backward pass; False if it may not run as in plain Chainer."""
        self.in_backward = True
        self._parameters.begin_backward()
        return True

    def end_backward(self) -> None:
        self.in_backward = False

    @abc.abstractmethod
    def expects_step(self, function: Any) -> bool:
        """Whether this step may run as in plain Chainer."""

    @abc.abstractmethod
    def note_step(self, function: Any) -> None:
        """Adds a step that has run."""

    @abc.abstractmethod
    def stepped(self) -> Set[int]:
        """The numbers of the calls whose steps have run."""

    def functions(self) -> list[tuple[Any, bool]]:
        """The functions of its calls that are alive and in their graph, in order, and whether their steps have run."""
        stepped = self.stepped()
        return [(each, number in stepped) for number, each in self.calls.alive()]


class Compared(Quiet):
    """One that is, as far as it has run, that of a known graph.

    Attributes:
        graph: the known one.
        next_step: how many steps have run.
    """

    def __init__(self, graph: Graph, parameters: Parameters, following: Following, has_room: Callable[[int], bool]):
        super().__init__(parameters, following, has_room)
        self.next_step = 0
        self.graph = graph

    @property
    def maps_bytes(self) -> int:
        return self.graph.trace.maps_bytes

    @property
    def peak_bytes(self) -> int:
        return self._following.orders.plan.peak_bytes

    # --- forward ---------------------------------------------------------------------------------------------------

    def expects_call(self, function: Any, inputs: Sequence[Any]) -> bool:
        """Whether it comes next in the recording, or in one that begins like it."""
        if self.in_backward or self.next_step or OtherThreads.made != self.sessions_made:
            return False
        position, alike = len(self.calls.functions), functools.partial(self.is_next, function, inputs)
        return alike(self.graph) or self._turn(position, alike) or self._differs(position, function, inputs)

    def _differs(self, position: int, function: Any, inputs: Sequence[Any]) -> bool:
        """False; has graphs run quietly no more that no recording tells from what runs: no other one is to come.

        What tells them apart is a new parameter, for example, or a size of those that vary.
        """
        label, given = name_of(function), forms([getattr(each, '_node', each) for each in inputs])
        alike = self.graph, *self._following.begun(position)
        if any((each.loosely() if each.varies else each).may_go_on(position, label, given) for each in alike):
            for each in alike:
                each.differences = MOST_DIFFERENCES
        return False

    def is_next(self, function: Any, inputs: Sequence[Any], graph: Graph) -> bool:
        """Whether this call comes next in a graph that is like what has run."""
        position = len(self.calls.functions)
        return position < len(graph.trace.calls) and self.is_call(function, inputs, graph.trace, position)

    def note_call(self, function: Any, outputs: Sequence[Any]) -> bool:
        """Adds a call; False if its outputs are not those of a recording, or the device has little room left."""
        position, call = len(self.calls.functions), self.graph.trace.calls[len(self.calls.functions)]
        self.calls.add(function)
        return (gives(outputs, call) or self._turn(position, lambda graph: (
            graph.may_have_been(call) and gives(outputs, graph.trace.calls[position])))) and (
                position % LOOK_EVERY > 0 or self._has_room(self.graph.trace.most_computing_bytes))

    def _turn(self, calls: int, is_alike: Callable[[Graph], bool]) -> bool:
        """Goes on as another graph that is like the first so many calls, and stays quiet; False without one."""
        return self._go_on_as(list(filter(is_alike, self._following.begun(calls))))

    def _go_on_as(self, alike: list[Graph]) -> bool:
        if not alike:
            return False
        self._following.turn(alike)
        if self._following.graph is not alike[0] or not self._following.stays(alike[0]):
            return False
        self.graph = alike[0]
        return True

    # --- backward --------------------------------------------------------------------------------------------------

    def begin_backward(self) -> bool:
        """Begins a backward pass; False if forward was not that of the graph."""
        super().begin_backward()
        calls = len(self.calls.functions)
        return len(self.graph.trace.calls) == calls or self._turn(calls, lambda graph: len(graph.trace.calls) == calls)

    def expects_step(self, function: Any) -> bool:
        """Whether it comes next in the recording, and makes no graph."""
        number = self.calls.number(function)
        return (number >= 0 and OtherThreads.made == self.sessions_made and (self.next_step > 0 or not makes_graphs())
                and (self.graph.has_step(self.next_step, number, '')
                     or self._go_on_as(self._following.stepped(self.next_step, number, ''))))

    def note_step(self, function: Any) -> None:
        self.next_step += 1

    def stepped(self) -> Set[int]:
        return {each.call for each in self.graph.trace.steps[:self.next_step]}


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
        """See `Quiet`."""
        return self._like.need_bytes(self._given_bytes)

    @property
    def peak_bytes(self) -> int:
        """See `Quiet`."""
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
        """Adds a step that has run."""
        self._stepped.add(self.calls.number(function))

    def stepped(self) -> Set[int]:
        """See `Quiet`."""
        return self._stepped


class Quietly(abc.ABC):
    """An iteration that may run quietly.

    Attributes:
        quiet: compares what runs, while nothing of it is registered, else None.
        was_quiet: it began so, and went on otherwise.
        recorded: what its calls allocate is measured.
        counted: gives what counts it, if it may be of an unknown graph.
    """

    quiet: Quiet | None = None
    was_quiet = False
    recorded: bool
    counted: Callable[[], Counted | None]

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

    def is_quiet(self, function: Any, inputs: Sequence[Any] | None = None) -> bool:
        """Whether a call, or a step if there are no inputs, runs as in plain Chainer."""
        while self.quiet is not None and not (
                self.quiet.expects_step(function) if inputs is None else self.quiet.expects_call(function, inputs)):
            self.differ()
        return self.quiet is not None

    def after_quiet_call(self, function: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compares a call that has run."""
        if self.quiet is None:  # the device had no room for it
            self.after_call(function, inputs, outputs, self.leave())
        elif not self.quiet.note_call(function, outputs):
            self.differ()

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
                self.quiet = counted
                return
        self.register_all()

    def register_all(self) -> None:
        """Registers all that has run and is alive, and goes on like an unknown iteration."""
        quiet, self.quiet = self.quiet, None
        if quiet is None:
            return
        self.was_quiet, span = True, self.leave()
        for function, has_stepped in quiet.functions():
            self.after_call(function, given_to(function), made_by(function), span)
            if has_stepped:
                self.after_step(function, retained(function), span)
        if quiet.in_backward:
            self.begin_backward()


class QuietIterations:
    """Decides whether an iteration may run quietly, and keeps those that have, as long as their maps may be alive."""

    def __init__(self, memory: Residency, parameters: Parameters, other_threads: OtherThreads):
        self._memory = memory
        self._parameters = parameters
        self._other_threads = other_threads
        self._before: list[tuple[Quietly, Quiet]] = []

    def begin(self, iteration: Quietly, following: Following, unaccounted_bytes: int, function: Any,
              inputs: Sequence[Any]) -> None:
        """Has an iteration run quietly if it may, or else registers what earlier ones have left.

        Then what its plan leaves where it is may be compared alone (`unmoved`). A graph that another model begins,
        whose parameters are not known yet, is not another graph.
        """
        graph = following.graph
        is_sure = (graph is not None and not iteration.recorded and graph.may_be_quiet()
                   and not self._other_threads.has_sessions())
        if (graph is not None and is_sure and graph.differences < MOST_DIFFERENCES
                and not self._memory.is_relied_on()):
            quiet = Compared(graph, self._parameters, following, self._memory.has_room)
            alike = graph, *following.begun(1)
            if (all(map(following.stays, alike)) and quiet.is_next(function, inputs, graph)
                    and self._fits(max(each.trace.most_bytes for each in alike) + unaccounted_bytes)):
                iteration.quiet = quiet
        iteration.counted = functools.partial(self._counted, following, unaccounted_bytes)
        if iteration.quiet is None and not iteration.recorded:
            iteration.quiet = iteration.counted()
        if iteration.quiet is None:
            self.end()
            if is_sure:
                iteration.compare_unmoved()

    def _counted(self, following: Following, unaccounted_bytes: int) -> Counted | None:
        like = following.once_only
        if (like is None or self._other_threads.has_sessions() or self._memory.is_relied_on()
                or not self._fits(ROOM_FOR_UNKNOWN * like.most_bytes + unaccounted_bytes)):
            return None
        return Counted(like, self._memory.beside_bytes, self._parameters, following, self._memory.has_room)

    def _fits(self, nbytes: int) -> bool:
        """Whether so much fits, beside what the program may hold of iterations before."""
        self._before = [each for each in self._before[:-1] if each[1].calls.is_alive()] + self._before[-1:]
        before_bytes = sum(each.maps_bytes for _, each in self._before) + self._memory.bytes_of('spare')
        return self._memory.has_room(nbytes + before_bytes)

    def is_over(self, iteration: Quietly) -> None:
        """Keeps an iteration that has ended quietly."""
        if iteration.quiet is not None:
            self._before.append((iteration, iteration.quiet))

    def end(self) -> None:
        """Registers what earlier iterations have left: something may have to leave now."""
        while self._before:
            self._before[0][0].register_all()
            del self._before[0]
