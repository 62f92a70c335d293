"""What has run of a quiet iteration, see `quiet`: compared with the recording of a known graph, or counted."""

from __future__ import annotations

import abc
import functools
import weakref
from collections.abc import Callable, Sequence, Set
from typing import Any

from chainer_ooc.backends import arrays
from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.graphs.graph import Graph
from chainer_ooc.execute.graphs.graphs import ROOM_FOR_UNKNOWN
from chainer_ooc.execute.graphs.known_needs import KnownNeeds
from chainer_ooc.execute.iteration.beside import BesideMaps
from chainer_ooc.execute.iteration.comparison import Calls, Comparison, gives
from chainer_ooc.execute.memory.budget import LOOK_EVERY
from chainer_ooc.execute.other_threads import OtherThreads
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.recording.recorder import forms
from chainer_ooc.execute.recording.registration import makes_graphs, name_of
from chainer_ooc.execute.storage.slots import array_in_slot

#: A graph that so often turned out to be another runs quietly no more.
MOST_DIFFERENCES = 3


class Quiet(abc.ABC):
    """What has run of an iteration.

    Attributes:
        calls: those that have run.
        in_backward: a backward pass has begun.
    """

    def __init__(self, parameters: Parameters, beside: BesideMaps, following: Following,
                 has_room: Callable[[int], bool]):
        self.calls, self.in_backward = Calls(), False
        self._parameters, self._beside, self._following, self._has_room = parameters, beside, following, has_room
        self._more_bytes: int | None = None  # that stood in a backward pass than when the iteration began
        self._sessions_made = OtherThreads.made

    def is_alone(self) -> bool:
        """Whether no session was made since it began: that of another thread may be given maps, and rely on them."""
        return self._sessions_made == OtherThreads.made

    def begin_backward(self) -> bool:
        """Begins a backward pass; False if it may not run as in plain Chainer, as where sums of gradients lack room."""
        self.in_backward = True
        self._parameters.begin_backward()
        more_bytes = self._beside.begin_quiet_backward(each for _, each in self.calls.alive())
        self._more_bytes = more_bytes if self._more_bytes is None else max(self._more_bytes, more_bytes)
        return more_bytes <= 0 or self._has_room(self.most_bytes + more_bytes)

    @property
    @abc.abstractmethod
    def most_bytes(self) -> int:
        """The most that it takes, beside what stands."""

    def end_backward(self) -> None:
        """A backward pass is over."""
        self.in_backward = False


