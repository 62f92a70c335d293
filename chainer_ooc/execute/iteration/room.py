"""Room for the computations of one iteration: what stands in near memory beside its maps, and what each one allocates.

    budget | parameters, optimizer | gradients, scratch | maps | what the computation allocates |  left
           |<------------ beside ---------------------->|      |<-- recorded, or a guess ------>|

Left out: what the account itself knows, and how it makes room (`residency`).
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Any

from chainer_ooc import config
from chainer_ooc.backends import arrays
from chainer_ooc.backends.metering import Meter
from chainer_ooc.config import Settings
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.graphs.graph import Graph
from chainer_ooc.execute.graphs.graphs import NEWCOMER, UNDER_WAY, after_collecting
from chainer_ooc.execute.graphs.likeness import Forms
from chainer_ooc.execute.graphs.orders import Conditions
from chainer_ooc.execute.iteration.left import left_bytes
from chainer_ooc.execute.iteration.quiet import Quietly
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.expected import Models, Used
from chainer_ooc.execute.recording.parameters import Beside, Parameters
from chainer_ooc.execute.recording.recorder import forms
from chainer_ooc.execute.recording.registration import Register, is_foreign, name_of
from chainer_ooc.execute.storage.reentry import LOCK, asks_amid
from chainer_ooc.execute.storage.slots import array_of
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage
from chainer_ooc.problem import Standing
from chainer_ooc.quantities import rounded_up
from chainer_ooc.trace import Step

#: What an unknown call may allocate, as a multiple of its inputs.
UNKNOWN_CALL_ROOM = 4

#: Unaccounted bytes are rounded up to a multiple of the budget divided by this. Where none is given, what the device
#: counts when an iteration begins, so many times, stands for it if that is less.
UNACCOUNTED_STEPS = 64
MANY_TIMES = 8

#: A floor times this works at once, though little things may have changed since the recording.
SHARE_ENOUGH = 1.02


class Room:
    """Near memory of one iteration.

    `register` has what `iteration` has used so far; `end_quiet` registers what earlier ones that ran quietly have left.

    Attributes:
        beside: what stood beside the maps at the last `look`.
        unaccounted_bytes: what the device counted beside that when the iteration began.
        left_bytes: what earlier iterations had left when this one began, and cannot be moved.
        is_lifted: the device's limit is above the budget, for plain Chainer that runs in the midst of the iteration.
        adds_up: a backward pass that was recorded has added to own gradients that stood.
    """

    def __init__(self, memory: Residency, parameters: Parameters, register: Register, meter: Meter, settings: Settings,
                 following: Following, end_quiet: Callable[[], None], iteration: weakref.ref[Quietly]):
        self.beside = Beside()
        self.unaccounted_bytes = self.left_bytes = 0
        self.adds_up = self.is_lifted = self._is_settled = self._made_what_left = False
        self._own: Set[int] = register.own
        self._recorder = register.recorder
        self._first: weakref.ref[Any] | None = None  # parameter that the first call was given
        self._at_first: frozenset[int] = frozenset()
        self._stood_in_backward: frozenset[int] | None = None
        self._to_be_replaced: list[tuple[weakref.ref[Any], int]] = []  # gradients, and their bytes
        self._to_add: dict[int, int] = {}
        self._new_bytes = self._scratch_bytes = 0
        self._memory, self._parameters, self._meter = memory, parameters, meter
        self._settings = settings
        self._following = following
        self._end_quiet = end_quiet
        self._iteration = iteration
        self._limit_bytes: int | None = None

    def look(self) -> None:
        """Finds out what stands beside the maps."""
        self.beside = self._parameters.beside(self._meter.has_counted if self._recorder.measures else None,
                                              None if self._stood_in_backward is None else self._own)

    def begin_backward(self, first: Step | None) -> bool:
        """Begins a backward pass; gives whether parameters got their arrays in the recorded iteration.

        What stands when its first step begins counts from now on: old gradients are gone. Where it adds to gradients,
        sums that it allocates replace them one after the other. Gradients of other parameters stay as they are.
        """
        recorded = self._recorder.measures
        new_bytes, new_state_bytes = self._parameters.new_bytes(self._meter.has_counted) if recorded else (0, 0)
        self._new_bytes = new_bytes + new_state_bytes
        self._stood_in_backward = self._stood_in_backward or frozenset()
        self.look()
        self._stood_in_backward |= self.beside.with_gradients
        graph = self._following.graph
        lacks_sums = graph is not None and not graph.used.adds_up
        stood = self._parameters.gradients(self._own) if recorded or lacks_sums else {}
        self.adds_up |= bool(stood)
        if lacks_sums:
            self._to_add = {number: int(each.nbytes) for number, each in stood.items()}
        self._to_be_replaced = [(weakref.ref(each), int(each.nbytes))
                                for each in (self._parameters.near(stood.values()) if recorded else ())
                                if not self._meter.has_counted(arrays.root_of(each))]
        if first is not None:
            self.stand(self.scratch_of(first, 0))
        return new_bytes > 0 or self._made_what_left

    def parameters_left(self, were_metered: bool) -> None:
        """Parameters lie in far memory from now on; with `were_metered` the iteration in hand had made some of them."""
        self._made_what_left |= were_metered
        self.look_again()

    def has_sums(self, function: Any) -> bool:
        """Whether a step adds to gradients that stood, where the recording had no such sums."""
        return bool(self._to_add and self._added_to(function))

    def sum_bytes(self, function: Any) -> int:
        """Bytes of such sums, which count once."""
        return sum(map(self._to_add.pop, self._added_to(function))) if self._to_add else 0

    def _added_to(self, function: Any) -> set[int]:
        given = [node.get_variable_or_none() for node in function.inputs]
        return {number for each in given if hasattr(each, 'update_rule')
                and (number := self._parameters.number_of(each)) in self._to_add}

    def disown(self, storage_of: Callable[[int], Storage | None]) -> None:
        """Books what the program holds of the batch, and did not when it was recorded, as the program's own."""
        graph = self._following.graph
        for each in graph.trace.maps if graph is not None and not self._memory.backend.counts_all else ():
            storage = storage_of(each.id) if each.producer is None and not each.foreign else None
            if storage is not None and storage.from_outside and is_foreign(storage):
                self._memory.book(storage, 'program')

    def stood_bytes(self) -> int:
        """Own gradients that stood when the backward pass in hand began, and still do; 0 where it is not recorded.

        Less what parameters and optimizers got in the iteration: it is in its scratch, and will be in no other's.
        """
        return self.beside.gradient_bytes - self._replaced_bytes() - self._new_bytes if self._recorder.measures else 0

    def _replaced_bytes(self) -> int:
        """Of gradients that stood when backward began, those whose place a sum has taken."""
        return sum(nbytes for ref, nbytes in self._to_be_replaced if ref() is None)

    def look_again(self) -> None:
        """As `look`, within an iteration. Gradients that backward adds to are Chainer's meanwhile, and not gone."""
        gradient_bytes = self.beside.gradient_bytes
        self.look()
        self.beside = replace(self.beside, gradient_bytes=max(gradient_bytes, self.beside.gradient_bytes))

    def assume(self, steady_bytes: int) -> None:
        """Counts so much for parameters and the optimizer's state, where none was seen yet."""
        self.beside = replace(self.beside, steady_bytes=self.beside.steady_bytes or steady_bytes)

    def begin_within(self, function: Any, inputs: Sequence[Any], budget_bytes: int,
                     most_bytes: Callable[[], int]) -> int:
        """As `begin`, with a budget that is raised for the smallest plan there is, if that is within `most_bytes`.

        Returns:
            The budget.

        Raises:
            InfeasibleBudgetError, PlanMismatchError, SpillError: as `begin`.
        """
        try:
            after_collecting(lambda: self.begin(function, inputs, budget_bytes))
            return budget_bytes
        except InfeasibleBudgetError as error:
            floor_bytes, needed_bytes = error.floor_bytes, error.floor_bytes - error.lost_bytes
            if not budget_bytes < needed_bytes <= most_bytes():
                raise
        gc.collect()  # what the error's frames held
        enough_bytes = max(round(SHARE_ENOUGH * needed_bytes), min(round(SHARE_ENOUGH * floor_bytes), most_bytes()))
        self.begin(function, inputs, enough_bytes)
        return enough_bytes

    def begin(self, function: Any, inputs: Sequence[Any], budget_bytes: int) -> None:
        """Begins the iteration with this call: finds out what stands beside its maps, and a plan.

        Raises:
            InfeasibleBudgetError, PlanMismatchError, SpillError: see `Following.begin`.
        """
        parameters = (each for each in inputs if hasattr(each, 'update_rule'))
        self._first = next(map(weakref.ref, parameters), None)
        self.look()
        self._memory.stands(self.beside.total_bytes)
        self._at_first = self.beside.with_gradients
        model = self._model()
        first_bytes = int(array_of(inputs[0]).nbytes) if inputs else 0
        first = name_of(function), forms([array_of(each) for each in inputs]), first_bytes
        self.unaccounted_bytes = self._unaccounted_bytes(budget_bytes, *first)
        standing_of = functools.partial(self._standing, model, self.beside.gradient_bytes)
        self._following.begin(
            *first, Conditions(self._settings, budget_bytes, self.unaccounted_bytes, standing_of),
            lambda known: NEWCOMER if self._first is not None and all(each.lacks(model) for each in known) else '')

    def limit(self) -> None:
        """Has the device keep to the budget, and ask here where it does not suffice; see `Backend.limit`."""
        self._limit_bytes, self.is_lifted = self._memory.budget_bytes, False
        self._memory.backend.limit(self._limit_bytes, self._relieve)

    def _relieve(self, nbytes: int) -> bool:
        if asks_amid():
            return False  # nothing can leave in the midst of a change
        with LOCK:
            if (iteration := self._iteration()) is not None:
                iteration.register_all()
            tally, is_plain = self._memory.tally, config.entry('ooc') is None
            missing_bytes, has_freed = tally.missing_bytes, self._memory.on_out_of_memory(nbytes)
            if is_plain:
                tally.missing_bytes = missing_bytes  # no plan leaves room for plain Chainer
            return has_freed or (is_plain and self._lift(nbytes))

    def _lift(self, nbytes: int) -> bool:
        """With `ooc` unset the program has what it asks for, until the next computation with it; whether that helps."""
        backend = self._memory.backend
        if self._limit_bytes is None or not backend.counts_all:
            return False
        limit_bytes = min(self._limit_bytes + nbytes, backend.most_budget_bytes(self._memory.near_bytes()))
        if limit_bytes <= self._limit_bytes:
            return False
        self._limit_bytes, self.is_lifted = limit_bytes, True
        backend.limit(limit_bytes, self._relieve)
        return True

    def look_at_left(self) -> None:
        """Finds out what earlier iterations have left; once this one has maps of its own, what of it is still there."""
        if not self._is_settled:
            self._end_quiet()
        nbytes = left_bytes(self._memory, self._settings.min_bytes, self._following.token)
        self.left_bytes = min(nbytes, self.left_bytes) if self._is_settled else nbytes

    def settle(self) -> None:
        """The iteration is about to have maps of its own."""
        if not self._is_settled:
            self.look_at_left()
            self._is_settled = True

    def _standing(self, model: int | None, gradient_bytes: int, models: Models) -> Standing:
        """What lives through the iteration beside its feature maps, if its graph did so with parameters before.

        In forward there are the gradients that stood when it began, though the program has cleared them by now.
        """
        self.look_at_left()
        standing = self._parameters.standing(models.of(model), self.left_bytes, models.adds_up)
        cleared_bytes = max(0, gradient_bytes - self._parameters.gradient_bytes())
        return replace(standing, forward_bytes=standing.forward_bytes + cleared_bytes).beside(self.unaccounted_bytes)

    def _unaccounted_bytes(self, budget_bytes: int, label: str, arguments: Forms, first_bytes: int) -> int:
        """What only the device counts, but for the batch; in steps, since each figure needs plans of its own."""
        counted_bytes = self._memory.backend.counted_bytes()
        if not counted_bytes:
            return 0
        known_bytes = self._memory.held_bytes() + self._memory.bytes_of('program')
        batch_bytes = self._following.batch_bytes(label, arguments, first_bytes)
        if self._settings.budget_bytes is None:  # a card's free memory says little of what an iteration needs
            budget_bytes = min(budget_bytes, 1 << (MANY_TIMES * counted_bytes).bit_length())
        step_bytes = max(1, budget_bytes // UNACCOUNTED_STEPS)
        return rounded_up(max(0, counted_bytes - known_bytes - batch_bytes), step_bytes)

    def _model(self) -> int | None:
        """The number of the parameter that stands for the model; None if the first call has none, or a new one."""
        return None if self._first is None else self._parameters.number_of(self._first())

    def tell(self, graph: Graph, is_quiet: bool = False) -> None:
        """Notes in the iteration's graph what stood beside its maps, as far as that was looked at."""
        if is_quiet:
            graph.used.note_stood(self._model(), self._at_first)
            return
        graph.left_bytes = self.left_bytes
        if self._stood_in_backward is not None:
            own = frozenset(self._own)
            beside = self._stood_in_backward - own
            graph.used.note(self._model(), Used(own, beside, self._at_first - own - beside, self._at_first & own))

    def scratch_bytes(self) -> int:
        """What was allocated since recording began and is no map; without recording new gradients of parameters."""
        if self._recorder.measures:
            return max(0, self._meter.current_bytes() - self._memory.bytes_of('metered') - self.beside.counted_bytes)
        return max(0, self._parameters.gradient_bytes() - self.beside.gradient_bytes - self.beside.others_bytes)

    def stand(self, scratch_bytes: int) -> None:
        """Counts what lives when a computation begins, beside maps and what was there before the iteration."""
        self._scratch_bytes = scratch_bytes
        self._memory.stands(self._beside_bytes(scratch_bytes))

    def make(self, need_bytes: int, position: int, most_bytes: int = 0) -> int:
        """Makes room for a computation, beside what stands.

        Args:
            need_bytes: what it allocates.
            position: in the graph that is followed; -1 if that does not have it.
            most_bytes: what it allocates if it is that of another known graph; as far as there is room, and no more.

        Returns:
            What near memory holds with that.

        Raises:
            InfeasibleBudgetError: it does not fit and nothing can leave. The budget that is named is enough for all
                that is known to come, with what stands now. Of an estimate that is too high rather than too low, what
                is there by now does not fit, whatever comes.
        """
        if self.is_lifted:
            self.limit()
        memory, graph = self._memory, self._following.graph
        certain = position >= 0 and self._following.is_certain
        fits = memory.make_room(need_bytes) or (
            self._make_all(need_bytes) if certain else position >= 0 and self.collect(need_bytes))
        if not fits and not certain and position >= 0 and graph is not None and not graph.is_guess:
            certain, need_bytes = self._is_beyond(), 0
        is_known = certain or (fits and graph is not None and position >= 0)  # else it is a guess
        near_bytes = memory.note_peak(need_bytes if is_known else 0)
        if not fits and certain and graph is not None:
            floor_bytes, budget_bytes = memory.near_bytes() + need_bytes, memory.budget_bytes or 0
            if self._stood_in_backward is not None:
                self.tell(graph)
            raise self._following.refusal(InfeasibleBudgetError(
                self._settings.policy, budget_bytes, floor_bytes, self._following.name_of(position), doubt=UNDER_WAY))
        if most_bytes > need_bytes:
            memory.make_room(most_bytes)
        return near_bytes

    def _is_beyond(self) -> bool:
        """Whether what surely is there passes the budget, though all has left that can."""
        scratch_bytes = self._scratch_bytes
        self.stand(self.scratch_bytes())
        fits = self._memory.fits(0) or self._make_all(0)
        self.stand(scratch_bytes)
        return not fits

    def make_for_map(self, storage: Storage) -> None:
        """Makes room by all means for a map that a step needs and that has not begun to come, if that is certain.

        Else `Transit.need` does, as far as there is any.
        """
        comes = storage.state is State.LOST or (
            storage.state is State.AWAY and self._memory.context.far.takes_memory)
        if (comes and self._following.is_certain and storage.memory is self._memory
                and not self._memory.make_room(storage.nbytes)):
            self._make_all(storage.nbytes)

    def collect(self, nbytes: int) -> bool:
        """Makes room by what the program has no more, where it is worth looking for that; whether it did."""
        return self._collect() and self._memory.make_room(nbytes, thorough=True)

    def _make_all(self, nbytes: int) -> bool:
        """Makes room where there is none, by all means there are; False if that does not help."""
        has_collected = self._collect()
        if self._memory.make_room(nbytes, thorough=True):
            return True
        if has_collected:
            return False
        self._collect(always=True)
        return self._memory.make_room(nbytes, thorough=True)

    def _collect(self, always: bool = False) -> bool:
        """Frees what the program has no more, such as a model that another one has replaced; whether it was looked for.

        Without `always` that is seldom where it was in vain.
        """
        memory = self._memory
        if not (memory.garbage.ask() or always):
            return False
        before_bytes = memory.near_bytes()
        gc.collect()
        self.look_again()
        self.stand(self._scratch_bytes)
        memory.garbage.note(memory.near_bytes() < before_bytes)
        return True

    def _beside_bytes(self, scratch_bytes: int) -> int:
        return self.beside.total_bytes + self.unaccounted_bytes + scratch_bytes - (
            self._replaced_bytes() if self._to_be_replaced else 0)

    def coming_bytes(self, inputs: Sequence[Any]) -> int:
        """Of what a call is given, what does not count yet, such as a batch: it does from this call on."""
        given = {id(array): array for each in inputs
                 if not hasattr(each, 'update_rule') and arrays.is_array(array := array_of(each))}
        return sum(int(each.nbytes) for each in given.values()
                   if (root := arrays.root_of(each)) is not None and not self._parameters.own(root)
                   and not self._memory.counts(root))

    def ahead_bytes(self, step: Step) -> int:
        """What a step of the graph adds, if it comes next, to what is in near memory and to the maps that it needs."""
        return step.peak_bytes + max(0, self._beside_bytes(self.scratch_of(step, 0)) - self._memory.beside_bytes)

    def scratch_of(self, step: Step, others_bytes: int) -> int:
        """What lives when a step of the graph begins, beside maps, among them so much of earlier graphs'."""
        return max(0, step.other_bytes - others_bytes - self.beside.gradient_bytes)

