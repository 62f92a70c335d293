"""Room for the computations of one iteration: what each one allocates, beside what is in near memory.

    budget | beside the maps | maps | what the computation allocates |  left
           |<-- `beside` --->|      |<-- recorded, or a guess ------>|

Left out: what the account itself knows, and how it makes room (`residency`).
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from chainer_ooc import config
from chainer_ooc.backends import arrays
from chainer_ooc.config import Settings
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.graphs.graph import Graph
from chainer_ooc.execute.graphs.graphs import NEWCOMER, UNDER_WAY, after_collecting
from chainer_ooc.execute.graphs.likeness import Forms
from chainer_ooc.execute.graphs.orders import Conditions
from chainer_ooc.execute.iteration.beside import BesideMaps
from chainer_ooc.execute.iteration.left import left_bytes
from chainer_ooc.execute.iteration.quiet import Quietly
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.expected import Models
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.recording.recorder import forms
from chainer_ooc.execute.recording.registration import is_foreign, name_of
from chainer_ooc.execute.storage.reentry import LOCK, asks_amid
from chainer_ooc.execute.storage.slots import array_of
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage
from chainer_ooc.problem import Standing
from chainer_ooc.quantities import rounded_up

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
        left_bytes: what earlier iterations had left when this one began, and cannot be moved.
        is_lifted: the device's limit is above the budget, for plain Chainer that runs in the midst of the iteration.
    """

    def __init__(self, memory: Residency, beside: BesideMaps, parameters: Parameters, settings: Settings,
                 following: Following, end_quiet: Callable[[], None], iteration: weakref.ref[Quietly]):
        self.left_bytes = self._alone_bytes = 0
        self.is_lifted = self._is_settled = False
        self._memory, self._beside, self._parameters = memory, beside, parameters
        self._settings, self._following = settings, following
        self._end_quiet, self._iteration = end_quiet, iteration
        self._limit_bytes: int | None = None

    def disown(self, storage_of: Callable[[int], Storage | None]) -> None:
        """Books what the program holds of the batch, and did not when it was recorded, as the program's own."""
        graph = self._following.graph
        for each in graph.trace.maps if graph is not None and not self._memory.backend.counts_all else ():
            storage = storage_of(each.id) if each.producer is None and not each.foreign else None
            if storage is not None and storage.from_outside and is_foreign(storage):
                self._memory.book(storage, 'program')

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
        beside = self._beside
        beside.begin(inputs)
        model = beside.model
        first_bytes = int(array_of(inputs[0]).nbytes) if inputs else 0
        first = name_of(function), forms([array_of(each) for each in inputs]), first_bytes
        beside.unaccounted_bytes = self._unaccounted_bytes(budget_bytes, *first)
        standing_of = functools.partial(self._standing, model, beside.now.gradient_bytes)
        self._following.begin(
            *first, Conditions(self._settings, budget_bytes, beside.unaccounted_bytes, standing_of),
            lambda known: NEWCOMER if beside.has_model and all(each.lacks(model) for each in known) else '')

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
        self._alone_bytes = self._memory.bytes_alone()
        self.left_bytes = min(nbytes, self.left_bytes) if self._is_settled else nbytes

    def settle(self) -> None:
        """The iteration is about to have maps of its own."""
        if not self._is_settled:
            self.look_at_left()
            self._is_settled = True

    def _standing(self, model: int | None, gradient_bytes: int, models: Models) -> Standing:
        """What lives through the iteration beside its maps, if its graph did so with this model before."""
        self.look_at_left()
        return self._beside.standing(models.of(model), models.added_to, self.left_bytes, gradient_bytes)

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

    def tell(self, graph: Graph) -> None:
        """Notes in the iteration's graph what stood beside its maps."""
        graph.left_bytes, graph.left_alone_bytes = self.left_bytes, min(self.left_bytes, self._alone_bytes)
        self._beside.tell(graph)

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
            if self._beside.has_begun_backward:
                self.tell(graph)
            raise self._following.refusal(InfeasibleBudgetError(
                self._settings.policy, budget_bytes, floor_bytes, self._following.name_of(position), doubt=UNDER_WAY))
        if most_bytes > need_bytes:
            memory.make_room(most_bytes)
        return near_bytes

    def _is_beyond(self) -> bool:
        """Whether what surely is there passes the budget, though all has left that can."""
        scratch_bytes = self._beside.scratch_bytes
        self._beside.stand(self._beside.measured_scratch_bytes())
        fits = self._memory.fits(0) or self._make_all(0)
        self._beside.stand(scratch_bytes)
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
        """Makes room by what the program has no more, where it is worth looking for that; whether it did.

        Under a plan also by what could not leave before, such as a map that the program held then.
        """
        return (self._collect() or self._following.is_certain) and self._memory.make_room(nbytes, thorough=True)

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
        self._beside.look_again()
        self._beside.stand(self._beside.scratch_bytes)
        memory.garbage.note(memory.near_bytes() < before_bytes)
        return True

    def coming_bytes(self, inputs: Sequence[Any]) -> int:
        """Of what a call is given, what does not count yet, such as a batch: it does from this call on."""
        given = {id(array): array for each in inputs
                 if not hasattr(each, 'update_rule') and arrays.is_array(array := array_of(each))}
        return sum(int(each.nbytes) for each in given.values()
                   if (root := arrays.root_of(each)) is not None and not self._parameters.own(root)
                   and not self._memory.counts(root))
