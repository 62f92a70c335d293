"""What stands in near memory beside the maps of one iteration.

    | parameters, optimizer's state | gradients | what only the device counts | scratch |
    |<---- found when the iteration begins, and backward ------------------->|  recorded, or measured

Backward changes it: gradients that it makes are scratch, until the next look finds them with their parameters; where it
adds to gradients that stood, sums take their places one after the other.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

from chainer_ooc.backends import arrays
from chainer_ooc.backends.metering import Meter
from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.graphs.graph import Graph
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.expected import Used
from chainer_ooc.execute.recording.parameters import Beside, Parameters
from chainer_ooc.execute.recording.registration import Register
from chainer_ooc.execute.storage.account import Kind
from chainer_ooc.execute.storage.slots import array_of
from chainer_ooc.execute.storage.storage import Token
from chainer_ooc.problem import Standing
from chainer_ooc.trace import Step

#: What the account has that lives.
KNOWN: tuple[Kind, ...] = ('maps', 'spare', 'program')

#: Attribute of a function: the numbers of the parameters that functions within it were given.
WITHIN = '_ooc_within'


class BesideMaps:
    """What stands beside the maps of one iteration; `register` has what that has used so far.

    Attributes:
        now: what stood at the last `look`.
        scratch_bytes: what lives beside that and the maps, as it was counted last.
        unaccounted_bytes: what the device counted beside all that when the iteration began.
        added_to: the own parameters whose gradients stood when a backward pass began.
    """

    def __init__(self, memory: Residency, parameters: Parameters, register: Register, meter: Meter,
                 following: Following):
        self.now = Beside()
        self.scratch_bytes = self.unaccounted_bytes = 0
        self.added_to: frozenset[int] = frozenset()
        self._made_what_left = self._lacks_sums = False
        self._own = register.own
        self._recorder = register.recorder
        self._memory, self._parameters, self._meter, self._following = memory, parameters, meter, following
        self._first: weakref.ref[Any] | None = None  # parameter that the first call was given
        self._at_first: frozenset[int] = frozenset()
        self._stood_in_backward: frozenset[int] | None = None
        self._to_be_replaced: list[tuple[weakref.ref[Any], int]] = []  # gradients, and their bytes
        self._to_add: dict[int, int] = {}
        self._made: list[weakref.ref[Any]] = []  # within other functions: what owns their blocks
        self._new_bytes = self._summed_bytes = self._known_before_bytes = self._known_parameters = 0

    # --- looking ---------------------------------------------------------------------------------------------------

    def begin(self, inputs: Sequence[Any]) -> None:
        """Begins the iteration with a call that is given these."""
        self._first = next((weakref.ref(each) for each in inputs if hasattr(each, 'update_rule')), None)
        self.look()
        self._memory.stands(self.now.total_bytes)
        self._at_first = self.now.with_gradients

    def look(self) -> None:
        """Finds out what stands beside the maps."""
        self.now = self._parameters.beside(self._meter.has_counted if self._recorder.measures else None,
                                           None if self._stood_in_backward is None else self._own)

    def look_again(self) -> None:
        """As `look`, within an iteration. Gradients that backward adds to are Chainer's meanwhile, and not gone."""
        gradient_bytes = self.now.gradient_bytes
        self.look()
        self.now = replace(self.now, gradient_bytes=max(gradient_bytes, self.now.gradient_bytes))

    def assume(self, steady_bytes: int) -> None:
        """Counts so much for parameters and the optimizer's state, where none was seen yet."""
        self.now = replace(self.now, steady_bytes=self.now.steady_bytes or steady_bytes)

    def note_within(self, inputs: Sequence[Any], function: Any, graph: Sequence[Any]) -> None:
        """Notes what a function within another one's call or step was given, and what it made of a graph.

        Gradients of parameters that it was given are made by the step of the other, `function`; within a step, where
        that is None, they are known. What it made may stay, as in double backprop: see `end`.
        """
        roots = [arrays.root_of(array_of(each)) for each in graph]
        self._made += [weakref.ref(root) for root in roots if root is not None]
        for each in inputs if function is not None else ():
            if hasattr(each, 'update_rule'):
                number = self._parameters.number_of(each)
                if number is None:
                    number = self._parameters.add(each)
                    self.look_again()
                self._own.add(number)
                function.__dict__.setdefault(WITHIN, set()).add(number)

    def end(self, token: Token) -> None:
        """The iteration is over: what stays of such a graph is in no scratch any more, and counts as left by it."""
        made = [root for ref in self._made if (root := ref()) is not None]
        gradients = {id(arrays.root_of(each)) for each in self._parameters.gradients().values()} if made else ()
        for root in made:
            if id(root) not in gradients and not self._parameters.own(root):
                self._memory.count_alone(root, token, -1)
        self._made.clear()

    def parameters_left(self, were_metered: bool) -> None:
        """Parameters lie in far memory from now on; with `were_metered` the iteration in hand had made some of them."""
        self._made_what_left |= were_metered
        self.look_again()

    def begin_backward(self, first: Step | None) -> bool:
        """Begins a backward pass; gives whether parameters got their arrays in the recorded iteration.

        What stands when its first step begins counts from now on: old gradients are gone. Where it adds to gradients,
        sums that it allocates replace them one after the other. Gradients of other parameters stay as they are.
        """
        recorded = self._recorder.measures
        if recorded:
            self.measured_scratch_bytes()  # parameters of the last call become known while their gradients stand
        new_bytes, new_state_bytes = self._parameters.new_bytes(self._meter.has_counted) if recorded else (0, 0)
        self._new_bytes = new_bytes + new_state_bytes
        self._stood_in_backward = self._stood_in_backward or frozenset()
        self.look()
        self._stood_in_backward |= self.now.with_gradients
        graph = self._following.graph
        self._lacks_sums, self._summed_bytes = graph is None or not graph.used.adds_up, 0
        stood = self._parameters.gradients(self._own)
        self.added_to |= stood.keys()
        if self._lacks_sums:
            self._to_add = {number: int(each.nbytes) for number, each in stood.items()}
        self._to_be_replaced = [(weakref.ref(each), int(each.nbytes))
                                for each in (self._parameters.near(stood.values()) if recorded else ())
                                if not self._meter.has_counted(arrays.root_of(each))]
        if first is not None:
            self.stand(self.scratch_of(first, 0))
        return new_bytes > 0 or self._made_what_left

    def largest_gradient_bytes(self) -> int:
        """Of the gradients that stand, if any do: backward may add to it."""
        return max((int(each.nbytes) for each in self._parameters.gradients().values()), default=0) if (
            self.now.with_gradients) else 0

    def begin_quiet_backward(self, functions: Iterable[Any]) -> int:
        """Begins a backward pass that runs as in plain Chainer; gives how much more it has than stood at the beginning.

        That may be less than nothing. Among it are the sums of the function with most of them, unless the recording has
        sums: then it has the gradients of its own, too, that stood.
        """
        graph = self._following.graph
        used = None if graph is None else graph.used.of(self.model)
        has_sums = graph is not None and graph.used.adds_up
        stood = self._parameters.gradients()
        self.added_to |= stood.keys()
        before_bytes = self.now.gradient_bytes + self.now.others_bytes
        near = {id(each) for each in self._parameters.near(stood.values())} if stood else set()
        recorded = stood if used is None else used.own
        stands_bytes = sum(int(each.nbytes) for number, each in stood.items()
                           if id(each) in near and not (has_sums and number in recorded))
        if has_sums or not stood:
            return stands_bytes - before_bytes
        self._to_add = {number: int(each.nbytes) for number, each in stood.items()}
        most_bytes = max(map(self.sum_bytes, functions), default=0)
        self._to_add = {}
        return stands_bytes - before_bytes + most_bytes

    # --- counting --------------------------------------------------------------------------------------------------

    def stand(self, scratch_bytes: int) -> None:
        """Counts what lives when a computation begins, beside maps and what was there before the iteration."""
        self.scratch_bytes = scratch_bytes
        self._memory.stands(self._bytes_with(scratch_bytes))

    def measured_scratch_bytes(self) -> int:
        """What was allocated since recording began and is no map; without recording new gradients of parameters."""
        if self._recorder.measures and self._meter.counts_older:
            return max(0, self._change_of_unknown_bytes())
        if self._recorder.measures:
            return max(0, self._meter.current_bytes() - self._memory.bytes_of('metered') - self.now.counted_bytes)
        return max(0, self._parameters.gradient_bytes() - self.now.gradient_bytes - self.now.others_bytes)

    def begin_recording(self) -> None:
        """The meter has begun to count."""
        self._known_before_bytes, self._known_parameters = self._known_bytes(), len(self._parameters)

    def _change_of_unknown_bytes(self) -> int:
        """How much more is in near memory and not known than when recording began, which the meter can tell.

        A parameter that becomes known was there before, as far as no more than that has become unknown.
        """
        known_bytes = self._known_bytes()
        change_bytes = self._meter.current_bytes() - known_bytes + self._known_before_bytes
        if len(self._parameters) == self._known_parameters:
            return change_bytes
        self._known_parameters = len(self._parameters)
        self.look_again()
        met_bytes = self._known_bytes() - known_bytes
        older_bytes = max(0, met_bytes - max(0, change_bytes))
        self._known_before_bytes += older_bytes
        return change_bytes - met_bytes + older_bytes

    def _known_bytes(self) -> int:
        """What is in near memory and known, but for what was there when recording began and has become known since."""
        maps_bytes = sum(self._memory.bytes_of(kind) for kind in KNOWN)
        return self._bytes_with(0) + maps_bytes - self._memory.older_bytes

    def scratch_of(self, step: Step, others_bytes: int) -> int:
        """What lives when a step of the graph begins, beside maps, among them so much of earlier graphs'.

        A recording that has sums has the gradients that stood as well. In one that has none there are the new gradients
        in place of each sum that has been made meanwhile, and whose parts are gone.
        """
        recorded_bytes = self._summed_bytes if self._lacks_sums else self.now.gradient_bytes
        return max(0, step.other_bytes - others_bytes - recorded_bytes)

    def ahead_bytes(self, step: Step) -> int:
        """What a step of the graph adds, if it comes next, to what is in near memory and to the maps that it needs."""
        return step.peak_bytes + max(0, self._bytes_with(self.scratch_of(step, 0)) - self._memory.beside_bytes)

    @property
    def total_bytes(self) -> int:
        """All but scratch."""
        return self.now.total_bytes + self.unaccounted_bytes

    def _bytes_with(self, scratch_bytes: int) -> int:
        # Each computation asks: not by `total_bytes`, which would be a call more.
        return self.now.total_bytes + self.unaccounted_bytes + scratch_bytes - (
            self._replaced_bytes() if self._to_be_replaced else 0)

    # --- gradients that stood --------------------------------------------------------------------------------------

    def has_sums(self, function: Any) -> bool:
        """Whether a step adds to gradients that stood, where the recording had no such sums."""
        return bool(self._to_add and self._added_to(function))

    def sum_bytes(self, function: Any) -> int:
        """Bytes of such sums, which count once."""
        if not self._to_add:
            return 0
        nbytes = sum(map(self._to_add.pop, self._added_to(function)))
        self._summed_bytes += nbytes
        return nbytes

    def _added_to(self, function: Any) -> set[int]:
        given = [node.get_variable_or_none() for node in function.inputs]
        numbers = {self._parameters.number_of(each) for each in given if hasattr(each, 'update_rule')}
        return {each for each in numbers.union(function.__dict__.get(WITHIN, ())) if each in self._to_add}

    def stood_bytes(self) -> int:
        """Own gradients that stood when the backward pass in hand began, and still do; 0 where it is not recorded.

        Less what parameters and optimizers got in the iteration: it is in its scratch, and will be in no other's.
        """
        return self.now.gradient_bytes - self._replaced_bytes() - self._new_bytes if self._recorder.measures else 0

    def _replaced_bytes(self) -> int:
        """Of gradients that stood when backward began, those whose place a sum has taken."""
        return sum(nbytes for ref, nbytes in self._to_be_replaced if ref() is None)

    # --- what later iterations learn of it -------------------------------------------------------------------------

    @property
    def model(self) -> int | None:
        """The number of the parameter that stands for the model; None if the first call has none, or a new one."""
        return None if self._first is None else self._parameters.number_of(self._first())

    @property
    def has_model(self) -> bool:
        """Whether the first call was given a parameter."""
        return self._first is not None

    def standing(self, used: Used | None, added_to: Container[int] | None, left_bytes: int, gradient_bytes: int
                 ) -> Standing:
        """See `Parameters.standing`.

        In forward there are `gradient_bytes` that stood when it began, though the program has cleared them by now.
        """
        standing = self._parameters.standing(used, left_bytes, added_to)
        cleared_bytes = max(0, gradient_bytes - self._parameters.gradient_bytes())
        return replace(standing, forward_bytes=standing.forward_bytes + cleared_bytes).beside(self.unaccounted_bytes)

    @property
    def has_begun_backward(self) -> bool:
        """Whether a backward pass has begun, so that it is known which gradients stand in it."""
        return self._stood_in_backward is not None

    def tell(self, graph: Graph) -> None:
        """Notes in the iteration's graph which gradients stood, if that is known."""
        if self._stood_in_backward is not None:
            own = frozenset(self._own)
            others = self._stood_in_backward - own
            graph.used.note(self.model, Used(
                own, others, self._at_first - own - others, self._at_first & own, self.added_to & own))

    def tell_quiet(self, graph: Graph) -> None:
        """Notes in the graph of a quiet iteration which gradients stood when that began."""
        graph.used.note_stood(self.model, self._at_first, self.added_to)