class Compared(Quiet):
    """One that is, as far as it has run, that of a known graph.

    Attributes:
        graph: the known one.
        next_step: how many steps have run.
    """

    def __init__(self, graph: Graph, parameters: Parameters, beside: BesideMaps, following: Following,
                 has_room: Callable[[int], bool]):
        super().__init__(parameters, beside, following, has_room)
        self._comparison = Comparison(parameters, self.calls)
        self.next_step = 0
        self.graph = graph

    @property
    def maps_bytes(self) -> int:
        """What its maps take together."""
        return self.graph.trace.maps_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that near memory held, or more: what the plan has, and what stands now beyond what did for that."""
        plan, planned = self._following.orders.plan, self._following.orders.standing
        stands_bytes = self._beside.total_bytes + planned.left_bytes
        return plan.peak_bytes + max(stands_bytes - planned.forward_bytes,
                                     stands_bytes + (self._more_bytes or 0) - planned.backward_bytes)

    @property
    def most_bytes(self) -> int:
        return self.graph.trace.most_bytes

    # --- forward ---------------------------------------------------------------------------------------------------

    def expects_call(self, function: Any, inputs: Sequence[Any]) -> bool:
        """Whether it comes next in the recording, or in one that begins like it."""
        if self.in_backward or self.next_step or not self.is_alone():
            return False
        position, alike = len(self.calls.functions), functools.partial(self.is_next, function, inputs)
        if alike(self.graph):
            return True
        self._following.note_unlike(position)
        return self._turn(position, alike) or self._differs(position, function, inputs)

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
        return position < len(graph.trace.calls) and self._comparison.is_call(function, inputs, graph.trace, position)

    def note_call(self, function: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
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
        """Begins a backward pass; False also if forward was not that of the graph."""
        calls = len(self.calls.functions)
        return super().begin_backward() and (len(self.graph.trace.calls) == calls or self._turn(
            calls, lambda graph: len(graph.trace.calls) == calls))

    def expects_step(self, function: Any) -> bool:
        """Whether it comes next in the recording, and makes no graph."""
        number = self.calls.number(function)
        return (number >= 0 and self.is_alone() and (self.next_step > 0 or not makes_graphs())
                and (self.graph.has_step(self.next_step, number, '')
                     or self._go_on_as(self._following.stepped(self.next_step, number, ''))))

    def note_step(self, function: Any) -> None:
        """Adds a step that has run."""
        self.next_step += 1

    def stepped(self) -> Set[int]:
        """The numbers of the calls whose steps have run."""
        return {each.call for each in self.graph.trace.steps[:self.next_step]}

    def batches(self) -> dict[int, tuple[weakref.ref[Any], int]]:
        """What its calls were given from outside, by its root, and the bytes of it."""
        maps = self.graph.trace.maps
        return {key: (ref, maps[map_id].nbytes) for key, (ref, map_id) in self._comparison.batches.items()}


class Counted(Quiet):
    """One of an unknown graph, while what it needs, estimated from the arrays of its calls, surely fits.

    Left out: what a call makes is not seen before it has run; where the device knows, it asks for room then.

    Args:
        like: what recorded graphs need.

    Attributes:
        maps_bytes: what its calls were given from outside, and have made.
    """

    def __init__(self, like: KnownNeeds, parameters: Parameters, beside: BesideMaps, following: Following,
                 has_room: Callable[[int], bool]):
        super().__init__(parameters, beside, following, has_room)
        self._like = like
        self._granted_bytes = ROOM_FOR_UNKNOWN * like.most_bytes
        self._outside: dict[int, tuple[weakref.ref[Any], int]] = {}  # what came from there, by its root, and how much
        self._share = 0.0  # of the call in hand
        self._given_bytes = self.maps_bytes = 0
        self._scratch_bytes = 0.0
        self._stepped: set[int] = set()

    @property
    def peak_bytes(self) -> int:
        """The most that near memory held, by the estimate."""
        return self._beside.total_bytes + max(0, self._more_bytes or 0) + self.most_bytes

    @property
    def most_bytes(self) -> int:
        return self._like.need_bytes(self.maps_bytes, self._scratch_bytes)

    def take_over(self, before: Compared) -> None:
        """Goes on where one that was compared has turned out to be of an unknown graph."""
        self.calls, self._outside = before.calls, before.batches()
        trace = before.graph.trace
        calls = trace.calls[:len(self.calls.functions)]
        maps = {each for call in calls for each in (*call.inputs, *call.outputs, *call.hidden)} - {-1}
        self.maps_bytes = sum(trace.maps[each].nbytes for each in maps)
        self._scratch_bytes = max([each.peak_bytes for each in calls], default=0)
        self.in_backward, self._stepped = before.in_backward, {*before.stepped()}
        self._sessions_made = before._sessions_made

    def expects_call(self, function: Any, inputs: Sequence[Any]) -> bool:
        """Whether it is one of forward, of a kind that was recorded, and what it is given surely has room.

        All parameters that it is given have to be in the account.
        """
        if self.in_backward or self._stepped or not self.is_alone():
            return False
        share = self._like.scratch_shares.get(name_of(function))
        if share is None:
            self._following.note_unlike(len(self.calls.functions))
            return self._has_to_be_recorded()
        self._share, self._given_bytes = share, 0
        for each in inputs:
            array = array_in_slot(each)
            self._given_bytes += array.nbytes
            if hasattr(each, 'update_rule'):
                if self._parameters.number_of(each) is None:
                    return False
            elif (node := getattr(each, '_node', None)) is None or node._creator_node is None or (
                    self.calls.number(node._creator_node) < 0):
                self._add_from_outside(array)
        return self._has_room_for(self._given_bytes)

    def note_call(self, function: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
        """Adds a call; False if what it gave is too much, or the device has little room left."""
        self.calls.add(function)
        made = [each._data[0] for each in outputs]
        self.maps_bytes += sum([each.nbytes for each in made if not _is_view(each, inputs)])
        return self._has_room_for(self._given_bytes + sum([each.nbytes for each in made])) and (
            len(self.calls.functions) % LOOK_EVERY > 0 or self._has_room(self._like.computing_bytes))

    def _add_from_outside(self, array: Any) -> None:
        root = arrays.root_of(array)
        if root is None:  # memory of a file
            return
        ref, counted_bytes = self._outside.get(id(root), (None, 0))
        if ref is None or ref() is not root:
            ref, counted_bytes = weakref.ref(root), 0
        more_bytes = min(int(array.nbytes), int(root.nbytes) - counted_bytes)  # of one array, several may be views
        self._outside[id(root)] = ref, counted_bytes + more_bytes
        self.maps_bytes += more_bytes

    def _has_room_for(self, call_bytes: int) -> bool:
        """Whether there surely is, also for what the call in hand allocates with arrays of so many bytes."""
        self._scratch_bytes = max(self._scratch_bytes, self._share * call_bytes)
        if self.most_bytes <= self._granted_bytes:
            return True
        self._granted_bytes = ROOM_FOR_UNKNOWN * self.most_bytes
        return self._has_room(self._granted_bytes) or self._has_to_be_recorded()

    def _has_to_be_recorded(self) -> bool:
        """False; has the next ones that are unknown be recorded: memory is not ample for all, or nobody knows."""
        self._following.ample = None
        return False

    def expects_step(self, function: Any) -> bool:
        """Whether it is of one of its calls, and makes no graph."""
        return self.calls.number(function) >= 0 and self.is_alone() and (bool(self._stepped) or not makes_graphs())

    def note_step(self, function: Any) -> None:
        """Adds a step that has run."""
        self._stepped.add(self.calls.number(function))

    def stepped(self) -> Set[int]:
        """The numbers of the calls whose steps have run."""
        return self._stepped


def _is_view(array: Any, inputs: Sequence[Any]) -> bool:
    """Whether what a call gave lies on the memory of what it was given."""
    if array.base is None:
        return any(array is array_in_slot(each) for each in inputs)
    root = arrays.root_of(array)
    return any(root is arrays.root_of(array_in_slot(each)) for each in inputs)
